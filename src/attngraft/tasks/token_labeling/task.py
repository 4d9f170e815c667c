"""Token labeling as the engine's task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.errors import ConfigError, TrainingError
from attngraft.models.token_mixing import ARGUMENT
from attngraft.tasks.classification import Classification
from attngraft.tasks.images.loading import read_task
from attngraft.tasks.task import Batch, TaskData
from attngraft.tasks.teaching import Teaching
from attngraft.tasks.token_labeling.config import TokenLabelingConfig
from attngraft.tasks.token_labeling.losses import TokenLabelLoss
from attngraft.tasks.token_labeling.maps import LabelMaps
from attngraft.tasks.token_labeling.split import with_maps
from attngraft.tasks.token_labeling.targets import grid_of, map_targets


class TokenLabeling(Classification):
    """`Classification` in which every patch learns a label, too, and the model mixes tokens of two images (MixToken).

    It needs a host that mixes tokens and gives logits for its patches: VOLO, ELSA-VOLO. Evaluation is classification's. A
    training batch may also have `maps` and `shown` (`split.MappedSplit`).
    """

    name = "token_labeling"
    config: TokenLabelingConfig

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, seed: int) -> TokenLabeling:
        return cls(read_task(TokenLabelingConfig, config), seed=seed)

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        data, labels = super().load(model_data_config=model_data_config), self.config.token_labels
        train = data.train
        if labels.maps is not None:
            train = with_maps(train, LabelMaps(labels.maps, classes=self._classes))  # type: ignore[arg-type]
        return replace(data, train=train, model_args={**data.model_args, ARGUMENT: True})

    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """`loss`, of the class token's logits and the patches'."""
        labels = self.config.token_labels
        logits, patches, box = _in_training(outputs)
        loss = TokenLabelLoss(labels.dense_weight, labels.class_weight, labels.with_ground_truth)
        return {"loss": loss(logits, patches, self._targets(batch, patches.shape[1]), box=box)}

    def teaching(self, *, model_data_config: Mapping[str, Any]) -> Teaching:
        raise ConfigError(
            "task token_labeling: label maps stand in for a teacher; leave the recipe's section distill out, or take the "
            "task classification"
        )

    def _targets(self, batch: Batch, patches: int) -> Tensor:
        """(B, classes), or with maps (B, classes, 2 + N); both smoothed.

        The authors' smoothing makes the sum of a map's targets larger than 1 by smoothing / classes; here it is 1.
        """
        target, smoothing = F.one_hot(batch["target"], self._classes).float(), self.config.loss.smoothing
        if "maps" in batch:
            grid = grid_of(patches, tuple(batch["image"].shape[-2:]))
            of_maps = map_targets(batch["maps"], batch["shown"], grid=grid, classes=self._classes)
            target = torch.cat([target.unsqueeze(2), of_maps], 2)
        return target * (1 - smoothing) + smoothing / self._classes


def _in_training(outputs: Any) -> tuple[Tensor, Tensor, tuple[int, int, int, int]]:
    if not (isinstance(outputs, tuple | list) and len(outputs) == 3):
        raise TrainingError(
            "token labeling needs a host that gives logits for its class token and its patches and the box of mixed tokens; "
            "this one does not (VOLO and ELSA-VOLO do)"
        )
    logits, patches, box = outputs
    return logits.float(), patches.float(), box
