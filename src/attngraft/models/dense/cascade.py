"""Cascade Mask R-CNN: three stages of heads, each on the boxes of the one before.

Z. Cai and N. Vasconcelos, "Cascade R-CNN: High Quality Object Detection and Instance Segmentation", 2019.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torchvision.models.detection.roi_heads import maskrcnn_inference

from attngraft.models.dense.roi_heads import BoxLoss, HeadOptions, Maps, Sizes, Stage, Targets

IOUS = (0.5, 0.6, 0.7)  #: least IoU of a proposal with its object, by stage
SCALES = (1.0, 2.0, 3.0)  #: divisors of the deltas' standard deviations
WEIGHTS = (1.0, 0.5, 0.25)  #: of the stages' losses


class CascadeRoIHeads(nn.Module):
    """Stages with box and mask heads of their own.

    In training each stage samples from the boxes of the one before, detached. Detections have the boxes of the last stage,
    and class and mask probabilities averaged over the stages.

    Args:
        options: settings that stages share.
        stages: number of stages, three in the paper.
    """

    def __init__(self, options: HeadOptions, *, stages: int = len(IOUS)) -> None:
        super().__init__()
        loss: BoxLoss = "giou" if options.papers else "smooth_l1"
        self.stages = nn.ModuleList(
            Stage(options, loss=loss, convolutions=True, iou=iou, scale=scale)
            for iou, scale in zip(IOUS[:stages], SCALES[:stages], strict=True)
        )

    def forward(
        self, features: Maps, proposals: list[Tensor], image_shapes: Sizes, targets: Targets | None = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Return detections in evaluation and losses in training."""
        if not self.training:
            return self._detect(features, proposals, image_shapes), {}
        losses: dict[str, Tensor] = {}
        for index, (stage, weight) in enumerate(zip(self._stages, WEIGHTS, strict=False)):
            found, proposals = stage.learn(features, proposals, image_shapes, targets)
            losses |= {f"{name}_{index}": weight * each for name, each in found.items()}
        return [], losses

    @property
    def _stages(self) -> list[Stage]:
        return [cast(Stage, stage) for stage in self.stages]

    def _detect(self, features: Maps, proposals: list[Tensor], sizes: Sizes) -> list[dict[str, Tensor]]:
        stage, *later = self._stages
        logits, deltas = stage.predict(features, proposals, sizes)
        probabilities = [logits.softmax(dim=-1)]
        for following in later:
            proposals = stage.refine(logits, deltas, proposals, sizes)
            stage = following
            logits, deltas = stage.predict(features, proposals, sizes)
            probabilities.append(logits.softmax(dim=-1))
        mean = torch.stack(probabilities).mean(dim=0)
        boxes, scores, labels = stage.postprocess_detections(mean.log(), deltas, proposals, sizes)
        pooled = stage.mask_roi_pool(features, boxes, sizes)
        masks = [maskrcnn_inference(each.mask_predictor(each.mask_head(pooled)), labels) for each in self._stages]
        averaged = [torch.stack(each).mean(dim=0) for each in zip(*masks, strict=True)]
        found = zip(boxes, labels, scores, averaged, strict=True)
        return [dict(zip(("boxes", "labels", "scores", "masks"), each, strict=True)) for each in found]
