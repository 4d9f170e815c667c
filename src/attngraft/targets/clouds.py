"""Models of point clouds, from runs and exported folders."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from attngraft.targets.folders import open_folder, wrong_input
from attngraft.tasks.points.codec import PointsCodec
from attngraft.tasks.points.part_codec import PartsCodec
from attngraft.training.evaluate import Weights


@dataclass(frozen=True, kw_only=True)
class CloudHandle:
    """A model of point clouds in evaluation mode, and its reading of files."""

    name: str
    model: nn.Module
    codec: PointsCodec | PartsCodec
    description: str  #: host with the arguments that change it, graft and parameters

    def inputs(self, cloud: str) -> tuple[Tensor, ...]:
        """Return the model's inputs for a file (`CATEGORY=FILE` for parts): points (1, N, channels) first.

        Raises:
            DataError: the file cannot be used.
        """
        device = next(self.model.parameters(), torch.zeros(())).device
        found: tuple[Tensor, ...] = send_to_device(self.codec.encode([cloud])[0], device)
        return found

    def predict(self, inputs: tuple[Any, ...]) -> Mapping[str, float] | list[int]:
        """Return the probabilities of the classes, or the part of each point, as `attngraft predict` does."""
        with torch.inference_mode():
            (found,) = self.codec.decode(self.codec.run(self.model, inputs, {}))
        return found


def open_cloud_handle(
    where: str,
    *,
    name: str | None = None,
    weights: Weights = "last",
    trust_code: bool = False,
    allow_download: bool = False,
) -> CloudHandle:
    """Open a run's folder or an exported folder, whose model takes point clouds.

    Args:
        where: the folder.
        name: display name; default: the name of the run or of the folder.
        weights, trust_code, allow_download: see `folders.open_folder`.

    Raises:
        UsageError: `where` is not such a folder, or its model does not take point clouds.
        TrainingError, ExportError, HostError: the model cannot be opened.
    """
    opened = open_folder(where, option="--cloud", weights=weights, trust_code=trust_code, allow_download=allow_download)
    if not isinstance(opened.codec, PointsCodec | PartsCodec):
        raise wrong_input(where, opened.codec, "point clouds")
    return CloudHandle(name=name or opened.name, model=opened.model, codec=opened.codec, description=opened.description)
