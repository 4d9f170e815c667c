"""Boundaries of label maps, against loops over pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attngraft.errors import UsageError
from attngraft.tasks.images.boundaries import boundary, boundary_only


def by_loops(labels: np.ndarray, radius: int, ignore: int) -> np.ndarray:
    found = np.zeros(labels.shape, dtype=bool)
    for row, column in np.ndindex(*labels.shape):
        own = labels[row, column]
        around = labels[max(0, row - radius) : row + radius + 1, max(0, column - radius) : column + radius + 1]
        found[row, column] = own != ignore and ((around != own) & (around != ignore)).any()
    return found


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    radius=st.integers(0, 3),
    seed=st.integers(0, 999),
    ignore=st.sampled_from([255, 0, -1]),
)
def test_as_loops_find_them(rows: int, columns: int, radius: int, seed: int, ignore: int) -> None:
    random = np.random.default_rng(seed)
    labels = random.choice([0, 0, 0, 1, 2, 255, -1], size=(2, rows, columns))
    found = boundary(torch.from_numpy(labels), radius=radius, ignore=ignore)
    assert found.tolist() == [by_loops(each, radius, ignore).tolist() for each in labels]


def test_away_from_boundaries_nothing_counts() -> None:
    labels = torch.zeros(1, 4, 8, dtype=torch.uint8)
    labels[:, :, 4:] = 3
    kept = boundary_only(labels, radius=1)
    assert kept.dtype == torch.uint8
    assert kept[0, 0].tolist() == [255, 255, 255, 0, 3, 255, 255, 255]
    assert (boundary_only(labels, radius=8) == labels).all()
    assert (boundary_only(labels, radius=0) == 255).all()


def test_what_is_no_label_map() -> None:
    with pytest.raises(UsageError, match=r"must be \(B, H, W\)"):
        boundary(torch.zeros(4, 4))
    with pytest.raises(UsageError, match="radius at least 0"):
        boundary(torch.zeros(1, 4, 4), radius=-1)
