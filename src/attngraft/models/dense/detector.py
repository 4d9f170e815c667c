"""Faster R-CNN, Mask R-CNN and Cascade Mask R-CNN around a grafted host, with a feature pyramid.

Sources: S. Ren et al., "Faster R-CNN", 2015; T.-Y. Lin et al., "Feature Pyramid Networks for Object Detection", 2017;
K. He et al., "Mask R-CNN", 2017; and `cascade`.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from attngraft.models.dense.cascade import CascadeRoIHeads
from attngraft.models.dense.levels import Levels, host_levels
from attngraft.models.dense.model import DenseModel, batch_norms, padded_size, prune
from attngraft.models.dense.roi_heads import BETA, BOX_SIDE, MASK_SIDE, HeadOptions, Stage, Targets

Head = Literal["faster_rcnn", "mask_rcnn", "cascade_mask_rcnn"]
Options = Literal["papers", "torchvision"]
_RATIOS = (0.5, 1.0, 2.0)


class Detector(DenseModel):
    """Images to boxes with classes, scores and masks; in training, to losses. Created by `detector`.

    Images are padded with zeros to the largest height and width of the batch, rounded up to multiples of 32. Neither hosts
    nor the pyramid mask the padding: in evaluation, detections depend on the size of the padded batch, though not on the
    contents of other images. Evaluate images one at a time for results that do not depend on the batch.
    """

    def __init__(
        self,
        host: nn.Module,
        levels: Levels,
        fpn: FeaturePyramidNetwork,
        rpn: RegionProposalNetwork,
        roi_heads: Stage | CascadeRoIHeads,
        *,
        canvas: Sequence[int] | None = None,
    ) -> None:
        super().__init__(host)
        self.canvas = canvas
        self.levels, self.fpn, self.rpn, self.roi_heads = levels, fpn, rpn, roi_heads

    def pyramid(self, images: Tensor) -> dict[str, Tensor]:
        """Return float32 maps of stride 4, 8, 16, 32 and 64 from padded images (B, C, H, W)."""
        maps = self.levels(self.host, images)
        found = self.fpn(OrderedDict((str(level), each) for level, each in enumerate(maps)))
        return {name: each.float() for name, each in found.items()}

    def forward(
        self, images: Sequence[Tensor] | Tensor, targets: Targets | None = None
    ) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Return losses in training and detections in evaluation.

        Args:
            images: normalized images (C, h, w) of any sizes, or a batch (B, C, H, W).
            targets: in training, for each image its `boxes` (G, 4) as x1, y1, x2, y2 in pixels, `labels` (G,) from 1 to K,
                and for heads with masks `masks` (G, h, w). An image may have no objects.

        Returns:
            In training, losses `loss_objectness`, `loss_rpn_box`, `loss_classifier`, `loss_box` and `loss_mask`; in the
            cascade the last three for each stage (`loss_box_0`), weighted. In evaluation, for each image its `boxes` (D, 4)
            in pixels, `labels` (D,) from 1 to K, `scores` (D,), and for heads with masks `masks` (D, 1, 28, 28), the
            probabilities inside of the boxes.

        Raises:
            ValueError: there are no targets in training.
        """
        sizes = [(image.shape[-2], image.shape[-1]) for image in images]
        height, width = padded_size(self.canvas or [max(sides) for sides in zip(*sizes, strict=True)])
        batch = torch.stack([F.pad(each, (0, width - each.shape[-1], 0, height - each.shape[-2])) for each in images])
        maps = self.pyramid(batch)
        proposals, losses = self.rpn(ImageList(batch, sizes), maps, targets)
        found, others = self.roi_heads(maps, proposals, sizes, targets)
        return {**losses, **others} if self.training else found


class FixedWork(nn.Module):
    """A detector's layers on fixed numbers of boxes and masks, on any device, to count their multiply-adds.

    Args:
        model: the detector.
        boxes: number of boxes of each stage.
        masks: number of masks of each stage.
    """

    def __init__(self, model: Detector, *, boxes: int = 1000, masks: int = 100) -> None:
        super().__init__()
        self.model, self.boxes, self.masks = model, boxes, masks

    def forward(self, images: Tensor) -> None:
        """Call every layer on images (B, C, H, W) whose sizes are multiples of 32."""
        maps = self.model.pyramid(images)
        self.model.rpn.head(list(maps.values()))
        for stage in (each for each in self.model.roi_heads.modules() if isinstance(each, Stage)):
            pooled = maps["0"].new_zeros(self.boxes, maps["0"].shape[1], BOX_SIDE, BOX_SIDE)
            stage.box_predictor(stage.box_head(pooled))
            if stage.has_mask():
                pooled = maps["0"].new_zeros(self.masks, maps["0"].shape[1], MASK_SIDE, MASK_SIDE)
                stage.mask_predictor(stage.mask_head(pooled))


