"""CKA: its bounds, what it does not see, and that batches do not matter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attngraft.analysis.similarity import ANALYSIS, CentredKernelAlignment
from attngraft.errors import UsageError
from tests.analysis.requests import inputs, make_request, run_and_check, vit


def features(n: int, width: int, seed: int) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alignment(x: Tensor, y: Tensor) -> float:
    found = CentredKernelAlignment()
    found.add({"a": x}, {"b": y})
    return found.matrix().item()


@settings(max_examples=20, deadline=None)
@given(n=st.integers(4, 30), p=st.integers(1, 12), seed=st.integers(0, 99), scale=st.floats(0.1, 10))
def test_rotations_scales_and_shifts_are_not_seen(n: int, p: int, seed: int, scale: float) -> None:
    x = features(n, p, seed)
    turned = scale * x @ torch.linalg.qr(features(p, p, seed + 1))[0]
    assert alignment(x, turned) == pytest.approx(1)
    y = features(n, p, seed + 2)
    assert alignment(x + 3, y - 2) == pytest.approx(alignment(x, y), abs=1e-6)


def test_it_is_the_estimate_spelled_out() -> None:
    """Sums over four distinct images, as Song et al. define the unbiased estimate."""
    x, y = features(6, 3, 0), features(6, 4, 1)

    def hsic(k: Tensor, other: Tensor) -> float:
        n, total = len(k), 0.0
        for i in range(n):
            for j in set(range(n)) - {i}:
                for q in set(range(n)) - {i, j}:
                    for r in set(range(n)) - {i, j, q}:
                        total += float(k[i, j] * (other[i, j] + other[q, r] - 2 * other[i, q]))
        return total / (n * (n - 1) * (n - 2) * (n - 3))

    k, other = x @ x.T, y @ y.T
    expected = hsic(k, other) / (hsic(k, k) * hsic(other, other)) ** 0.5
    assert alignment(x, y) == pytest.approx(expected)


def test_unrelated_features_are_near_0_whatever_their_width() -> None:
    found = CentredKernelAlignment()
    for seed in range(20):
        found.add({"a": features(32, 400, seed)}, {"b": features(32, 400, seed + 100)})
    assert abs(found.matrix().item()) < 0.05  # the biased estimate gives 0.93


def test_all_layers_against_all_over_batches() -> None:
    layers = {
        name: features(24, width, seed).view(24, 2, -1) for seed, (name, width) in enumerate({"a": 4, "b": 6}.items())
    }
    found = CentredKernelAlignment()
    for part in range(3):
        batch = {name: each[8 * part : 8 * part + 8] for name, each in layers.items()}
        found.add(batch, {"c": batch["b"], **batch})
    assert found.first == ("a", "b")
    assert found.second == ("c", "a", "b")
    matrix = found.matrix()
    torch.testing.assert_close(matrix[[0, 1, 1], [1, 0, 2]], torch.ones(3, dtype=torch.float64))
    assert matrix[0, 0] == matrix[0, 2] < 0.9


def test_what_cannot_be_compared_is_refused() -> None:
    found = CentredKernelAlignment()
    with pytest.raises(UsageError, match="no features were added"):
        found.matrix()
    for first, second in ((3, 3), (5, 6)):
        with pytest.raises(UsageError, match="at least four images per batch"):
            found.add({"a": features(first, 2, 0)}, {"b": features(second, 2, 1)})
    with pytest.raises(UsageError, match="the same images"):
        found.add({"a": features(5, 2, 0), "b": features(6, 2, 0)}, {"b": features(5, 2, 1)})
    found.add({"a": features(5, 2, 0)}, {"b": features(5, 2, 1)})
    with pytest.raises(UsageError, match="differ from the previous batch; add the same layers"):
        found.add({"c": features(5, 2, 0)}, {"b": features(5, 2, 1)})


def test_a_model_is_like_itself(tmp_path: Path) -> None:
    model = vit()
    result = run_and_check(ANALYSIS, make_request(model, limit=8), tmp_path)
    (panel,) = result.panels
    cells = torch.tensor(panel.cells)
    assert cells.shape == (3, 3)
    torch.testing.assert_close(cells.diagonal(), torch.ones(3))
    torch.testing.assert_close(cells, cells.T)
    assert result.numbers["mean over layers of one depth"] == pytest.approx(1)


def test_two_models_against_the_formula(tmp_path: Path) -> None:
    given = make_request(vit(), vit(depth=2), names=("deep", "flat"), limit=8, batch=8)
    result = run_and_check(ANALYSIS, given, tmp_path)
    kernels = []
    for place, block in ((0, 2), (1, 1)):
        model, kept = given.models[place].model, []
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
    (panel,) = result.panels
    assert panel.cells[2][1] == pytest.approx(min(max(expected, 0), 1), abs=1e-5)
    assert (panel.row_axis, panel.column_axis) == ("deep", "flat")
    assert len(panel.cells) == 3
    assert not result.numbers


def test_too_few_images() -> None:
    with pytest.raises(UsageError, match="requires at least 4 images in a batch, got 3"):
        ANALYSIS(make_request(vit(), limit=3))
    with pytest.raises(UsageError, match="requires 1 to 2 models, got 3"):
        ANALYSIS(make_request(vit(), vit(), vit()))


def test_a_layer_that_is_the_same_for_all_images_is_empty(tmp_path: Path) -> None:
    model = vit()
    model.blocks[1].mlp.fc2.weight.data.zero_()
    model.blocks[1].mlp.fc2.bias.data.normal_()
    result = run_and_check(ANALYSIS, make_request(model, limit=8), tmp_path)
    (panel,) = result.panels
    assert [row[1] for row in panel.cells] == panel.cells[1] == [None] * 3
    assert result.numbers["mean over layers of one depth"] == pytest.approx(1)
