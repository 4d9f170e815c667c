"""Manifests of graft files: every field is checked, and errors name it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import GraftFileError
from attngraft.grafting.io import FORMAT, GraftManifest, StoredGraft, StoredHost, parse_manifest

FILE = Path("some/grafts.safetensors")


def manifest() -> GraftManifest:
    options = {"learned": True, "weight": 0.5, "order": "parallel", "reduction": 4, "limit": None}
    return GraftManifest(
        format=FORMAT,
        version="0.1.0",
        host=StoredHost(
            adapter="timm.vit", architecture={"class": "ViT", "sites": [["a", "mlp", 8]]}, fingerprint=None
        ),
        spec="bisa@a",
        entries=(
            StoredGraft(site="a", stage="mix", instance="bisa", graft="bisa", options=options),
            StoredGraft(site="b", stage="mix", instance="bisa_2", graft="bisa", options={}),
        ),
        include=("head",),
    )


def test_what_is_written_is_read() -> None:
    assert parse_manifest(manifest().to_json(), file=FILE) == manifest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(entries=None), "manifest.entries: expected a list, found nothing"),
        (lambda m: m.update(entries={}), "manifest.entries: expected a list, found {}"),
        (lambda m: m["entries"].insert(0, 3), r"manifest.entries\[0\]: expected a section of fields, found 3"),
        (
            lambda m: m["entries"][1].update(options=[]),
            r"manifest.entries\[1\].options: expected a mapping .* found \[\]",
        ),
        (lambda m: m["entries"][0].update(options={"x": []}), r"manifest.entries\[0\].options.x: .* found \[\]"),
        (
            lambda m: m["entries"][0].update(stage=["mix"]),
            r"manifest.entries\[0\].stage: expected text, found \['mix'\]",
        ),
        (lambda m: m["entries"][0].update(graft=None), r"manifest.entries\[0\].graft: expected text, found nothing"),
        (lambda m: m["entries"][0].pop("site"), r"manifest.entries\[0\].site: missing"),
        (
            lambda m: m["entries"][0].update(instance="a.b"),
            r"manifest.entries\[0\].instance: must be a valid module name",
        ),
        (lambda m: m["entries"][0].update(instance="keys"), r"manifest.entries\[0\].instance: must .*, got 'keys'"),
        (lambda m: m["entries"][0].update(level=1), r"manifest.entries\[0\].level: unknown field"),
        (lambda m: m.update(host=[]), r"manifest.host: expected a section of fields, found \[\]"),
        (lambda m: m["host"].update(adapter=1), "manifest.host.adapter: expected text, found 1"),
        (lambda m: m["host"].update(fingerprint=1), "manifest.host.fingerprint: expected text, found 1"),
        (lambda m: m["host"].update(architecture=None), "manifest.host.architecture: expected a mapping"),
        (
            lambda m: m["host"]["architecture"].update(sites=[1]),
            "manifest.host.architecture.sites: must be a list of lists",
        ),
        (lambda m: m["host"]["architecture"].pop("sites"), "manifest.host.architecture.sites: must be a list of lists"),
        (lambda m: m.update(include="head"), "manifest.include: expected a list, found 'head'"),
        (lambda m: m.update(format=0), "manifest.format: must be 1 or more, got 0"),
        (lambda m: m.update(format=True), "manifest.format: expected a whole number, found True"),
        (lambda m: m.update(format="1"), "manifest cannot be read .*no format number"),
        (lambda m: m.pop("format"), "manifest cannot be read .*no format number"),
        (
            lambda m: m.update(format=FORMAT + 1, entries=7),
            "has format 2, written by attngraft 0.1.0; .*Update attngraft",
        ),
    ],
)
def test_a_wrong_shape_names_file_field_and_remedy(change: Callable[[dict[str, Any]], object], message: str) -> None:
    content = json.loads(manifest().to_json())
    change(content)
    with pytest.raises(GraftFileError, match=message) as caught:
        parse_manifest(json.dumps(content), file=FILE)
    assert str(caught.value).startswith(str(FILE))
    assert "save the grafts again" in str(caught.value) or "pip install -U attngraft" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "null", "3", "[]", '"text"', "[" * 100_000, '{"format": ' + "9" * 5000 + "}", "{}"]
)
def test_what_is_no_manifest_at_all_is_refused(text: str) -> None:
    with pytest.raises(GraftFileError, match="manifest cannot be read .*; save the grafts again"):
        parse_manifest(text, file=FILE)
