"""Conditions of the suites of point clouds."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor

from attngraft.tasks.points.suites import Fewer, Noisy, PointAccess, Rotated, Shuffled, suites
from attngraft.tasks.suites import noise_generator


def points() -> Tensor:
    return torch.randn(40, 6, generator=torch.Generator().manual_seed(0))


def rows(values: Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in values.tolist()}


def generator(seed: int = 0) -> torch.Generator:
    return noise_generator(seed, 3)


def test_fewer_points_are_some_of_the_points() -> None:
    found = Fewer(0.25)(points(), generator())
    assert len(found) == 10
    assert rows(found) < rows(points())
    assert not torch.equal(found, Fewer(0.25)(points(), generator(1)))


def test_noise_leaves_normals() -> None:
    found = Noisy(0.02)(points(), generator()) - points()
    assert not found[:, 3:].any()
    assert float(found[:, :3].std()) == pytest.approx(0.02, rel=0.2)


def test_rotations_turn_points_and_normals() -> None:
    found = Rotated(2, 90)(points(), generator())
    expected = torch.stack([-points()[:, 1], points()[:, 0], points()[:, 2]], dim=1)
    torch.testing.assert_close(found[:, :3], expected)
    torch.testing.assert_close(found[:, 3:].norm(dim=1), points()[:, 3:].norm(dim=1))


def test_order_keeps_the_points() -> None:
    found = Shuffled()(points(), generator())
    assert rows(found) == rows(points())
    assert not torch.equal(found, points())


def test_examples_are_changed_and_conditions_differ() -> None:
    found, access = suites(), PointAccess()
    names = [condition.name for suite in found.values() for condition in suite.conditions]
    assert len(names) == len(set(names)) == 1 + 9 + 9 + 9 + 3
    assert set(found["point_robustness"].stands_for) == {*found} - {"clean_clouds", "point_robustness"}
    for suite in found.values():
        for condition in suite.conditions:
            if condition.example is not None:
                example = {"points": points(), "target": 2}
                changed = access.change_example(example, pickle.loads(pickle.dumps(condition.example)), generator())
                assert changed["target"] == 2
                assert not torch.equal(changed["points"], example["points"])
