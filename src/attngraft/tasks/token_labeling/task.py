"""Token labeling: classification trained with a label per patch."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.errors import TrainingError
from attngraft.models.token_mixing import ARGUMENT, has_patch_logits
from attngraft.tasks.classification import Classification
from attngraft.tasks.task import Batch, TaskData
from attngraft.tasks.token_labeling.config import TokenLabelingConfig
from attngraft.tasks.token_labeling.losses import TokenLabelLoss, grid_of, map_targets
from attngraft.tasks.token_labeling.maps import LabelMaps, with_maps


class TokenLabeling(Classification):
    """`Classification` with patch labels in training, and mixing of tokens between images (MixToken).

    It requires a host that mixes tokens and returns logits for its patches: VOLO or ELSA-VOLO. Evaluation is the same as in
    `Classification`. A training batch may also have `maps` and `crop` (`maps.MappedSplit`).
    """

    name = "token_labeling"
    default_recipe = "elsa-volo-imagenet"
    hosts = ("volo_*", "elsa_volo_*")
    capabilities = Classification.capabilities - {"teacher"}
    config: TokenLabelingConfig
    config_class = TokenLabelingConfig

    @classmethod
    def refusal(cls, host: nn.Module, name: str) -> str:
        return "" if has_patch_logits(host) else "it has no logits for its patches (aux_head)"

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        data, labels = super().load(model_data_config=model_data_config), self.config.token_labels
        train = data.train
        if labels.maps is not None:
            train = with_maps(train, LabelMaps(labels.maps, classes=self._classes))  # type: ignore[arg-type]
        return replace(data, train=train, model_args={**data.model_args, ARGUMENT: True})

    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the `loss` of the class token's logits and the patches' logits."""
        if not (isinstance(outputs, tuple | list) and len(outputs) == 3):
            raise TrainingError(
                "token labeling requires a host that returns logits of the class token, logits of the patches, and the box "
                "of mixed tokens; use VOLO or ELSA-VOLO"
            )
        logits, patches, box = outputs
        labels = self.config.token_labels
        loss = TokenLabelLoss(labels.dense_weight, labels.class_weight, labels.with_ground_truth)
        return {"loss": loss(logits.float(), patches.float(), self._targets(batch, patches.shape[1]), box=box)}

    def _targets(self, batch: Batch, patches: int) -> Tensor:
        """Return smoothed targets, (B, classes), or with label maps (B, classes, 2 + N).

        With the authors' smoothing, the targets from a map sum to 1 + smoothing / classes; here they sum to 1.
        """
        target, smoothing = F.one_hot(batch["target"], self._classes).float(), self.config.loss.smoothing
        if "maps" in batch:
            grid = grid_of(patches, tuple(batch["image"].shape[-2:]))
            of_maps = map_targets(batch["maps"], batch["crop"], grid=grid, classes=self._classes)
            target = torch.cat([target.unsqueeze(2), of_maps], 2)
        return target * (1 - smoothing) + smoothing / self._classes
