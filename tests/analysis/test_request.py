"""What every analysis is held to, whatever it looks for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attngraft.analysis.catalog import ANALYSES, analyses, analysis
from attngraft.analysis.request import AnalysisRequest, measure_models
from attngraft.errors import GraftSpecError, HostError, RecordError, UsageError
from attngraft.targets.handle import ModelHandle
from tests.analysis.requests import make_request, vit

ROOT = Path(__file__).parents[2]


def test_every_analysis_goes_by_its_name_and_is_explained() -> None:
    found = analyses()
    assert [each.name for each in found] == list(ANALYSES)
    guide = (ROOT / "docs/guide/looking.md").read_text(encoding="utf-8")
    listed = guide.partition("| analysis |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", listed, re.M) == list(ANALYSES)
    assert all(each.summary and each.title and each.requirements for each in found)
    with pytest.raises(UsageError, match=r"did you mean cka\?"):
        analysis("ckaa")


def test_images_are_the_same_for_all_models_and_evenly_chosen() -> None:
    given = make_request(vit(), vit(depth=1), limit=5, batch=2)
    first, second = (list(given.batches(subject)) for subject in given.models)
    assert [len(batch) for batch in first] == [2, 2, 1]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert [len(batch) for batch in given.batches(given.models[0], least=2)] == [2, 2]
    assert [name for name, _, _ in given.pictures(given.models[0])] == ["noise/0", "noise/9"]
    with pytest.raises(UsageError, match="--image"):
        next(replace(given, image_set=None).batches(given.models[0]))


def test_models_that_have_no_such_thing_are_named_with_the_reason() -> None:
    def measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> int:
        assert not torch.is_grad_enabled()
        if model.name == "b":
            raise RecordError("it has none")
        if model.name == "c":
            left_out["blocks.0"] = "no map"
        return 1

    assert measure_models(make_request(vit(), vit(), vit()), measure) == (
        [(0, "a", 1), (2, "c", 1)],
        {"b": "it has none", "c, blocks.0": "no map"},
    )

    def none(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> int:
        raise HostError(f"no {model.name}")

    with pytest.raises(HostError, match="a: no a; b: no b"):
        measure_models(make_request(vit(), vit()), none)


def test_the_kind_of_error_is_kept() -> None:
    def measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> int:
        if model.name == "a":
            raise GraftSpecError("'blocks.9' matches no site")
        if model.name == "b":
            raise RecordError("it has none")
        return 1

    _, left_out = measure_models(make_request(vit(), vit(), vit()), measure)
    assert left_out == {"a": "GraftSpecError: 'blocks.9' matches no site", "b": "it has none"}
    with pytest.raises(GraftSpecError, match=r"^'blocks.9' matches no site$"):
        measure_models(make_request(vit()), measure)
    with pytest.raises(RecordError, match="a: GraftSpecError: 'blocks.9' matches no site; b: it has none"):
        measure_models(make_request(vit(), vit()), measure)


def test_models_that_could_not_be_asked_are_named_too() -> None:
    given = make_request(vit(), left_out={"c": "its run with seed 0 is not finished"})
    assert analysis("entropy")(given).left_out == {"c": "its run with seed 0 is not finished"}
