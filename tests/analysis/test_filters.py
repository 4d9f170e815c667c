"""Filters at nine places, against what the layer itself makes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attngraft
from attngraft.analysis import filters
from attngraft.errors import RecordError
from tests.analysis.requests import inputs, make_request, rows_of, run_and_check, swin

SITE = "layers.{}.blocks.0.attn"
PLACES = [(4, 4), (1, 1), (1, 4), (1, 6), (4, 1), (4, 6), (6, 1), (6, 4), (6, 6)]  #: of 8 x 8, the middle first


def kept(model: torch.nn.Module, graft: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """(H, K, rows, columns) of one image, from the scores that the graft's convolutions make."""
    found: list[torch.Tensor] = []
    hook = graft.attn.register_forward_hook(lambda module, given, output: found.append(output))
    with torch.no_grad():
        model(images)
    hook.remove()
    return found[0][0].unflatten(0, (graft.heads, -1)).softmax(1)


def test_against_the_layer(tmp_path: Path) -> None:
    model, plain = swin(), swin()
    attngraft.graft(model, "elsa(kernel=5)@layers.0.blocks.0 + elsa(kernel=3)@layers.1.blocks.0")
    given = make_request(model, plain, names=("elsa", "plain"))
    result = run_and_check(filters.ANALYSIS, given, tmp_path)
    graft = next(module for module in model.modules() if type(module).__name__ == "ElsaGraft")
    expected = kept(model, graft, inputs(given, [9])).mean(0)
    rows = rows_of(result, image="noise/9", layer=SITE.format(0), head="mean")
    assert list(dict.fromkeys((row["row"], row["column"]) for row in rows)) == PLACES
    for row in rows:
        offset = (row["down"] + 2) * 5 + row["right"] + 2
        assert row["weight"] == pytest.approx(float(expected[offset, row["row"], row["column"]]), rel=1e-4)
    assert sum(row["weight"] for row in rows) == pytest.approx(9, rel=1e-4)
    own = [kept(model, graft, inputs(given, [place]))[:, 12].mean() for place in (0, 9)]
    name = f"elsa, {SITE.format(0)}: mean weight of the place itself"
    assert result.numbers[name] == pytest.approx(float(sum(own) / 2), rel=1e-4)
    first, _ = result.panels
    assert [row.name for row in first.rows] == ["positions", "layer 0", "layer 1"]
    assert not first.diverging
    assert "elsa" in result.left_out["plain"]


def test_head_by_head_and_either_sign() -> None:
    model = swin()
    attngraft.graft(model, "involution(kernel=3)@layers.1")
    result = filters.ANALYSIS(make_request(model, heads=True, shown=1))
    (panel,) = result.panels
    assert [row.name for row in panel.rows[1:]] == [f"layer {at}, head {head}" for at in (0, 1) for head in (0, 1)]
    assert panel.diverging
    assert {(row["head"], row["down"], row["right"]) for row in rows_of(result)} >= {("0", -1, -1), ("1", 1, 1)}


def test_filters_that_are_alike_everywhere_and_none() -> None:
    model = swin()
    attngraft.graft(model, "dwconv(kernel=3)@layers.0")
    with pytest.raises(RecordError, match="the same at every position"):
        filters.ANALYSIS(make_request(model))
    with pytest.raises(RecordError, match="has filters"):
        filters.ANALYSIS(make_request(swin()))


def test_places_that_were_named() -> None:
    model = swin()
    attngraft.graft(model, "elsa(kernel=3)@layers.0.blocks.0 + elsa(kernel=3)@layers.1.blocks.0")
    given = make_request(model, positions=((0, 7), (5, 2), (0, 7)), shown=1)
    result = filters.ANALYSIS(given)
    graft = next(module for module in model.modules() if type(module).__name__ == "ElsaGraft")
    expected = kept(model, graft, inputs(given, [0])).mean(0)
    rows = rows_of(result, layer=SITE.format(0))
    assert list(dict.fromkeys((row["row"], row["column"]) for row in rows)) == [(0, 7), (5, 2)]
    for row in rows:
        offset = (row["down"] + 1) * 3 + row["right"] + 1
        assert row["weight"] == pytest.approx(float(expected[offset, row["row"], row["column"]]), rel=1e-4)
    below = rows_of(result, layer=SITE.format(1))
    assert list(dict.fromkeys((row["row"], row["column"]) for row in below)) == [(0, 3), (2, 1)]
    (panel,) = result.panels
    assert [len(row.pictures) for row in panel.rows] == [1, 2, 2]


@pytest.mark.parametrize("at", [(8, 0), (0, 8), (-1, 0)])
def test_places_beyond_the_map(at: tuple[int, int]) -> None:
    model = swin()
    attngraft.graft(model, "elsa(kernel=3)@layers.0.blocks.0")
    with pytest.raises(
        RecordError, match=rf"--at {at[0]},{at[1]}: outside of the map of {SITE.format(0)}, which has rows 0 to 7"
    ):
        filters.ANALYSIS(make_request(model, positions=(at,)))
