"""Box and mask heads of detectors, on torchvision's `RoIHeads`.

Inside, classes and losses follow torchvision: class 0 is the background. Without predictions for the background (`papers`)
zeros stand for its deltas and masks. Logits, deltas and maps are float32, so that decoding, losses, NMS and RoIAlign are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection._utils import Matcher
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, maskrcnn_loss
from torchvision.ops import MultiScaleRoIAlign, clip_boxes_to_image, generalized_box_iou_loss, roi_align
from torchvision.ops.poolers import LevelMapper

from attngraft.models.dense.levels import STRIDES

BoxLoss = Literal["l1", "smooth_l1", "giou"]
BETA = {"l1": 0.0, "smooth_l1": 1 / 9}
GIOU_WEIGHT = 10.0
BOX_SIDE, MASK_SIDE = 7, 14
_IOU, _POSITIVE = 0.5, 0.25
_DELTA_WEIGHTS = (10.0, 10.0, 5.0, 5.0)  # 1 / (0.1, 0.1, 0.2, 0.2)

Maps = Mapping[str, Tensor]
Sizes = Sequence[tuple[int, int]]
Targets = Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """Settings that every stage shares; see `detector`."""

    classes: int
    papers: bool
    masks: bool
    width: int
    box_width: int
    mask_layers: int
    samples: int
    detections: int
    min_score: float
    nms: float


class RoIAlign(MultiScaleRoIAlign):
    """RoIAlign on the levels of stride 4, 8, 16 and 32, whatever the images' sizes.

    Args:
        side: of the pooled maps.
        aligned: subtract half a pixel, with as many samples as a cell has pixels; otherwise four samples, as torchvision.
    """

    def __init__(self, side: int, *, aligned: bool) -> None:
        super().__init__([str(level) for level in range(len(STRIDES))], side, 0 if aligned else 2)
        self.aligned = aligned
        self.levels = LevelMapper(2, 5)

    def forward(self, x: Maps, boxes: Sequence[Tensor], image_shapes: Sizes) -> Tensor:
        """Return (R, C, side, side) for the R boxes of all images."""
        levels = self.levels(list(boxes))
        indexed = torch.cat([F.pad(each, (1, 0), value=index) for index, each in enumerate(boxes)])
        first = x[self.featmap_names[0]]
        pooled = first.new_zeros(len(indexed), first.shape[1], *self.output_size)
        for level, (name, stride) in enumerate(zip(self.featmap_names, STRIDES, strict=True)):
            at = torch.where(levels == level)[0]
            pooled[at] = roi_align(
                x[name], indexed[at], self.output_size, 1 / stride, self.sampling_ratio, aligned=self.aligned
            )
        return pooled


class BoxPredictor(FastRCNNPredictor):
    """Logits (R, 1 + K) and deltas (R, 4 + 4 K); without `background`, its four deltas are 0."""

    def __init__(self, channels: int, classes: int, *, background: bool) -> None:
        super().__init__(channels, classes + 1)
        if not background:
            self.bbox_pred = nn.Linear(channels, 4 * classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits, deltas = super().forward(x)
        return logits.float(), F.pad(deltas.float(), (4 * logits.shape[1] - deltas.shape[1], 0))


class MaskPredictor(MaskRCNNPredictor):
    """Logits of masks (R, 1 + K, 2 side, 2 side); without `background`, those of class 0 are 0."""

    def __init__(self, channels: int, classes: int, *, background: bool) -> None:
        super().__init__(channels, channels, classes + background)
        self.missing = 0 if background else 1

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(super().forward(x).float(), (0, 0, 0, 0, self.missing, 0))


class BestOfObjects(Matcher):
    """Matches to the object of highest IoU, but first of all each object's best proposals to that object.

    Only objects with a best IoU of at least the threshold have such proposals; of several the last one has it.
    """

    def __init__(self, threshold: float) -> None:
        super().__init__(threshold, threshold, allow_low_quality_matches=True)

    def set_low_quality_matches_(self, matches: Tensor, all_matches: Tensor, match_quality_matrix: Tensor) -> None:
        best = match_quality_matrix.amax(dim=1, keepdim=True)
        chosen = (match_quality_matrix == best) & (best >= self.high_threshold)
        number = torch.arange(1, len(best) + 1, device=best.device)[:, None]  # of objects, from 1
        last = (chosen * number).amax(dim=0)
        matches[last > 0] = last[last > 0] - 1


class Stage(RoIHeads):
    """Box head and mask head on proposals: all of Faster and Mask R-CNN, one of three stages of the cascade.

    Args:
        options: settings that stages share.
        loss: loss of the boxes: L1 or smooth L1 (beta 1/9) of the deltas, or 10 x GIoU of the boxes.
        convolutions: four convolutions with batch norm and a linear layer instead of two linear layers.
        iou: least IoU of a proposal with its object.
        scale: divisor of the deltas' standard deviations (0.1, 0.1, 0.2, 0.2).
        best_of_objects: match with `BestOfObjects`.
    """

    def __init__(
        self,
        options: HeadOptions,
        *,
        loss: BoxLoss,
        convolutions: bool = False,
        iou: float = _IOU,
        scale: float = 1.0,
        best_of_objects: bool = False,
    ) -> None:
        width, background = options.width, not options.papers
        pool = partial(RoIAlign, aligned=options.papers)
        head: nn.Module = TwoMLPHead(width * BOX_SIDE**2, options.box_width)
        if convolutions:
            shape = (width, BOX_SIDE, BOX_SIDE)
            head = FastRCNNConvFCHead(shape, [width] * 4, [options.box_width], norm_layer=nn.BatchNorm2d)
        super().__init__(
            pool(BOX_SIDE),
            head,
            BoxPredictor(options.box_width, options.classes, background=background),
            iou,
            iou,
            options.samples,
            _POSITIVE,
            tuple(scale * weight for weight in _DELTA_WEIGHTS),
            options.min_score,
            options.nms,
            options.detections,
        )
        if best_of_objects:
            self.proposal_matcher = BestOfObjects(iou)
        if options.masks:
            self.mask_roi_pool = pool(MASK_SIDE)
            self.mask_head = MaskRCNNHeads(width, [width] * options.mask_layers, 1)
            self.mask_predictor = MaskPredictor(width, options.classes, background=background)
        self.loss = loss
        self.mask_shift = 0.5 if options.papers else 0.0

    def forward(
        self, features: Maps, proposals: list[Tensor], image_shapes: Sizes, targets: Targets | None = None
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Return detections in evaluation and losses in training."""
        if not self.training:
            found: tuple[list[dict[str, Tensor]], dict[str, Tensor]] = super().forward(
                features, proposals, image_shapes
            )
            return found
        losses, _ = self.learn(features, proposals, image_shapes, targets)
        return [], losses

    def predict(self, features: Maps, proposals: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, Tensor]:
        """Return logits and deltas for the proposals of all images."""
        logits, deltas = self.box_predictor(self.box_head(self.box_roi_pool(features, proposals, sizes)))
        return logits, deltas

    def learn(
        self, features: Maps, proposals: list[Tensor], sizes: Sizes, targets: Targets | None
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Return losses, and the sampled proposals moved by their deltas, without those that are objects' own boxes."""
        proposals, matched, labels, encoded = self.select_training_samples(proposals, targets)
        logits, deltas = self.predict(features, proposals, sizes)
        label, boxes, wanted = torch.cat(labels), torch.cat(proposals), torch.cat(encoded)
        positive = torch.where(label > 0)[0]
        given = deltas.unflatten(1, (-1, 4))[positive, label[positive]]
        losses = {
            "loss_classifier": F.cross_entropy(logits, label),
            "loss_box": self._box_loss(given, wanted[positive], boxes[positive]) / len(label),
        }
        if self.has_mask():
            kept = [torch.where(each > 0)[0] for each in labels]
            inside = [each[at] for each, at in zip(proposals, kept, strict=True)]
            outputs = self.mask_predictor(self.mask_head(self.mask_roi_pool(features, inside, sizes)))
            losses["loss_mask"] = maskrcnn_loss(
                outputs,
                [each - self.mask_shift for each in inside],
                [each["masks"] for each in targets or ()],
                [each["labels"] for each in targets or ()],
                [each[at] for each, at in zip(matched, kept, strict=True)],
            )
        refined = self.refine(logits, deltas, proposals, sizes, labels=label)
        return losses, [box[(own != 0).any(dim=1)] for box, own in zip(refined, encoded, strict=True)]

    def _box_loss(self, given: Tensor, wanted: Tensor, boxes: Tensor) -> Tensor:
        if self.loss != "giou":
            return F.smooth_l1_loss(given, wanted, beta=BETA[self.loss], reduction="sum")
        decoded = (self.box_coder.decode_single(each, boxes) for each in (given, wanted))
        return GIOU_WEIGHT * generalized_box_iou_loss(*decoded, reduction="sum")

    def refine(
        self, logits: Tensor, deltas: Tensor, proposals: Sequence[Tensor], sizes: Sizes, *, labels: Tensor | None = None
    ) -> list[Tensor]:
        """Return proposals moved by the deltas of their class: the true one if there is one, or the likeliest one."""
        chosen = logits[:, 1:].argmax(dim=1) + 1
        if labels is not None:
            chosen = torch.where(labels > 0, labels, chosen)
        at = torch.arange(len(chosen), device=chosen.device)
        moved = self.box_coder.decode_single(
            deltas.detach().unflatten(1, (-1, 4))[at, chosen], torch.cat(list(proposals))
        )
        parts = moved.split([len(each) for each in proposals])
        return [clip_boxes_to_image(each, size) for each, size in zip(parts, sizes, strict=True)]
