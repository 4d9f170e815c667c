"""CKA between layers, as an analysis."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attngraft.analysis.asked import cka
from attngraft.errors import UsageError
from tests.analysis.asked.asking import ask, found, inputs, vit


def test_a_model_is_like_itself(tmp_path: Path) -> None:
    model = vit()
    finding = found(cka.ANALYSIS, ask(model, limit=8), tmp_path)
    (panel,) = finding.panels
    cells = torch.tensor(panel.cells)
    assert cells.shape == (3, 3)
    torch.testing.assert_close(cells.diagonal(), torch.ones(3))
    torch.testing.assert_close(cells, cells.T)
    assert finding.numbers["mean over layers of one depth"] == pytest.approx(1)


def test_two_models_against_the_formula(tmp_path: Path) -> None:
    given = ask(vit(), vit(depth=2), names=("deep", "flat"), limit=8, batch=8)
    finding = found(cka.ANALYSIS, given, tmp_path)
    kernels = []
    for place, block in ((0, 2), (1, 1)):
        model, kept = given.subjects[place].model, []
        hook = model.blocks[block].mlp.register_forward_hook(
            lambda module, given, output, kept=kept: kept.append(output)
        )
        with torch.no_grad():
            model(inputs(given, given.images.sample(8), place))
        hook.remove()
        features = kept[0].flatten(1).double()
        kernels.append((features @ features.T).fill_diagonal_(0))

    def hsic(k: torch.Tensor, l: torch.Tensor) -> float:  # noqa: E741 - as in the paper
        n, one = 8, torch.ones(8, dtype=torch.float64)
        inner = (
            torch.trace(k @ l)
            + (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
            - 2 / (n - 2) * (one @ k @ l @ one)
        )
        return float(inner) / (n * (n - 3))

    expected = hsic(*kernels) / (hsic(kernels[0], kernels[0]) * hsic(kernels[1], kernels[1])) ** 0.5
    (panel,) = finding.panels
    assert panel.cells[2][1] == pytest.approx(min(max(expected, 0), 1), abs=1e-5)
    assert (panel.row_axis, panel.column_axis) == ("deep", "flat")
    assert len(panel.cells) == 3
    assert not finding.numbers


def test_too_few_images() -> None:
    with pytest.raises(UsageError, match="4 in a batch"):
        cka.ANALYSIS(ask(vit(), limit=3))
    with pytest.raises(UsageError, match="takes 1 to 2 models, not 3"):
        cka.ANALYSIS(ask(vit(), vit(), vit()))


def test_a_layer_that_is_the_same_for_all_images_is_empty(tmp_path: Path) -> None:
    model = vit()
    model.blocks[1].mlp.fc2.weight.data.zero_()
    model.blocks[1].mlp.fc2.bias.data.normal_()
    finding = found(cka.ANALYSIS, ask(model, limit=8), tmp_path)
    (panel,) = finding.panels
    assert [row[1] for row in panel.cells] == panel.cells[1] == [None] * 3
    assert finding.numbers["mean over layers of one depth"] == pytest.approx(1)
