"""Training steps of detectors, masks as run-length encodings, and average precision.

    python bench/detection.py --threads 1 --out benchmarks/detection.json

Steps of Mask R-CNN on Swin-T are timed relative to torchvision's `MaskRCNN` around the same host and pyramid, whose losses
must be equal with torchvision's options, and with grafts relative to the plain host. The cascade's step relative to Mask
R-CNN's should follow their multiply-adds, forward and backward. Encodings are timed relative to torchvision's pasted masks,
encoded, and the evaluation relative to pycocotools, if that is installed; both must be equal before.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from typing import Any

import faster_coco_eval.core.mask as masks_api
import numpy as np
import timm
import torch
from steps import grafted
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.roi_heads import paste_masks_in_image

from attngraft.bench.command import finish, options
from attngraft.bench.result import Measurement, check_outputs, current_setting, measurement
from attngraft.models.dense import Detector, detector, masks_to_rle
from attngraft.results.records import RecordTable
from attngraft.tasks.detection.metrics import image_statistics, measure
from attngraft.tasks.detection.objects import Objects
from attngraft.timing import paired_ratio, several

try:
    import pycocotools.coco as coco
    import pycocotools.cocoeval as cocoeval
except ImportError:  # only compared with
    coco = cocoeval = None

CLASSES = 80
NARROW = {"width": 64, "box_width": 256}  #: of the cascade and what it is compared with
ANCHORS = (8, 16, 32, 64, 128)
OBJECTS, PROPOSALS, IMAGES = 4, 1000, 50
GRAFTS = {"cb": 1.03, "bisa@first:2": 1.20}


def host() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(
        "swin_tiny_patch4_window7_224", num_classes=0, strict_img_size=False, always_partition=True, drop_path_rate=0.0
    )


def batch_of(side: int) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Return an image with a few objects."""
    torch.manual_seed(0)
    corners = torch.rand(OBJECTS, 2) * side / 2
    boxes = torch.cat([corners, corners + side / 8 + torch.rand(OBJECTS, 2) * side / 4], dim=1)
    masks = torch.zeros(OBJECTS, side, side, dtype=torch.uint8)
    for mask, (x1, y1, x2, y2) in zip(masks, boxes.long().tolist(), strict=True):
        mask[y1:y2, x1:x2] = 1
    labels = torch.randint(1, CLASSES + 1, (OBJECTS,))
    return [torch.randn(3, side, side)], [{"boxes": boxes, "labels": labels, "masks": masks}]


def model_of(around: nn.Module, **arguments: Any) -> Detector:
    torch.manual_seed(0)
    return detector(around, classes=CLASSES, anchors=ANCHORS, **{"head": "mask_rcnn", **arguments})


class Backbone(nn.Module):
    """Host, levels and pyramid of a detector, as torchvision's detectors call them."""

    def __init__(self, model: Detector) -> None:
        super().__init__()
        self.host, self.levels, self.fpn, self.out_channels = model.host, model.levels, model.fpn, 256

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.fpn({str(level): each for level, each in enumerate(self.levels(self.host, images))})


def torchvisions(like: Detector, side: int) -> MaskRCNN:
    """Return torchvision's Mask R-CNN with the same weights, on a host and pyramid of its own."""
    model = model_of(host(), options="torchvision")
    theirs = MaskRCNN(
        Backbone(model),
        CLASSES + 1,
        rpn_anchor_generator=model.rpn.anchor_generator,
        image_mean=[0.0] * 3,
        image_std=[1.0] * 3,
        min_size=side,
        max_size=side,
        _skip_resize=True,
    )
    renamed = {
        name if name.startswith(("rpn.", "roi_heads.")) else f"backbone.{name}": each
        for name, each in like.state_dict().items()
    }
    theirs.load_state_dict(renamed)
    return theirs


def losses_of(model: nn.Module, batch: tuple[Any, Any]) -> Tensor:
    """Return the sum of the losses, with the same samples at every call."""
    torch.manual_seed(0)
    return torch.stack(list(model(*batch).values())).sum()


def step_of(model: nn.Module, batch: tuple[Any, Any]) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        losses_of(model, batch).backward()
        optimizer.step()

    return step


