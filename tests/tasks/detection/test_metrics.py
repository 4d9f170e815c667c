"""Average precision: equal to other evaluators, and under resampling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.models.dense.rle import mask_api
from attngraft.tasks.detection.matching import THRESHOLDS
from attngraft.tasks.detection.metrics import METRICS, kinds_of_best, measure
from attngraft.tasks.detection.objects import Objects
from tests.tasks.detection.evaluators import NAMES, Scene, as_coco, coco_scores, scenes, table_of

CLASSES = 3


def values_of(found: list[Scene], classes: int = CLASSES) -> dict[str, float]:
    return dict(measure(table_of(found), classes=classes).values)


def without_detections(each: Scene) -> Scene:
    return Scene(objects=each.objects, scores=np.zeros(0), labels=np.zeros(0, int), boxes=np.zeros((0, 4)), masks=[])


def perfect(each: Scene) -> Scene:
    counted = ~each.objects.crowd
    masks = [mask for mask, kept in zip(each.objects.masks or (), counted, strict=True) if kept]
    scores = np.linspace(1, 0.5, counted.sum())
    boxes, labels = each.objects.boxes[counted], each.objects.labels[counted]
    return Scene(objects=each.objects, scores=scores, labels=labels, boxes=boxes, masks=masks)


@pytest.mark.parametrize("faster", [True, False], ids=["faster-coco-eval", "pycocotools"])
@pytest.mark.parametrize("seed", range(3))
def test_equals_other_evaluators(seed: int, faster: bool) -> None:
    pytest.importorskip("faster_coco_eval" if faster else "pycocotools")
    found = scenes(seed)
    dataset, results = as_coco(found, CLASSES)
    values = values_of(found)
    for kind, ours in {"bbox": "box", "segm": "mask"}.items():
        theirs = coco_scores(dataset, results, kind, faster=faster)
        assert [values.get(f"{ours}_{name}", -1) for name in NAMES] == pytest.approx(theirs[:6], abs=1e-12)
        assert values[f"{ours}_ar"] == pytest.approx(theirs[8], abs=1e-12)
    if faster:
        assert values["boundary_ap"] == pytest.approx(coco_scores(dataset, results, "boundary")[0], abs=1e-12)


def test_two_hundred_detections_of_an_image() -> None:
    found = scenes(7, 2, objects=130, spread=0.05)
    assert max(len(each.scores) for each in found) > 150
    dataset, results = as_coco(found, CLASSES)
    assert values_of(found)["mask_ap"] == pytest.approx(coco_scores(dataset, results, "segm", most=200)[0], abs=1e-12)


def test_equals_an_evaluation_of_the_resampled_images() -> None:
    found = scenes(1)
    measured = measure(table_of(found), classes=CLASSES)
    random = np.random.default_rng(0)
    drawn = random.integers(len(found), size=(5, len(found)))
    counts = np.stack([np.bincount(row, minlength=len(found)) for row in drawn]).astype(float)
    for row, value in zip(drawn, measured.statistics["box_ap"].value(counts), strict=True):
        again = coco_scores(*as_coco([found[index] for index in row], CLASSES), "bbox")
        assert value == pytest.approx(again[0], abs=1e-12)
    for name, statistic in measured.statistics.items():
        again = values_of([found[index] for index in drawn[0]]).get(name, np.nan)
        assert statistic.value(counts[:1])[0] == pytest.approx(again, abs=1e-12, nan_ok=True), name
        assert statistic.take(drawn[0]).point == pytest.approx(again, abs=1e-12, nan_ok=True), name


def test_perfect_shuffled_empty() -> None:
    found = scenes(2)
    best = values_of([perfect(each) for each in found])
    assert best == pytest.approx(dict.fromkeys(best, 1.0))
    nothing = values_of([without_detections(each) for each in found])
    assert nothing["box_ap"] == nothing["mask_ap50"] == nothing["box_ar"] == 0
    shuffled = [
        Scene(objects=one.objects, scores=other.scores, labels=other.labels, boxes=other.boxes, masks=other.masks)
        for one, other in zip(found, found[1:] + found[:1], strict=True)
    ]
    assert values_of(shuffled)["mask_ap"] < 0.2 * values_of(found)["mask_ap"]


def test_images_without_objects_count_false_detections() -> None:
    one = scenes(3, 1)[0]
    empty = Objects(
        boxes=np.zeros((0, 4)),
        labels=np.zeros(0, int),
        crowd=np.zeros(0, bool),
        areas=np.zeros(0),
        masks=[],
    )
    noise = Scene(objects=empty, scores=one.scores + 1, labels=one.labels, boxes=one.boxes, masks=one.masks)
    silent = without_detections(noise)
    assert values_of([one, silent])["mask_ap"] == values_of([one])["mask_ap"] > values_of([one, noise])["mask_ap"]
    assert np.isnan(values_of([noise])["mask_ap"])


def test_detections_inside_of_a_crowd_are_ignored() -> None:
    one = perfect(scenes(4, 1, objects=5)[0])
    objects = Objects(
        boxes=one.objects.boxes,
        labels=one.objects.labels,
        crowd=np.array([True, False, False, False, False]),
        areas=one.objects.areas,
        masks=one.objects.masks,
    )
    several = [0, 0, 0, 1, 2, 3, 4]  # three detections in the crowd
    masks = [(one.objects.masks or [])[index] for index in several]
    found = Scene(
        objects=objects,
        scores=np.linspace(1, 0.5, len(several)),
        labels=objects.labels[several],
        boxes=objects.boxes[several],
        masks=masks,
    )
    values = values_of([found])
    assert [values["mask_ap"], values["box_ap"]] == pytest.approx([1, 1])


def test_errors_of_the_best_detections() -> None:
    found = [perfect(each) for each in scenes(5, 3)]
    objects = sum(int((~each.objects.crowd).sum()) for each in found)
    kinds, number = kinds_of_best(table_of(found).columns)
    assert number == objects
    assert kinds.tolist() == [objects, 0, 0, 0, 0, 0]


def test_every_metric_has_a_label() -> None:
    assert values_of(scenes(6, 5)).keys() == METRICS.keys()
    assert len(THRESHOLDS) == 10


def test_equals_pycocotools_on_coco(shared: Path) -> None:
    pytest.importorskip("pycocotools")
    root = shared / "data/coco_small"
    dataset: dict[str, Any] = json.loads((root / "annotations/instances_val2017.json").read_text())
    sizes = {image["id"]: (image["height"], image["width"]) for image in dataset["images"]}
    ids = sorted(category["id"] for category in dataset["categories"])
    random, found = np.random.default_rng(0), []
    number = {key: index for index, key in enumerate(sorted(sizes), start=1)}
    for image in sorted(sizes):
        given = [each for each in dataset["annotations"] if each["image_id"] == image]
        masks = []
        for each in given:
            encoded = mask_api().frPyObjects(each["segmentation"], *sizes[image])
            masks.append(mask_api().merge(encoded) if isinstance(encoded, list) else encoded)
            each["segmentation"] = masks[-1]
            each["image_id"] = number[image]
        boxes = np.array([each["bbox"] for each in given], dtype=float).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        labels = np.array([ids.index(each["category_id"]) for each in given], dtype=int)
        objects = Objects(
            boxes=boxes,
            labels=labels,
            crowd=np.array([each["iscrowd"] for each in given], dtype=bool),
            areas=np.array([each["area"] for each in given], dtype=float),
            masks=masks,
        )
        moved = boxes + random.normal(0, 0.1, boxes.shape) * np.tile(boxes[:, 2:] - boxes[:, :2], 2)
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        scores = np.sort(random.random(len(moved)).astype(np.float32))[::-1]
        found.append(Scene(objects=objects, scores=scores, labels=labels, boxes=moved, masks=masks))
    results = [
        {
            "image_id": image,
            "category_id": ids[label],
            "score": float(score),
            "bbox": [*box[:2], *(box[2:] - box[:2])],
            "segmentation": mask,
        }
        for image, each in enumerate(found, start=1)
        for box, label, score, mask in zip(each.boxes, each.labels, each.scores, each.masks, strict=True)
    ]
    dataset["images"] = [{**each, "id": number[each["id"]]} for each in dataset["images"]]
    values = values_of(found, len(ids))
    for kind, ours in {"bbox": "box", "segm": "mask"}.items():
        theirs = coco_scores(dataset, results, kind, faster=False)
        assert [values[f"{ours}_{name}"] for name in NAMES] == pytest.approx(theirs[:6], abs=1e-12)
