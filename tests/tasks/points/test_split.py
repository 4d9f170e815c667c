"""What a model gets of a cloud, and what is judged."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from attngraft.tasks.points.config import PointAugmentConfig
from attngraft.tasks.points.packed import PackedClouds, pack
from attngraft.tasks.points.source import load_clouds
from attngraft.tasks.points.split import PointSplit, Sampling, nearest
from tests.tasks.points.shapes import write_shapes

FIRST = Sampling(points=20, sample="first", normals=False, normalize=False)


@pytest.fixture
def clouds(tmp_path: Path) -> PackedClouds:
    return pack(load_clouds(write_shapes(tmp_path / "shapes.npz", train=2)))["train"]


def sampled(sample: str, points: int = 20) -> Sampling:
    return Sampling(points=points, sample=sample, normals=False, normalize=False)  # type: ignore[arg-type]


def rows(values: torch.Tensor | np.ndarray) -> set[tuple[float, ...]]:
    return {tuple(row) for row in np.asarray(values).tolist()}


def test_the_first_points(clouds: PackedClouds) -> None:
    example = PointSplit(clouds, FIRST)[0, 1]
    np.testing.assert_array_equal(example["points"], clouds.cloud(1).points[:20])
    assert example["target"] == 1


@pytest.mark.parametrize(
    ("sample", "points", "different"), [("random", 64, 64), ("random", 20, 20), ("repeated", 200, 64)]
)
def test_random_points(clouds: PackedClouds, sample: str, points: int, different: int) -> None:
    split = PointSplit(clouds, sampled(sample, points))
    found = split[0, 1]["points"]
    assert len(found) == points
    assert len(rows(found)) <= different
    assert len(rows(found)) > 0.9 * different
    assert rows(found) <= rows(clouds.cloud(1).points)


def test_points_for_evaluation_depend_on_the_name_alone(clouds: PackedClouds) -> None:
    split = PointSplit(clouds, sampled("random"))
    again = split.take(np.array([3, 1]))
    assert torch.equal(split[0, 1]["points"], split[5, 1]["points"])
    assert torch.equal(split[0, 1]["points"], again[0, 1]["points"])
    assert again.name(1) == split.name(1)
    unreadable = split.sampling.choose_by_name(64, "caf\udce9.txt")  # a byte of a file name that is not UTF-8
    assert len({*unreadable.tolist()}) == 20


def test_training_depends_on_seed_epoch_and_index(clouds: PackedClouds) -> None:
    def example(seed: int, epoch: int) -> torch.Tensor:
        split = PointSplit(clouds, sampled("random"), augment=PointAugmentConfig(), seed=seed)
        points: torch.Tensor = pickle.loads(pickle.dumps(split))[epoch, 1]["points"]
        return points

    assert torch.equal(example(0, 3), example(0, 3))
    assert not torch.equal(example(0, 3), example(1, 3))
    assert not torch.equal(example(0, 3), example(0, 4))


def test_training_shuffles_points_with_their_parts(clouds: PackedClouds) -> None:
    plain = PointAugmentConfig(scale=(1.0, 1.0), shift=0.0)
    found, cloud = PointSplit(clouds, FIRST, parts=True, augment=plain)[0, 1], clouds.cloud(1)
    assert cloud.parts is not None
    parts = {tuple(point): part for point, part in zip(cloud.points.tolist(), cloud.parts.tolist(), strict=True)}
    assert not np.array_equal(found["points"], cloud.points[:20])
    assert [parts[tuple(point)] for point in found["points"].tolist()] == found["part"].tolist()


def test_all_points_are_judged_by_the_nearest_of_those_that_models_get(clouds: PackedClouds) -> None:
    split, cloud = PointSplit(clouds, FIRST, parts=True), clouds.cloud(1)
    example = split[0, 1]
    assert example["part"].tolist() == (cloud.parts if cloud.parts is not None else np.empty(0)).tolist()
    distances = np.linalg.norm(cloud.points[:, None] - cloud.points[None, :20], axis=2)
    chosen = distances[np.arange(64), example["near"].numpy()]
    np.testing.assert_allclose(chosen, distances.min(axis=1), atol=1e-6)
    assert example["near"][:20].tolist() == list(range(20))
    batch = split.collate([split[0, index] for index in (1, 2)])
    assert batch["points"].shape == (2, 20, 3)
    assert [len(part) for part in batch["part"]] == [64, 64]
    assert batch["category"].tolist() == [1, 2]


def test_only_sampled_points_are_judged_on_request(clouds: PackedClouds) -> None:
    example = PointSplit(clouds, FIRST, parts=True, judged="sampled")[0, 0]
    assert example["near"].tolist() == list(range(20))
    assert len(example["part"]) == 20


def test_nearest_of_equal_points_is_the_first() -> None:
    points = np.zeros((3, 3), dtype=np.float32)
    points[2] = 1
    assert nearest(points, points).tolist() == [0, 0, 2]


def test_fingerprints_follow_points_and_settings(clouds: PackedClouds) -> None:
    split = PointSplit(clouds, FIRST)
    assert split.fingerprint() == PointSplit(clouds, FIRST).fingerprint()
    others = [
        PointSplit(clouds, sampled("first", 21)),
        split.take(np.array([0, 1])),
        PointSplit(clouds, FIRST, judged="sampled"),
    ]
    assert len({split.fingerprint(), *(other.fingerprint() for other in others)}) == 4
