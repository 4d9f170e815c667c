"""Images for the report of a study of segmentation: labels, both models' masks, and where one of them is right."""

import base64
import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from attngraft.results.examples import ExampleGroup, ExampleImage, ExampleImages, ExamplePrediction
from attngraft.results.measured import mean_of_defined
from attngraft.study.predictions import open_predictions
from attngraft.tasks.segmentation import Segmentation
from attngraft.tasks.segmentation.codec import overlay
from attngraft.training.run_folder import RunFolder, RunRecord

SHOWN = 4  #: number of images of each group
WIDTH = 128  #: of each of the five pictures, in pixels
_GAP = 2
#: colors of pixels where only the baseline is right, and where only the variant is
_ONLY = ((213, 94, 0), (0, 158, 115))
_NONE = 255  #: no color


def mask_examples(task: Segmentation, baseline: RunRecord, variant: RunRecord, name: str) -> ExampleImages | None:
    """Return the images whose mean IoU differs most, each as five pictures side by side.

    They are the image, and over it the labels, the mask of the baseline, that of the variant, and the pixels where only one
    of them is right.

    Args:
        task: the task, without data.
        baseline, variant: runs of one seed.
        name: name of the variant.

    Returns:
        None if a run has no masks (`train.outputs`), or they were evaluated on different images.
    """
    with open_predictions(baseline) as before, open_predictions(variant) as after:
        if "mask" not in before or "mask" not in after or not np.array_equal(before.names, after.names):
            return None
        scores = [mean_of_defined(_ious(table)) for table in (before, after)]
        groups = most_different(scores, name, "mean IoU")
        task.load_split(RunFolder(baseline.folder).split)
        wanted = [row for rows in groups.values() for row in rows]
        opened = task.open_examples([str(before.names[row]) for row in wanted])
        masks = [before["mask"], after["mask"]]
        colors = baseline.facts["colors"]
        shown = {
            row: _picture(image, [label, *(column[row] for column in masks)], colors)
            for row, (image, label) in zip(wanted, opened, strict=True)
        }
        texts = [[f"mIoU {100 * score:.1f}%" for score in each] for each in scores]
        return pictures_by_group(groups, before.names, texts, shown, name)


def most_different(scores: Sequence[np.ndarray], name: str, score: str) -> dict[str, list[int]]:
    """Return the images where the scores (N,) of baseline and variant differ most, by the group's title."""
    gain = np.nan_to_num(scores[1] - scores[0])
    order = np.argsort(gain, kind="stable")
    return {
        f"Higher {score} with {name}": [int(row) for row in order[::-1][:SHOWN] if gain[row] > 0],
        f"Higher {score} with the baseline": [int(row) for row in order[:SHOWN] if gain[row] < 0],
    }


def pictures_by_group(
    groups: Mapping[str, Sequence[int]],
    names: np.ndarray,
    texts: Sequence[Sequence[str]],
    pictures: Mapping[int, str],
    name: str,
    panels: str = "",
    labels: Mapping[int, str] | None = None,
) -> ExampleImages:
    """Return the images of each group with their pictures and texts.

    Args:
        groups: rows of the images, by title.
        texts: what is said of each row's image for the baseline, and for the variant.
        name: name of the variant.
        panels: description of the pictures.
        labels: labels of the images; None: their names.
    """

    def said(text: str) -> ExamplePrediction:
        return ExamplePrediction(predicted=text, confidence=0.0, right=0)

    return ExampleImages(
        variant=name,
        seeds=1,
        masks=True,
        panels=panels,
        groups=[
            ExampleGroup(
                title=title,
                images=[
                    ExampleImage(
                        name=str(names[row]),
                        label="" if labels is None else labels[row],
                        baseline=said(texts[0][row]),
                        variant=said(texts[1][row]),
                        jpeg=pictures[row],
                    )
                    for row in rows
                ],
            )
            for title, rows in groups.items()
            if rows
        ],
    )


def _ious(table: Mapping[str, object]) -> np.ndarray:
    """Return the IoU (N, K) of each class in each image; NaN where it is neither in the labels nor predicted."""
    right, predicted, true = (np.asarray(table[name], dtype=float) for name in ("right", "predicted", "true"))
    union = predicted + true - right
    return np.divide(right, union, out=np.full_like(union, np.nan), where=union > 0)


def _picture(image: Image.Image, masks: Sequence[np.ndarray], colors: Sequence[Sequence[int]]) -> str:
    """Return the five pictures side by side as a JPEG file in base64; `masks`: labels, the baseline's and the variant's."""
    size = WIDTH, max(1, round(WIDTH * image.height / image.width))
    small = image.convert("RGB").resize(size)
    label, before, after = (_resized(mask, size) for mask in masks)
    right = [(mask == label) & (label < len(colors)) for mask in (before, after)]
    only = np.select([right[0] & ~right[1], right[1] & ~right[0]], [0, 1], _NONE)
    gray = small.convert("L").convert("RGB")
    return side_by_side(
        [small, *(overlay(small, mask, colors) for mask in (label, before, after)), overlay(gray, only, _ONLY)]
    )


def side_by_side(parts: Sequence[Image.Image]) -> str:
    """Return pictures of one size side by side as a JPEG file in base64."""
    width, height = parts[0].size
    whole = Image.new("RGB", (len(parts) * (width + _GAP) - _GAP, height), "white")
    for number, part in enumerate(parts):
        whole.paste(part, (number * (width + _GAP), 0))
    file = io.BytesIO()
    whole.save(file, "JPEG", quality=80)
    return base64.b64encode(file.getvalue()).decode()


def _resized(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(Image.fromarray(mask.astype(np.uint8)).resize(size, Image.Resampling.NEAREST))
