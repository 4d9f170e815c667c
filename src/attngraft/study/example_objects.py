"""Images for the report of a study of detection: the objects, and both models' detections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from attngraft.errors import DataError
from attngraft.results.examples import ExampleImages
from attngraft.study.example_masks import most_different, pictures_by_group, side_by_side
from attngraft.study.predictions import open_predictions
from attngraft.tasks.detection import Detection
from attngraft.tasks.detection.drawing import drawn
from attngraft.tasks.detection.metrics import best_detections
from attngraft.tasks.detection.objects import RunLengths
from attngraft.tasks.images.coco import run_lengths
from attngraft.training.run_folder import RunFolder, RunRecord

WIDTH = 170  #: of each of the four pictures, in pixels


def object_examples(task: Detection, baseline: RunRecord, variant: RunRecord, name: str) -> ExampleImages | None:
    """Return the images whose F1 differs most, each as four pictures side by side.

    They are the image, and in it the objects, the detections of the baseline, and those of the variant.

    Args:
        task: the task, without data.
        baseline, variant: runs of one seed.
        name: name of the variant.

    Returns:
        None if a run has no boxes (`train.outputs`), or they were evaluated on different images.
    """
    with open_predictions(baseline) as before, open_predictions(variant) as after:
        if "box" not in before or "box" not in after or not np.array_equal(before.names, after.names):
            return None
        chosen = [best_detections(table) for table in (before, after)]
        scores = [score for _, score in chosen]
        groups = most_different(scores, name, "F1")
        task.load_split(RunFolder(baseline.folder).split)
        wanted = [row for rows in groups.values() for row in rows]
        opened = task.open_examples([str(before.names[row]) for row in wanted])
        columns = [_columns(table) for table in (before, after)]
        shown = {}
        for row, (image, objects) in zip(wanted, opened, strict=True):
            try:
                found = [
                    _drawn(image, {key: column[row] for key, column in each.items()}, kept[row])
                    for each, (kept, _) in zip(columns, chosen, strict=True)
                ]
            except (ValueError, LookupError, TypeError, OverflowError) as error:
                raise DataError(
                    f"{baseline.folder}, {variant.folder}: predictions.npz of one of them is damaged, its detections do not "
                    f"fit {before.names[row]} ({error}); restore a copy, or delete the folder to train the run again"
                ) from None
            true = drawn(image, objects.boxes, objects.labels, objects.masks)
            size = WIDTH, max(1, round(WIDTH * image.height / image.width))
            shown[row] = side_by_side([each.convert("RGB").resize(size) for each in (image, true, *found)])
        panels = (
            f"From left to right: the image, its objects, and the detections of the baseline and of {name}: the best of all "
            "images, as many as there are objects. Below: F1 of the image at an IoU of 0.5."
        )
        texts = [[f"F1 {100 * score:.1f}%" for score in each] for each in scores]
        return pictures_by_group(groups, before.names, texts, shown, name, panels)


def _columns(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: table[key] for key in ("box", "label", "mask", "mask_length") if key in table}


def _drawn(image: Image.Image, row: Mapping[str, np.ndarray], kept: np.ndarray) -> Image.Image:
    masks: Sequence[RunLengths] | None = None
    if "mask" in row:
        counts = np.split(row["mask"], np.cumsum(row["mask_length"])[:-1])
        size = [image.height, image.width]
        masks = [{"size": size, "counts": counts[index].tobytes()} for index in kept]
        for each in masks:  # the decoder would write beyond the end of the image
            run_lengths({**each, "counts": each["counts"].decode("latin-1")}, image.size)
    return drawn(image, row["box"][kept], row["label"][kept], masks)