class FloatRPNHead(RPNHead):
    """RPN head with float32 outputs."""

    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        logits, deltas = super().forward(x)
        return [each.float() for each in logits], [each.float() for each in deltas]


class Anchors(AnchorGenerator):
    """Anchors at multiples of the levels' strides, also for maps whose size is rounded up."""

    def grid_anchors(self, grid_sizes: list[Any], strides: list[list[Tensor]]) -> list[Tensor]:
        exact = [[torch.full_like(side, 4 << level) for side in sides] for level, sides in enumerate(strides)]
        found: list[Tensor] = super().grid_anchors(grid_sizes, exact)
        return found


class RPN(RegionProposalNetwork):
    """Region proposal network with smooth L1 of any beta, or L1 with a beta of 0.

    Args:
        kept: proposals kept after NMS in training.
    """

    def __init__(self, anchors: AnchorGenerator, *, width: int, kept: int, beta: float) -> None:
        head = FloatRPNHead(width, anchors.num_anchors_per_location()[0])
        before, after = {"training": 2000, "testing": 1000}, {"training": kept, "testing": 1000}
        super().__init__(anchors, head, 0.7, 0.3, 256, 0.5, before, after, 0.7)
        self.beta = beta

    def forward(
        self, images: ImageList, features: dict[str, Tensor], targets: Targets | None = None
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return proposals of each image, and losses in training."""
        boxes, losses = super().forward(images, features, targets)
        return boxes, {name.removesuffix("_reg"): each for name, each in losses.items()}

    def compute_loss(
        self, objectness: Tensor, pred_bbox_deltas: Tensor, labels: list[Tensor], regression_targets: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the losses of objectness and deltas of the sampled anchors."""
        chosen, others = (torch.where(torch.cat(each))[0] for each in self.fg_bg_sampler(labels))
        sampled = torch.cat([chosen, others])
        wanted = torch.cat(regression_targets)[chosen]
        box = F.smooth_l1_loss(pred_bbox_deltas[chosen], wanted, beta=self.beta, reduction="sum") / len(sampled)
        return F.binary_cross_entropy_with_logits(objectness.flatten()[sampled], torch.cat(labels)[sampled]), box


def detector(
    host: nn.Module,
    *,
    classes: int,
    head: Head,
    options: Options = "papers",
    width: int = 256,
    box_width: int = 1024,
    mask_layers: int = 4,
    samples: int = 512,
    anchors: Sequence[int] = (32, 64, 128, 256, 512),
    detections: int = 100,
    min_score: float = 0.05,
    nms: float = 0.5,
    canvas: Sequence[int] | None = None,
) -> Detector:
    """Build a detector around a host, whose classifier and other unused modules are removed.

    With `papers`, losses, matching and pooling are those of mmdetection: L1 for Faster and Mask R-CNN and GIoU for the
    cascade; aligned RoIAlign with an adaptive number of samples; in Faster and Mask R-CNN each object's best proposals
    matched to it; 1,000 proposals in training; no deltas and masks of the background. With `torchvision`, they are
    torchvision's, whose weights fit; hosts with batch norms, such as ResNets, then have no norms at the levels.

    Args:
        host: the host, grafted or not.
        classes: K, without the background.
        head: `faster_rcnn` (boxes), `mask_rcnn` or `cascade_mask_rcnn` (boxes and masks).
        options: `papers` or `torchvision`.
        width: channels of the pyramid and the mask head.
        box_width: width of the box head.
        mask_layers: number of convolutions of the mask head.
        samples: boxes per image on which the heads are trained, at most a quarter of them with an object.
        anchors: side of the anchors of each of the five levels, in pixels.
        detections: most detections of an image.
        min_score: detections of a lower score are dropped.
        nms: IoU above which the weaker of two boxes of a class is dropped.
        canvas: height and width to which images are padded, for hosts that take images of one size; None: see `Detector`.

    Raises:
        HostError: the host has no intermediate maps.
    """
    levels = host_levels(host)
    prune(host, [levels[-1].index])
    papers = options == "papers"
    neck = Levels(levels, norm=papers or not batch_norms(host))
    shared = HeadOptions(
        classes=classes,
        papers=papers,
        masks=head != "faster_rcnn",
        width=width,
        box_width=box_width,
        mask_layers=mask_layers,
        samples=samples,
        detections=detections,
        min_score=min_score,
        nms=nms,
    )
    cascade = head == "cascade_mask_rcnn"
    loss: Literal["l1", "smooth_l1"] = "l1" if papers and not cascade else "smooth_l1"
    grid = (Anchors if papers else AnchorGenerator)([(side,) for side in anchors], [_RATIOS] * len(anchors))
    return Detector(
        host,
        neck,
        FeaturePyramidNetwork(neck.channels, width, LastLevelMaxPool()),
        RPN(grid, width=width, kept=1000 if papers else 2000, beta=BETA[loss]),
        CascadeRoIHeads(shared) if cascade else Stage(shared, loss=loss, best_of_objects=papers),
        canvas=canvas,
    )
