"""Report sections of segmentation: classes and boundaries."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attngraft.results.sections import Cell, Column, Section, Table
from attngraft.tasks.segmentation.metrics import WIDTHS, boundary_curve, class_ious


def sections(
    predictions: Sequence[Mapping[str, Any]], *, classes: Sequence[str], pixels: Sequence[int]
) -> list[Section]:
    """Return the IoU of each class and the mIoU near boundaries, as means over seeds."""
    found = [_classes(predictions, classes, pixels)]
    return found + ([_boundaries(predictions)] if "boundary_right" in predictions[0] else [])


def _classes(predictions: Sequence[Mapping[str, Any]], classes: Sequence[str], pixels: Sequence[int]) -> Section:
    ious, share = np.mean([class_ious(each) for each in predictions], axis=0), np.asarray(pixels) / max(1, sum(pixels))
    rows: list[list[Cell]] = [
        [name, float(part), _cell(iou)] for name, part, iou in zip(classes, share, ious, strict=True)
    ]
    columns = [
        Column(name="class", kind="text"),
        Column(name="training pixels", kind="share", role="common"),
        Column(name="IoU", kind="share", role="compared", parts_of="miou"),
    ]
    note = "IoU over all images, as a mean over seeds. Classes that neither occur nor are predicted have none."
    return Section(name="classes", title="Classes", note=note, table=Table(columns=columns, rows=rows))


def _cell(value: float) -> Cell:
    return None if np.isnan(value) else float(value)


def _boundaries(predictions: Sequence[Mapping[str, Any]]) -> Section:
    curve = np.mean([boundary_curve(each) for each in predictions], axis=0)
    part = predictions[0]["boundary_true"].sum(axis=(0, 2)) / max(1, predictions[0]["true"].sum())
    rows: list[list[Cell]] = [
        [f"{radius} pixel{'s' if radius > 1 else ''}", float(covered), _cell(value)]
        for radius, covered, value in zip(WIDTHS, part, curve, strict=True)
    ]
    columns = [
        Column(name="distance", kind="text"),
        Column(name="labeled pixels", kind="share", role="common"),
        Column(name="mIoU", kind="share", role="compared"),
    ]
    note = "mIoU of the pixels with another label at most so many rows and columns away, as a mean over seeds."
    table = Table(columns=columns, rows=rows, ordered=True)
    return Section(name="boundaries", title="Boundaries", note=note, table=table)
