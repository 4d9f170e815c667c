"""Files of point clouds as inputs of a model of parts, without its data."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attngraft.errors import DataError
from attngraft.suggest import did_you_mean, shortened
from attngraft.tasks.codec import Codec
from attngraft.tasks.points.codec import example_clouds, read_points
from attngraft.tasks.points.split import Sampling
from attngraft.tasks.points.voting import mean_probabilities


class PartsCodec(Codec):
    """`CATEGORY=FILE` as inputs, and the parts of the points that the model gets as outputs.

    Args:
        sampling: what of a cloud the model gets.
        classes: names of the categories.
        parts: numbers of the parts of each category.
        votes: see `voting.mean_probabilities`.
        any_normals: see `PointsCodec`.
    """

    takes = "point clouds"

    def __init__(
        self,
        sampling: Sampling,
        *,
        classes: Sequence[str],
        parts: Sequence[Sequence[int]],
        votes: int,
        any_normals: bool = False,
    ) -> None:
        self.sampling, self.classes, self.parts, self.votes = sampling, list(classes), parts, votes
        self.any_normals = any_normals

    def example_inputs(self, batch_size: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return random clouds (B, N, channels), and categories (B,)."""
        categories = torch.arange(batch_size) % len(self.classes)
        return (example_clouds(self.sampling, batch_size), categories), {}

    def check(self, raw: str) -> None:
        self._read(raw)

    def encode(self, inputs: Sequence[str]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the clouds of files (B, N, channels), and their categories (B,).

        Raises:
            DataError: a file cannot be read, or its category is not given.
        """
        found = [self._read(raw) for raw in inputs]
        return (torch.stack([points for points, _ in found]), torch.tensor([category for _, category in found])), {}

    def _read(self, raw: str) -> tuple[Tensor, int]:
        category, _, path = raw.partition("=")
        if len(self.classes) == 1 and not path:
            category, path = self.classes[0], raw
        if category not in self.classes or not path:
            near = did_you_mean(category, self.classes) if path else ""
            raise DataError(
                f"{raw}: give CATEGORY=FILE, with the category of the shape{near}: {shortened(self.classes, 20)}"
            )
        points, _ = read_points(path, self.sampling, any_normals=self.any_normals)
        return points, self.classes.index(category)

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        """Return probabilities (B, N, parts) of all parts, by one pass or several votes."""
        points, category = args
        return mean_probabilities(lambda x: model(x, category).float().softmax(-1), points, votes=self.votes)

    def decode(self, outputs: Any) -> list[list[int]]:
        """Return the part of each point."""
        found: Tensor = outputs
        return [list(map(int, np.asarray(row))) for row in found.argmax(-1).cpu().numpy()]
