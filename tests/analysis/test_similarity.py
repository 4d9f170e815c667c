"""CKA: its bounds, what it does not see, and that batches do not matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attngraft.analysis.similarity import CentredKernelAlignment
from attngraft.errors import UsageError


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
    with pytest.raises(UsageError, match="no batch was added"):
        found.matrix()
    for first, second in ((3, 3), (5, 6)):
        with pytest.raises(UsageError, match="the same images, four or more in a batch"):
            found.add({"a": features(first, 2, 0)}, {"b": features(second, 2, 1)})
    with pytest.raises(UsageError, match="the same images"):
        found.add({"a": features(5, 2, 0), "b": features(6, 2, 0)}, {"b": features(5, 2, 1)})
    found.add({"a": features(5, 2, 0)}, {"b": features(5, 2, 1)})
    with pytest.raises(UsageError, match="others than in the batch before"):
        found.add({"c": features(5, 2, 0)}, {"b": features(5, 2, 1)})
