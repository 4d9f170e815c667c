"""Attention maps in order of entropy, against maps that are recorded here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attngraft
from attngraft.analysis import entropy_samples
from attngraft.errors import RecordError
from tests.analysis.requests import bixt, inputs, make_request, rows_of, run_and_check, swin, vit


def test_from_the_most_focused_to_the_most_spread(tmp_path: Path) -> None:
    given = make_request(vit(), swin(), names=("vit", "swin"), shown=1)
    result = run_and_check(entropy_samples.ANALYSIS, given, tmp_path)
    model = given.models[0].model
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        model(inputs(given, [0]))
    every = []
    for site in recording:
        among = recording[site]["weights"][0, :, 1:, 1:].double()
        among = among / among.sum(-1, keepdim=True)
        every.append(torch.special.entr(among).sum(-1).flatten())
    low, high = torch.cat(every).min().item(), torch.cat(every).max().item()
    rows = rows_of(result, model="vit", image="noise/0")
    entropies = [row["entropy"] for row in rows[::16]]
    assert entropies == sorted(entropies)
    assert (entropies[0], entropies[-1]) == pytest.approx((low, high), rel=1e-4)
    for start in range(0, len(rows), 16):
        first = rows[start]
        query = 4 * first["query row"] + first["query column"]
        row = recording[first["layer"]]["weights"][0, first["head"], 1 + query, 1:]
        shares = torch.tensor([each["share"] for each in rows[start : start + 16]])
        torch.testing.assert_close(shares, row / row.sum(), rtol=1e-4, atol=1e-6)
        assert torch.special.entr(shares).sum().item() == pytest.approx(first["entropy"], rel=1e-3)
    pictures = result.panels[0].rows[1].pictures
    assert len(pictures) == 8
    assert [float(each.caption) for each in pictures] == sorted(float(each.caption) for each in pictures)


def test_a_model_without_such_maps() -> None:
    with pytest.raises(RecordError, match="they have no grid"):
        entropy_samples.ANALYSIS(make_request(bixt(), shown=1, sites="blocks.0"))
