"""Histograms that grow batch by batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attngraft.analysis.distribution import Distribution
from attngraft.errors import UsageError


@given(numbers=st.lists(st.floats(0, 1), min_size=1, max_size=60), cut=st.integers(0, 60), share=st.floats(0, 1))
def test_quantiles_are_right_to_a_bin(numbers: list[float], cut: int, share: float) -> None:
    found = Distribution(0, 1, bins=50)
    for part in (numbers[:cut], numbers[cut:]):
        found.add(torch.tensor(part, dtype=torch.float64))
    assert found.total == len(numbers)
    assert found.mean == pytest.approx(np.mean(numbers))
    assert (found.least, found.largest) == (min(numbers), max(numbers))
    below, above = (np.quantile(numbers, share, method=method) for method in ("lower", "higher"))
    fewer, more = max(0.0, share - 1 / len(numbers)), min(1.0, share + 1 / len(numbers))
    low = min(below, np.quantile(numbers, fewer, method="lower"))
    high = max(above, np.quantile(numbers, more, method="higher"))
    assert low - 1 / 50 - 1e-9 <= found.quantile(share) <= high + 1 / 50 + 1e-9


def test_many_numbers_of_any_shape() -> None:
    torch.manual_seed(0)
    gates = torch.rand(4, 3, 1000).square()
    found = Distribution(0, 1)
    found.add(gates[:2])
    found.add(gates[2:].half())
    for share in (0.05, 0.25, 0.5, 0.9):
        assert found.quantile(share) == pytest.approx(float(torch.quantile(gates.flatten(), share)), abs=1 / 200)
    assert np.histogram(gates[:2].flatten().double().numpy(), 200, (0, 1))[0].sum() == 6000
    assert torch.equal(found.counts.sum(), torch.tensor(12000))


def test_counts_are_numpys() -> None:
    numbers = torch.randn(5000, dtype=torch.float64)
    found = Distribution(-5, 5, bins=40)
    found.add(numbers)
    assert found.counts.tolist() == np.histogram(numbers.numpy(), 40, (-5, 5))[0].tolist()


def test_numbers_beyond_the_bins_count_in_the_outermost() -> None:
    found = Distribution(0, 1, bins=4)
    found.add(torch.tensor([-3.0, 0.5, 1e30]))
    assert found.counts.tolist() == [1, 0, 1, 1]
    assert (found.quantile(0), found.quantile(1)) == (0, 1)
    assert (found.least, found.largest) == (-3, pytest.approx(1e30))


def test_what_cannot_be_counted() -> None:
    found = Distribution(0, 1)
    with pytest.raises(UsageError, match="1 of 2 values are NaN"):
        found.add(torch.tensor([0.5, torch.nan]))
    with pytest.raises(UsageError, match="the distribution is empty"):
        found.quantile(0.5)
    with pytest.raises(UsageError, match="the distribution is empty"):
        _ = found.mean
    found.add(torch.empty(0))
    found.add(torch.tensor(0.25))
    assert found.quantile(0.5) == 0.25
    with pytest.raises(UsageError, match="between 0 and 1"):
        found.quantile(1.2)
    with pytest.raises(UsageError, match="high greater than low"):
        Distribution(1, 1)
