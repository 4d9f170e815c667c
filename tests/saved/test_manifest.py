"""What the description of an exported model may say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import attngraft
from attngraft.checksums import FILE as CHECKSUMS
from attngraft.errors import AttngraftError
from attngraft.export.run import export_run
from attngraft.saved.manifest import GRAFTS, MANIFEST, WEIGHTS
from tests.export.runs import VIT, make_run


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    make_run(folder / "run", host=VIT, graft="cb_s")
    export_run(folder / "run", folder / "out")
    (folder / "out" / CHECKSUMS).unlink()
    return folder / "out"


@pytest.fixture
def out(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "out"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["serving"]["input"].update(size=[3, -8, 8]), r"serving\.input\.size: must be channels, height"),
        (lambda m: m["serving"]["input"].update(size=[3, 10**6, 10**6]), r"serving\.input\.size: must be channels"),
        (
            lambda m: m["serving"].update(activation="none"),
            r"serving\.scale: must have, like serving\.offset, a number",
        ),
        (
            lambda m: m["serving"].update(kind="text"),
            r"serving\.input\.tokenizer: must be a file of the model's folder",
        ),
        (
            lambda m: m["serving"].update(kind="text", input={"tokenizer": "../x.json", "vocab_size": 9}),
            r"serving\.input\.tokenizer: must be a file of the model's folder, got '\.\./x\.json'",
        ),
        (
            lambda m: m["serving"].update(kind="text", input={"tokenizer": "x.json", "vocab_size": 2**40}),
            r"serving\.input\.vocab_size: must be a number of tokens",
        ),
        (
            lambda m: m["serving"].update(activation="none", scale=[-1.0] * 2, offset=[0.0] * 2, classes=["a", "b"]),
            r"serving\.scale: must be positive",
        ),
        (lambda m: m["serving"].update(threshold=-1.0), r"serving\.threshold: must lie between 0 and 1"),
        (lambda m: m["serving"].update(classes=["a"] * 2), r"serving\.classes: must be different names"),
        (lambda m: m["serving"].update(classes=["a", "\ud800"]), "surrogates not allowed"),
        (lambda m: m.update(grafted=False), rf"{GRAFTS}: exists, but the manifest says that there are no grafts"),
    ],
)
def test_descriptions_that_fit_no_model_are_refused(
    change: Callable[[dict[str, Any]], None], message: str, out: Path
) -> None:
    manifest = json.loads((out / MANIFEST).read_text())
    change(manifest)
    (out / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(AttngraftError, match=message):
        attngraft.load(out)


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
def test_weights_of_another_kind_are_refused(dtype: torch.dtype, out: Path) -> None:
    weights = safetensors.torch.load_file(out / WEIGHTS)
    weights["head.bias"] = weights["head.bias"].to(dtype)
    safetensors.torch.save_file(weights, out / WEIGHTS)
    with pytest.raises(AttngraftError, match=r"has head\.bias of type (bool|complex) where float fits"):
        attngraft.load(out)
    with pytest.raises(AttngraftError, match=r"other numbers: head\.bias of type (bool|complex) where float fits"):
        attngraft.create_model(VIT["name"], weights=out / WEIGHTS, num_classes=len(weights["head.bias"]), **VIT["args"])
