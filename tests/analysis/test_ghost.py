"""Ghost matrices, against the parameters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import attngraft
from attngraft.analysis import ghost
from attngraft.errors import RecordError
from tests.analysis.requests import make_request, rows_of, run_and_check, swin, vit


def graft_of(model: nn.Module, kind: str) -> nn.Module:
    return next(module for module in model.modules() if type(module).__name__ == kind)


def test_of_neighborhoods(tmp_path: Path) -> None:
    model = swin()
    attngraft.graft(model, "elsa(kernel=3, mul=2, add=0.5)@layers.0.blocks.1")
    result = run_and_check(
        ghost.ANALYSIS, make_request(model, swin(), names=("elsa", "plain"), image_set=None), tmp_path
    )
    mul, add = graft_of(model, "ElsaGraft").ghost_head.detach().double().numpy()[:, 0]
    for kind, values in (("multiplier", mul**2), ("addend", 0.5 * add)):
        assert values.shape == (24, 3, 3)
        (every,) = rows_of(result, matrix=kind, down=None)
        assert every["mean"] == pytest.approx(values.mean(), rel=1e-4, abs=1e-7)
        assert every["deviation"] == pytest.approx(values.std(), rel=1e-4)
        assert (every["least"], every["largest"]) == pytest.approx((values.min(), values.max()), rel=1e-4)
        (corner,) = rows_of(result, matrix=kind, down=-1, right=1)
        assert corner["mean"] == pytest.approx(values[:, 0, 2].mean(), rel=1e-4)
        (panel,) = [panel for panel in result.panels if panel.title.endswith(kind)]
        shown = {each.caption: np.array(each.values) for each in panel.rows[0].pictures}
        np.testing.assert_allclose(shown["mean"], values.mean(0), rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(shown["channel 23"], values[23], rtol=1e-4)
        assert len(shown) == 11
    assert "the grafts elsa and ghost add one" in result.left_out["plain"]


def test_of_whole_grids() -> None:
    """Of a ViT's map of 4 x 4 with a class token, and of windows; by where the key lies as seen from the query."""
    for model in (vit(), swin()):
        attngraft.graft(model, "ghost")
        result = ghost.ANALYSIS(make_request(model, image_set=None, heads=True))
        site = result.table.rows[0][1]
        table = graft_of(model, "GhostGraft").add.detach().double().numpy()
        places = graft_of(model, "GhostGraft").indices
        order = int(places[0, 15])  # the key in the far corner, as seen from the first query
        assert order in (0, 48)
        (row,) = rows_of(result, layer=site, matrix="addend", down=3, right=3)
        assert row["mean"] == pytest.approx(table[:, order].mean(), rel=1e-4)
        panel = next(panel for panel in result.panels if panel.title == f"a: addend of {site}")
        assert panel.rows[0].pictures[0].caption == "head 0"
        assert torch.tensor(panel.rows[0].pictures[0].values).shape == (7, 7)


def test_a_neighborhood_of_as_many_rows_as_a_window_has_places() -> None:
    model = swin(window_size=3, img_size=24)
    attngraft.graft(model, "elsa(kernel=9)@layers.0.blocks.0")
    result = ghost.ANALYSIS(make_request(model, image_set=None))
    assert torch.tensor(result.panels[0].rows[0].pictures[0].values).shape == (9, 9)


def test_without_a_ghost_head() -> None:
    with pytest.raises(RecordError, match="the grafts elsa and ghost add one"):
        ghost.ANALYSIS(make_request(vit(), image_set=None))