def with_proposals(model: Detector, boxes: list[Tensor]) -> Detector:
    """Replace the model's proposals, which it still computes."""
    filtered = model.rpn.filter_proposals
    model.rpn.filter_proposals = lambda *given: (boxes, filtered(*given)[1])
    return model


def multiply_adds(step: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops() // 2


def steps(image: int, pairs: int) -> list[Measurement]:
    batch = batch_of(image)
    plain = model_of(host()).train()
    ours = model_of(host(), options="torchvision").train()
    theirs = torchvisions(ours, image).train()
    check_outputs(losses_of(ours, batch), losses_of(theirs, batch), what="Mask R-CNN's losses", rtol=1e-4)
    candidates = {"torchvision": step_of(ours, batch), "papers": step_of(plain, batch)}
    found = several(step_of(theirs, batch), candidates, pairs=pairs)
    what = "Mask R-CNN on Swin-T, the {} options: training step over torchvision's Mask R-CNN"
    lines = [
        measurement(what.format("torchvision"), found["torchvision"], bar=1.02),
        measurement(what.format("papers'"), found["papers"], bar=None),
    ]
    # grafts change the proposals, and with them the number of masks; both models get the same
    boxes = [torch.cat([torch.rand(PROPOSALS, 2) * image / 2, image / 2 + torch.rand(PROPOSALS, 2) * image / 2], dim=1)]
    of_plain = step_of(with_proposals(plain, boxes), batch)
    for spec, bar in GRAFTS.items():
        changed = step_of(with_proposals(model_of(grafted(host(), spec)), boxes), batch)
        what = f"Mask R-CNN on Swin-T with {spec}: training step over the plain one"
        lines.append(measurement(what, paired_ratio(of_plain, changed, pairs=pairs), bar=bar))
    return lines


def cascade(image: int, pairs: int) -> Measurement:
    """Time the cascade's step, relative to Mask R-CNN's; the bar is 1.15 of the ratio of their multiply-adds."""
    batch = batch_of(image)
    mask, three = (step_of(model_of(host(), head=head, **NARROW), batch) for head in ("mask_rcnn", "cascade_mask_rcnn"))
    ratio = multiply_adds(three) / multiply_adds(mask)
    what = f"Cascade Mask R-CNN over Mask R-CNN, training step ({ratio:.2f} times the multiply-adds)"
    return measurement(what, paired_ratio(mask, three, pairs=pairs), bar=1.15 * ratio)


def detections(count: int, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    low = torch.rand(count, 1, 4, 4)
    masks = nn.functional.interpolate(low, (28, 28), mode="bilinear")
    height, width = size
    corners = torch.rand(count, 2) * torch.tensor([width, height]) * 0.8
    ends = corners + torch.rand(count, 2) * torch.tensor([width, height]) * 0.4 + 1
    return masks, torch.cat([corners, ends.minimum(torch.tensor([width, height]))], dim=1)


def encodings(size: tuple[int, int], count: int, pairs: int) -> Measurement:
    masks, boxes = detections(count, size)

    def pasted() -> list[Any]:
        planes = paste_masks_in_image(masks, boxes, size)[:, 0] > 0.5
        return [masks_api.encode(np.asfortranarray(plane.numpy().view(np.uint8))) for plane in planes]

    def ours() -> list[Any]:
        return masks_to_rle(masks, boxes, size)

    if ours() != pasted():
        raise SystemExit("the encodings differ from those of pasted masks")
    what = f"{count} masks as run-length encodings over torchvision's pasted masks, encoded"
    return measurement(what, paired_ratio(pasted, ours, pairs=pairs), bar=0.1)


def objects(images: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return annotations and detections of images with 10 and 50 objects, as boxes and masks."""
    drawn, size = np.random.default_rng(0), (120, 160)
    truth: dict[str, Any] = {
        "images": [{"id": image, "height": size[0], "width": size[1]} for image in range(images)],
        "categories": [{"id": label, "name": str(label)} for label in range(1, 11)],
        "annotations": [],
    }
    found = []
    for image in range(images):
        for index in range(60):
            x, y = drawn.uniform(0, 100), drawn.uniform(0, 70)
            width, height = drawn.uniform(4, 60), drawn.uniform(4, 50)
            plane = np.zeros(size, dtype=np.uint8, order="F")
            plane[int(y) : int(y + height), int(x) : int(x + width)] = 1
            rle = masks_api.encode(plane)
            each = {"image_id": image, "category_id": int(drawn.integers(1, 11)), "bbox": [x, y, width, height]}
            each |= {"segmentation": {**rle, "counts": rle["counts"].decode()}, "area": width * height, "iscrowd": 0}
            if index < 10:
                truth["annotations"].append({**each, "id": len(truth["annotations"]) + 1})
            else:
                found.append({**each, "score": float(drawn.uniform())})
    return truth, found


def average_precision(images: int, pairs: int) -> Measurement:
    """Time matching and the average precision of boxes and masks; reading the annotations is not timed.

    Ours computes all its metrics; pycocotools twelve numbers for each kind.
    """
    truth, found = objects(images)
    read = coco.COCO()
    read.dataset = truth
    with contextlib.redirect_stdout(io.StringIO()):
        read.createIndex()
        detected = {
            kind: read.loadRes([{key: value for key, value in each.items() if key != other} for each in found])
            for kind, other in {"bbox": "segmentation", "segm": "bbox"}.items()
        }

    def theirs() -> list[float]:
        stats = []
        with contextlib.redirect_stdout(io.StringIO()):
            for kind, results in detected.items():
                evaluator = cocoeval.COCOeval(read, results, kind)
                evaluator.evaluate()
                evaluator.accumulate()
                evaluator.summarize()
                stats += [float(each) for each in evaluator.stats[:3]]
        return stats

    inputs = []
    for image in range(images):
        of_image = [each for each in truth["annotations"] if each["image_id"] == image]
        ranked = sorted((each for each in found if each["image_id"] == image), key=lambda each: -each["score"])
        boxes, labels, masks, areas = arrays(of_image)
        annotated = Objects(boxes=boxes, labels=labels, crowd=np.zeros(len(labels), bool), areas=areas, masks=masks)
        boxes, labels, masks, _ = arrays(ranked)
        inputs.append((np.array([each["score"] for each in ranked]), labels, boxes, masks, annotated))

    def ours() -> list[float]:
        rows = [image_statistics(*each, boundaries=False) for each in inputs]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        values = measure(RecordTable(names=np.arange(images), columns=columns), classes=10).values
        return [values[f"{kind}_ap{at}"] for kind in ("box", "mask") for at in ("", "50", "75")]

    check_outputs(ours(), theirs(), what="average precision", rtol=0, atol=1e-9)
    what = "average precision of boxes and masks over pycocotools"
    return measurement(what, paired_ratio(theirs, ours, pairs=pairs), bar=0.5)


def arrays(entries: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray, list[Any], np.ndarray]:
    """Return boxes, labels, masks and areas of annotations or detections."""
    boxes = np.array([each["bbox"] for each in entries])
    boxes[:, 2:] += boxes[:, :2]
    labels = np.array([each["category_id"] - 1 for each in entries])
    return boxes, labels, [each["segmentation"] for each in entries], np.array([each["area"] for each in entries])


def main() -> int:
    parser = options("Training steps of detectors, encodings of masks, and average precision.", pairs=30)
    parser.add_argument("--image", type=int, default=128, help="side of the image of a step")
    parser.add_argument("--size", type=int, nargs=2, default=(800, 1333), help="height and width of encoded masks")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's default if not given")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    setting, pairs = current_setting("cpu"), arguments.pairs
    lines = steps(arguments.image, pairs)
    lines.append(cascade(arguments.image, pairs))
    lines.append(encodings(tuple(arguments.size), 100, pairs))
    if coco is None:
        print("skipped: average precision; pip install pycocotools", file=sys.stderr)
    else:
        lines.append(average_precision(IMAGES, pairs))
    result = setting.result(
        "Detection",
        settings={
            "image": arguments.image,
            "size": list(arguments.size),
            "pairs": pairs,
            "threads": torch.get_num_threads(),
        },
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
