"""Report sections of detection: classes, kinds of errors, and precision beside that without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attngraft.results.measured import Measured
from attngraft.results.records import RecordTable
from attngraft.results.sections import Cell, Column, Section, Table
from attngraft.tasks.detection.floor import DESCRIPTION
from attngraft.tasks.detection.matching import KINDS
from attngraft.tasks.detection.metrics import FLOOR, METRICS, kinds_of_best, measure

_MISTAKES = ("duplicate", "wrong class", "localization", "background")
_FLOOR_METRICS = ("mask_ap", "mask_ap50", "mask_ap75", "box_ap", "box_ap50", "box_ap75")


def sections(
    predictions: Sequence[Mapping[str, Any]], *, classes: Sequence[str], objects: Sequence[int], detections: int
) -> list[Section]:
    """Return the AP of each class, the kinds of errors and the precision without training, as means over seeds.

    Args:
        predictions: columns of each seed's records.
        objects: number of training objects of each class.
        detections: most detections of an image.
    """
    measured = [measure(_table(each), classes=len(classes)) for each in predictions]
    main = "mask_ap" if "mask_ap" in measured[0].statistics else "box_ap"
    found = [_classes(measured, main, classes, objects, detections), _errors(predictions)]
    if f"{FLOOR}confidence" in predictions[0]:
        found.append(_floor(predictions[0], measured))
    return found


def _table(columns: Mapping[str, Any]) -> RecordTable:
    return RecordTable(names=np.arange(len(columns["confidence"])), columns=columns)


def _classes(
    measured: Sequence[Measured], main: str, classes: Sequence[str], objects: Sequence[int], detections: int
) -> Section:
    parts = [each.statistics[main].parts(np.ones((1, each.statistics[main].examples)))[0] for each in measured]
    label = METRICS[main].label
    rows: list[list[Cell]] = [
        [name, int(number), _cell(value)]
        for name, number, value in zip(classes, objects, np.mean(parts, axis=0), strict=True)
    ]
    columns = [
        Column(name="class", kind="text"),
        Column(name="training objects", kind="count", role="common"),
        Column(name=label, kind="share", role="compared", parts_of=main),
    ]
    note = (
        f"{label} over all images, at most {detections} detections of an image (maxDets), as a mean over seeds. "
        "Classes without objects have none."
    )
    return Section(name="classes", title="Classes", note=note, table=Table(columns=columns, rows=rows))


def _cell(value: float) -> Cell:
    return None if np.isnan(value) else float(value)


def _errors(predictions: Sequence[Mapping[str, Any]]) -> Section:
    shares = []
    for each in predictions:
        kinds, objects = kinds_of_best(each)
        number = dict(zip(KINDS, kinds / max(1, objects), strict=True))
        shares.append([number["right"], 1 - number["right"], *(number[name] for name in _MISTAKES)])
    names = ("right", "missed objects", *_MISTAKES)
    rows: list[list[Cell]] = [
        [name, float(share)] for name, share in zip(names, np.mean(shares, axis=0), strict=True)
    ]  # fmt: skip
    columns = [Column(name="", kind="text"), Column(name="per object", kind="share", role="compared")]
    note = (
        "The best detections of all images, as many as there are objects, at an IoU of 0.5, as a mean over seeds. A "
        "duplicate overlaps an object that a better detection has found, a detection of the wrong class an object of "
        "another class; localization: an object of the class at an IoU of 0.1 to 0.5; background: everything else."
    )
    return Section(name="errors", title="Errors", note=note, table=Table(columns=columns, rows=rows))


def _floor(predictions: Mapping[str, Any], measured: Sequence[Measured]) -> Section:
    floor = measure(_table(predictions), classes=1, prefix=FLOOR).values
    rows: list[list[Cell]] = [
        [METRICS[name].label, floor[name], float(np.mean([each.values[name] for each in measured]))]
        for name in _FLOOR_METRICS
    ]
    columns = [
        Column(name="metric", kind="text"),
        Column(name="without training", kind="share", role="common"),
        Column(name="model", kind="share", role="compared"),
    ]
    note = f"{DESCRIPTION}: a detector is worth its training where it is better."
    return Section(name="floor", title="Without training", note=note, table=Table(columns=columns, rows=rows))
