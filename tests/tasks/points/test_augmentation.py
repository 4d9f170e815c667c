"""Augmentation of points and normals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attngraft.errors import ConfigError
from attngraft.strict import read
from attngraft.tasks.points.augmentation import augmented, rotation
from attngraft.tasks.points.config import PointAugmentConfig

NONE = PointAugmentConfig(scale=(1.0, 1.0), shift=0.0)


def sphere() -> np.ndarray:
    """Points of a sphere with their normals, which are the points."""
    points = np.random.default_rng(0).standard_normal((100, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return np.concatenate([points, points], axis=1).astype(np.float32)


def random() -> np.random.Generator:
    return np.random.default_rng(1)


def test_nothing_changes_nothing() -> None:
    np.testing.assert_allclose(augmented(sphere(), NONE, random()), sphere(), atol=1e-6)


def test_scale_and_shift_stay_in_their_ranges() -> None:
    config, points = PointAugmentConfig(), sphere()[:, :3]
    for seed in range(20):
        found = augmented(points, config, np.random.default_rng(seed))
        scale = np.array([np.polyfit(points[:, axis], found[:, axis], 1) for axis in range(3)])
        assert ((scale[:, 0] >= 2 / 3) & (scale[:, 0] <= 1.5)).all()
        assert (np.abs(scale[:, 1]) <= 0.2).all()
        assert len(set(scale[:, 0].round(4))) == 3  # another factor for each axis


def test_normals_of_a_scaled_sphere_are_those_of_the_ellipsoid() -> None:
    """The gradient of (x / a)^2 + (y / b)^2 + (z / c)^2 is (x / a^2, y / b^2, z / c^2)."""
    values = sphere()
    found = augmented(values, replace(NONE, scale=(0.5, 2.0)), random())
    scale = (found[:, :3] / values[:, :3]).mean(axis=0)
    gradient = found[:, :3] / scale**2
    np.testing.assert_allclose(found[:, 3:], gradient / np.linalg.norm(gradient, axis=1, keepdims=True), atol=1e-4)


@pytest.mark.parametrize("axis", ["x", "y", "z"])
def test_rotations_keep_the_axis_and_turn_normals_too(axis: str) -> None:
    number = "xyz".index(axis)
    found = augmented(sphere(), PointAugmentConfig(scale=(1.0, 1.0), shift=0.0, rotate=axis), random())  # type: ignore[arg-type]
    np.testing.assert_allclose(found[:, number], sphere()[:, number], atol=1e-6)
    np.testing.assert_allclose(found[:, :3], found[:, 3:], atol=1e-6)
    assert np.abs(found - sphere()).max() > 0.1


def test_rotation_is_a_rotation() -> None:
    matrix = rotation(2, np.pi / 2)
    np.testing.assert_allclose(matrix @ [1, 0, 0], [0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(rotation(1, 0.3)), 1)


def test_noise_has_its_standard_deviation() -> None:
    found = augmented(sphere(), replace(NONE, noise=0.05), random()) - sphere()
    assert np.std(found[:, :3]) == pytest.approx(0.05, rel=0.15)
    np.testing.assert_allclose(found[:, 3:], 0, atol=1e-6)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scale", [1.5, 0.5], "scale: must be two increasing"),
        ("shift", -1, "shift"),
        ("shift", 1e308, "between 0 and 100"),
        ("noise", -0.1, "noise"),
    ],
)
def test_wrong_settings(field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(PointAugmentConfig, {field: value}, where="task.augment")
