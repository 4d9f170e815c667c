"""The operations on points give what their definitions give, index by index."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attngraft.models.points import operations, reference
from attngraft.models.points.operations import TREE_POINTS, ball_query, farthest_points, group, knn, three_interpolate

#: coordinates on a coarse grid: many points coincide and many distances are equal
GRID = st.integers(-4, 4).map(lambda number: number / 4)
CLOUDS = st.lists(st.tuples(GRID, GRID, GRID), min_size=1, max_size=24).map(lambda points: torch.tensor([points]))


def cloud(*shape: int, dtype: torch.dtype = torch.float32, grid: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if grid:
        return torch.randint(-4, 5, shape, generator=generator).to(dtype) / 4
    return torch.randn(shape, generator=generator, dtype=dtype)


@settings(deadline=None, max_examples=50)
@given(CLOUDS, st.data())
def test_ties_and_duplicates_are_ordered_by_index(points: Tensor, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, points.shape[1]))
    assert torch.equal(farthest_points(points, count), reference.farthest_points(points, count))
    assert torch.equal(knn(points, points, count), reference.knn(points, points, count))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("number", [1, 2, TREE_POINTS - 1, TREE_POINTS, 300])
def test_results_are_those_of_the_reference(number: int, grid: bool, dtype: torch.dtype) -> None:
    points = cloud(3, number, 3, dtype=dtype, grid=grid)
    anchors = (number + 1) // 2
    chosen = farthest_points(points, anchors)
    assert torch.equal(chosen, reference.farthest_points(points, anchors))
    at = group(points, chosen)
    for count in {1, min(24, number), number}:
        expected = reference.knn(at, points, count)
        assert torch.equal(knn(at, points, count), expected)
        assert torch.equal(operations._by_distances(*map(reference.widened, (at, points)), count), expected)
    known = cloud(3, anchors, 5)
    found, expected = (each(points, at, known) for each in (three_interpolate, reference.three_interpolate))
    assert torch.equal(found, expected)


def test_distances_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    points = cloud(5, 20, 3)
    monkeypatch.setattr(operations, "DISTANCES", 900)
    assert torch.equal(knn(points, points, 4), reference.knn(points, points, 4))


def test_points_of_a_ball_are_the_first_and_are_repeated() -> None:
    points = torch.tensor([[[0.0, 0, 0], [0.5, 0, 0], [0.1, 0, 0], [0, 0.2, 0]]])
    assert ball_query(points[:, :1], points, 0.3, 2).tolist() == [[[0, 2]]]
    assert ball_query(points[:, :2], points, 0.3, 4).tolist() == [[[0, 2, 3, 0], [1, 1, 1, 1]]]
    assert ball_query(points + 9, points, 0.3, 2).tolist() == [[[0, 0]] * 4]


def test_interpolation_has_gradients() -> None:
    points, known = cloud(2, 6, 3, dtype=torch.double), cloud(2, 4, 3, dtype=torch.double)
    at = points[:, :4] + 0.1
    assert torch.autograd.gradcheck(lambda values: three_interpolate(points, at, values), known.requires_grad_())


@pytest.mark.parametrize("count", [0, 5])
def test_counts_are_checked(count: int) -> None:
    points = torch.zeros(1, 4, 3)
    for call in (lambda: farthest_points(points, count), lambda: knn(points, points, count)):
        with pytest.raises(ValueError, match=f"count={count} must be from 1 to the clouds' 4 points"):
            call()
    with pytest.raises(ValueError, match=r"points must be \(B, N, 3\), not \(1, 4, 2\)"):
        farthest_points(points[..., :2], 1)
