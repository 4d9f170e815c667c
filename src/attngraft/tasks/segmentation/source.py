"""Images with masks, split into training, validation and test.

Sources are folders of images and masks (`folders`), COCO annotations (`coco`), and Hugging Face data sets with a column of
masks (`columns`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from attngraft.counting import counted
from attngraft.errors import DataError
from attngraft.files import user_path
from attngraft.opening import access_errors
from attngraft.tasks.images.boundaries import IGNORED
from attngraft.tasks.images.coco import coco_files
from attngraft.tasks.images.folders import SPLITS, find_pairs
from attngraft.tasks.images.sources.base import alike_classes, check_classes
from attngraft.tasks.images.sources.decoding import HUGE
from attngraft.tasks.images.split_source import SplitSource, split_images
from attngraft.tasks.images.stored import Stored, image_size
from attngraft.tasks.segmentation.classes import coco_classes, mask_classes
from attngraft.tasks.segmentation.coco import read_coco
from attngraft.tasks.segmentation.columns import is_table, read_columns
from attngraft.tasks.segmentation.config import MaskDataConfig
from attngraft.tasks.segmentation.masks import Labels, MaskedImages

Counted = tuple[np.ndarray, list[tuple[int, int]]]  #: pixels of each class, and sizes of images, see `count_labels`

_SAMPLE = 4000  #: largest number of masks of a split that are read before training
_LISTED = 10  #: most masks with mistakes that are listed


@dataclass(frozen=True, kw_only=True)
class MaskSource(SplitSource[MaskedImages]):
    """Images with masks, split."""

    labels: Labels


@access_errors()
def open_masks(config: MaskDataConfig, *, saved_split: Path | None = None) -> MaskSource:
    """Find images and masks, read the class file, and split the images; `saved_split` replaces the random split.

    Raises:
        DataError: the data cannot be used; the message names the file and the remedy.
    """
    root = user_path(config.source)
    pairs: Mapping[str, Sequence[tuple[str, Stored, Stored]]]
    origin, labels, note = "the folders of the data", None, ""
    if is_table(config.source):
        root, pairs, note = read_columns(config)
        origin = "the splits of the data"
    elif not root.is_dir():
        raise DataError(f"{root}: no such folder; give a folder with images and masks (task.data.source)")
    elif config.masks is None and coco_files(root):
        coco, listed = read_coco(root, SPLITS)
        pairs = {split: found.names for split, found in coco.items()}
        labels = coco_classes(root, config, coco, listed)
    else:
        pairs = find_pairs(root, images_name=config.images, masks_name=config.masks)
    if labels is None:
        labels = mask_classes(root, config, [mask for found in pairs.values() for _, _, mask in found])
    check_classes(labels.classes, where=str(root))
    parts = {
        split: MaskedImages(
            names=tuple(name for name, _, _ in found),
            images=tuple(image for _, image, _ in found),
            masks=tuple(mask for _, _, mask in found),
            labels=labels,
        )
        for split, found in pairs.items()
    }
    notes = [*alike_classes(labels.classes), *([note] if note else [])]
    split = split_images(parts, config, root=root, origin=origin, notes=notes, saved_split=saved_split)
    return MaskSource(labels=labels, **vars(split))


def count_labels(images: MaskedImages) -> Counted:
    """Check the masks of a split, or an even sample of 4,000 of them.

    Returns:
        Number of pixels of each class and, last, of ignored pixels (K + 1,), and the sizes (width, height) of the images.

    Raises:
        DataError: masks cannot be used, or have another size than their image; the message has a line for each of up to 10.
    """
    classes = len(images.labels.classes)

    def attempt(index: int) -> tuple[np.ndarray, tuple[int, int]] | str:
        try:
            return count(index)
        except DataError as error:
            return str(error)

    def count(index: int) -> tuple[np.ndarray, tuple[int, int]]:
        label = images.label(index)
        size = image_size(images.images[index])
        if label.shape != size[::-1]:
            reduced = "; JPEGs of more than 33 million pixels are read at a reduced size" if label.size > HUGE else ""
            raise DataError(
                f"{images.masks[index]}: {label.shape[1]} x {label.shape[0]}, but its image {images.names[index]} is "
                f"{size[0]} x {size[1]}{reduced}; make them the same size"
            )
        counts = np.array(Image.fromarray(label).histogram())  # np.bincount takes 8 bytes for each pixel
        return np.append(counts[:classes], counts[IGNORED]), size

    step = max(1, -(-len(images) // _SAMPLE))
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        chosen = range(0, len(images), step)
        results = list(counted(threads.map(attempt, chosen), "masks read", total=len(chosen)))
    if mistakes := [each for each in results if isinstance(each, str)]:
        more = [f"and {len(mistakes) - _LISTED} more masks"] if len(mistakes) > _LISTED else []
        raise DataError("\n".join(mistakes[:_LISTED] + more))
    found = [each for each in results if not isinstance(each, str)]
    counts = np.sum([counts for counts, _ in found], axis=0)
    if not counts[:-1].any():
        what = f"{images.masks[0]} and {len(found) - 1} more masks"
        raise DataError(f"{what}: all pixels are ignored; correct the masks, or task.data.ignore")
    return counts, [size for _, size in found]
