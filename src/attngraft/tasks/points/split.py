"""Splits of point clouds: the points that a model gets, and the points that are judged."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from attngraft.models.points.operations import knn
from attngraft.tasks.points.augmentation import augmented
from attngraft.tasks.points.clouds import Cloud, normalize
from attngraft.tasks.points.config import PointAugmentConfig
from attngraft.tasks.points.packed import PackedClouds
from attngraft.tasks.seeding import generator
from attngraft.tasks.task import Batch, Split


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What of a cloud a model gets."""

    points: int
    sample: Literal["first", "random", "repeated"]
    normals: bool
    normalize: bool

    @property
    def channels(self) -> int:
        """Number of values of a point."""
        return 6 if self.normals else 3

    def values(self, cloud: Cloud) -> np.ndarray:
        """Return all points of a cloud, (N, channels)."""
        points = normalize(cloud.points) if self.normalize else cloud.points
        if self.normals and cloud.normals is not None:
            points = np.concatenate([points, cloud.normals], axis=1)
        return points

    def choose(self, count: int, random: np.random.Generator) -> np.ndarray:
        """Return the indices (points,) of the points that are used, of `count`."""
        if self.sample == "first":
            return np.arange(self.points)
        if self.sample == "repeated":
            return random.integers(count, size=self.points)
        return random.permutation(count)[: self.points]

    def choose_by_name(self, count: int, name: str) -> np.ndarray:
        """Return the indices of the points that are used in evaluation, which depend on the name of the cloud alone."""
        return self.choose(count, np.random.default_rng(zlib.crc32(name.encode("utf-8", "surrogateescape"))))


class PointSplit(Split):
    """Point clouds with classes, or with parts of their points.

    Args:
        clouds: the clouds.
        sampling: what of a cloud models get.
        parts: whether points have parts.
        augment: training augmentation, as a function of (seed, epoch, index); None: in evaluation, where the points of a
            cloud depend on its name alone.
        seed: seed of the augmentation and of random points in training.
        judged: with parts, in evaluation: the points that are judged (`PartTestConfig`).
    """

    def __init__(
        self,
        clouds: PackedClouds,
        sampling: Sampling,
        *,
        parts: bool = False,
        augment: PointAugmentConfig | None = None,
        seed: int = 0,
        judged: Literal["all", "sampled"] = "all",
    ) -> None:
        self.clouds, self.sampling, self.parts = clouds, sampling, parts
        self._augment, self._seed, self._judged = augment, seed, judged

    def take(self, indices: np.ndarray) -> PointSplit:
        """Return the split of some of the clouds."""
        options: dict[str, Any] = {"parts": self.parts, "augment": self._augment, "seed": self._seed}
        return PointSplit(self.clouds.take(indices), self.sampling, judged=self._judged, **options)

    def __len__(self) -> int:
        return len(self.clouds)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        """Return `points` (n, channels) and `target`; with parts, `category`, and in training `part` (n,).

        With parts, in evaluation: `part` (J,) of the judged points, and `near` (J,), the index of the point whose prediction
        each of them gets.
        """
        epoch, index = key
        cloud = self.clouds.cloud(index)
        values = self.sampling.values(cloud)
        if self._augment is not None:
            random = generator(self._seed, epoch, index)
            chosen = random.permutation(self.sampling.choose(len(values), random))
            found = augmented(values[chosen], self._augment, random)
        else:
            chosen = self.sampling.choose_by_name(len(values), cloud.name)
            found = values[chosen]
        example: dict[str, Any] = {"points": torch.from_numpy(np.ascontiguousarray(found))}
        if not self.parts or cloud.parts is None:
            return example | {"target": cloud.category}
        example["category"] = cloud.category
        if self._augment is not None or self._judged == "sampled":
            example["part"] = torch.from_numpy(cloud.parts[chosen])
            near = torch.arange(len(chosen))
        else:
            example["part"] = torch.from_numpy(cloud.parts)
            near = nearest(values[:, :3], found[:, :3])
        return example if self._augment is not None else example | {"near": near}

    def collate(self, examples: list[dict[str, Any]]) -> Batch:
        """Stack examples; judged points, whose numbers differ, are lists."""
        batch: dict[str, Any] = {"points": torch.stack([each["points"] for each in examples])}
        for name in ("target", "category"):
            if name in examples[0]:
                batch[name] = torch.tensor([each[name] for each in examples])
        if "part" in examples[0]:
            parts = [each["part"] for each in examples]
            batch["part"] = parts if "near" in examples[0] else torch.stack(parts)
        if "near" in examples[0]:
            batch["near"] = [each["near"] for each in examples]
        return batch

    def name(self, index: int) -> str:
        return self.clouds.names[index]

    def fingerprint(self) -> bytes:
        return hashlib.sha256(self.clouds.fingerprint() + repr((self.sampling, self._judged)).encode()).digest()


def nearest(points: np.ndarray, sampled: np.ndarray) -> torch.Tensor:
    """Return the index (N,) of the sampled point nearest to each of the points (N, 3)."""
    queries, stored = (torch.from_numpy(np.ascontiguousarray(each)).unsqueeze(0) for each in (points, sampled))
    return knn(queries, stored, 1)[0, :, 0]
