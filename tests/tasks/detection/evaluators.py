"""Random scenes with detections, and their scores by other evaluators."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngraft.models.dense.rle import mask_api
from attngraft.results.records import RecordTable
from attngraft.tasks.detection.metrics import image_statistics
from attngraft.tasks.detection.objects import Objects

SIDE = 160
NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")  #: of the first six numbers of COCO's summary


@dataclass(frozen=True, kw_only=True)
class Scene:
    """An image's objects, and its detections by descending scores."""

    objects: Objects
    scores: np.ndarray
    labels: np.ndarray
    boxes: np.ndarray
    masks: list[Any]

    def statistics(self) -> dict[str, np.ndarray]:
        return image_statistics(self.scores, self.labels, self.boxes, self.masks, self.objects)


def ellipse(box: np.ndarray) -> Any:
    """The mask of an ellipse in a box."""
    left, top, right, bottom = box
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    inside = ((x - (left + right) / 2) / (right - left)) ** 2 + ((y - (top + bottom) / 2) / (bottom - top)) ** 2 <= 0.25
    return mask_api().encode(np.asfortranarray(inside, dtype=np.uint8))


def scene(random: np.random.Generator, *, classes: int = 3, objects: int = 8, spread: float = 0.1) -> Scene:
    """Objects of all sizes, some of them crowds, and zero to three detections of each, some of another class."""
    sides = np.exp(random.uniform(np.log(6), np.log(150), (objects, 2)))
    corner = random.uniform(0, SIDE - sides)
    boxes = np.concatenate([corner, corner + sides], axis=1)
    labels, crowd = random.integers(classes, size=objects), random.random(objects) < 0.1
    masks = [ellipse(box) for box in boxes]
    repeats = random.integers(0, 4, objects)
    found = np.repeat(boxes, repeats, axis=0)
    found += random.normal(0, spread, found.shape) * np.tile(found[:, 2:] - found[:, :2], 2)
    found[:, 2:] = np.maximum(found[:, 2:], found[:, :2] + 2)
    guessed = np.repeat(labels, repeats)
    wrong = random.random(len(guessed)) < 0.2
    guessed[wrong] = random.integers(classes, size=wrong.sum())
    return Scene(
        objects=Objects(
            boxes=boxes,
            labels=labels,
            crowd=crowd,
            areas=np.array(mask_api().area(masks) if objects else [], dtype=float),
            masks=masks,
        ),
        scores=np.sort(random.random(len(found)).astype(np.float32))[::-1],
        labels=guessed,
        boxes=found,
        masks=[ellipse(box) for box in found],
    )


def scenes(seed: int, number: int = 6, **options: Any) -> list[Scene]:
    random = np.random.default_rng(seed)
    return [scene(random, **options) for _ in range(number)]


def table_of(found: Sequence[Scene]) -> RecordTable:
    rows = [each.statistics() for each in found]
    names = np.arange(len(rows)).astype(str)
    return RecordTable(names=names, columns={name: [row[name] for row in rows] for name in rows[0]})


def as_coco(found: Sequence[Scene], classes: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The scenes as COCO annotations and results, with category ids from 10."""
    annotations, results = [], []
    for image, each in enumerate(found, start=1):
        rows = zip(
            each.objects.boxes, each.objects.labels, each.objects.crowd, each.objects.areas, each.objects.masks or (),
            strict=True,
        )  # fmt: skip
        for box, label, crowd, area, mask in rows:
            annotations.append({
                "id": len(annotations) + 1, "image_id": image, "category_id": 10 + int(label), "iscrowd": int(crowd),
                "bbox": [*box[:2], *(box[2:] - box[:2])], "area": float(area), "segmentation": mask,
            })  # fmt: skip
        for box, label, score, mask in zip(each.boxes, each.labels, each.scores, each.masks, strict=True):
            results.append({
                "image_id": image, "category_id": 10 + int(label), "score": float(score),
                "bbox": [*box[:2], *(box[2:] - box[:2])], "segmentation": mask,
            })  # fmt: skip
    images = [{"id": number + 1, "width": SIDE, "height": SIDE} for number in range(len(found))]
    categories = [{"id": 10 + label, "name": str(label)} for label in range(classes)]
    return {"images": images, "categories": categories, "annotations": annotations}, results


def coco_scores(
    dataset: dict[str, Any],
    results: Sequence[dict[str, Any]],
    kind: str,
    *,
    faster: bool = True,
    most: int = 100,
) -> np.ndarray:
    """COCO's summary of results by faster-coco-eval or by pycocotools; `kind` is bbox, segm or boundary.

    pycocotools prints an AP of -1 for `most` other than 100, so it is evaluated at 100 then.
    """
    if faster:
        from faster_coco_eval import COCO
        from faster_coco_eval import COCOeval_faster as Evaluation
    else:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval as Evaluation
    unused = "segmentation" if kind == "bbox" else "bbox"
    truth = COCO()
    truth.dataset = copy.deepcopy(dataset)
    truth.createIndex()
    found = truth.loadRes(
        [{key: value for key, value in copy.deepcopy(each).items() if key != unused} for each in results]
    )
    evaluation = Evaluation(truth, found, kind)
    evaluation.params.maxDets = [1, 10, most]
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return np.asarray(evaluation.stats)
