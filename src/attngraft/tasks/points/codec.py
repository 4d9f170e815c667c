"""Files of point clouds as inputs of a trained model, without its data."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from attngraft.errors import DataError
from attngraft.files import user_path
from attngraft.tasks.codec import Codec
from attngraft.tasks.heads import mean_logits
from attngraft.tasks.points.clouds import Cloud, are_normals, check_cloud
from attngraft.tasks.points.formats import EXTENSIONS, SAMPLES, point_place, read_cloud
from attngraft.tasks.points.split import Sampling
from attngraft.tasks.points.voting import mean_probabilities


class PointsCodec(Codec):
    """Files of point clouds as inputs, and the probabilities of classes as outputs.

    Args:
        sampling: what of a cloud the model gets.
        classes: names of the classes.
        votes: see `voting.mean_probabilities`.
        activation: of the logits.
        any_normals: whether normals may have another length than 1 (`task.data.normals=true`).
    """

    takes = "point clouds"
    extensions = EXTENSIONS

    def __init__(
        self,
        sampling: Sampling,
        *,
        classes: Sequence[str],
        votes: int,
        activation: Literal["softmax", "sigmoid", "none"],
        any_normals: bool = False,
    ) -> None:
        self.sampling, self.labels, self.votes, self.activation = sampling, classes, votes, activation
        self.any_normals = any_normals

    def example_inputs(self, batch_size: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return random clouds (B, N, channels) in the unit ball."""
        return (example_clouds(self.sampling, batch_size),), {}

    def check(self, raw: str) -> None:
        read_points(raw, self.sampling, any_normals=self.any_normals)

    def encode(self, inputs: Sequence[str]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the clouds of files, (B, N, channels).

        Raises:
            DataError: a file cannot be read.
        """
        found = [read_points(raw, self.sampling, any_normals=self.any_normals)[0] for raw in inputs]
        return (torch.stack(found),), {}

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        """Return logits (B, classes), with votes of the mean probabilities."""
        if self.votes == 1:
            return mean_logits(model(*args), classes=len(self.labels))
        found = mean_probabilities(lambda points: self._probabilities(model(points)), args[0], votes=self.votes)
        return found.logit() if self.activation == "sigmoid" else found.log()

    def _probabilities(self, outputs: Any) -> Tensor:
        logits = mean_logits(outputs, classes=len(self.labels))
        return logits.sigmoid() if self.activation == "sigmoid" else logits.softmax(-1)

    def decode(self, outputs: Any) -> list[dict[str, float]]:
        """Return the probabilities of the classes by name."""
        return [dict(zip(self.labels, row, strict=True)) for row in self._probabilities(outputs).tolist()]


def example_clouds(sampling: Sampling, count: int) -> Tensor:
    """Return random clouds (count, N, channels) in the unit ball, with normals of norm 1."""
    values = torch.randn(count, sampling.points, sampling.channels)
    return torch.cat([part / part.norm(dim=2, keepdim=True) for part in values.split(3, dim=2)], dim=2)


def read_points(raw: str, sampling: Sampling, *, any_normals: bool = False) -> tuple[Tensor, np.ndarray]:
    """Read a file as data are read: the points that a model gets (N, channels), and all points (M, 3).

    Raises:
        DataError: the file cannot be used.
    """
    path = user_path(raw)
    if not path.exists():
        raise DataError(f"{raw}: no such file; give files of point clouds (.txt, .npy, .off, .ply, .pcd)")
    points, normals, _ = read_cloud(path, samples=max(SAMPLES, sampling.points))
    if sampling.normals and normals is None:
        raise DataError(f"{path}: has no normals, but the model was trained with them; add them")
    if normals is not None and sampling.normals and not any_normals and not are_normals(normals):
        raise DataError(
            f"{path}: the three values after the coordinates are no normals, because their length is not 1, but the model "
            "was trained with normals; replace them"
        )
    cloud = Cloud(name=path.name, points=points, normals=normals, parts=None, category=0)
    least = 2 if sampling.sample == "repeated" else sampling.points
    check_cloud(cloud, where=str(path), place=lambda index: point_place(path, index), least=least)
    values = sampling.values(cloud)
    chosen = sampling.choose_by_name(len(values), cloud.name)
    return torch.from_numpy(np.ascontiguousarray(values[chosen])), values[:, :3]
