"""Instance masks: label maps in folders as of `images.folders`, or a folder per image with a mask file per object.

images/SPLIT/NAME.jpg, masks/SPLIT/NAME.png: 0 is the background, and 1, 2, ... are the objects
SPLIT/NAME/images/*.png, SPLIT/NAME/masks/*.png, as in the Data Science Bowl
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.models.dense.rle import mask_api
from attngraft.tasks.detection.annotated import LARGEST, AnnotatedImages, ReadObjects
from attngraft.tasks.detection.config import ObjectDataConfig
from attngraft.tasks.detection.objects import Objects, RunLengths
from attngraft.tasks.detection.run_lengths import areas_of, boxes_of, of_label_map
from attngraft.tasks.images.folders import IMAGES, MASKS, SPLITS, find_pairs, find_side, image_files, split_folder
from attngraft.tasks.images.sources.decoding import HUGE
from attngraft.tasks.images.stored import image_size, read_mask

CLASS = "object"  #: name of the only class

_VALUES = ("P", "L", "1", "I", "I;16", "I;16B")  #: Pillow's modes of masks with one value per pixel
_BORDER = 255  #: value of the borders between objects of Pascal VOC
_RUNS = 2**22  #: largest number of runs of values in the masks of an image, which take memory and time
_PROBED = 20  #: number of folders that are looked at


@dataclass(frozen=True)
class LabelMap:
    """A mask whose values are objects."""

    file: Path

    def size(self, image: Path) -> tuple[int, int]:
        return image_size(image)

    def objects(self, image: Path) -> Objects:
        labels = _values(self.file, image)
        _check_runs(_runs(labels), self.file)
        values = np.unique(labels)
        if len(values) > LARGEST:
            raise DataError(f"{self.file}: {len(values):,} values, so it is not an instance mask; replace it")
        others = values[(values != 0) & (values != _BORDER)]
        if 0 < len(others) == others[-1] < _BORDER - 1 and values[-1] == _BORDER:
            raise DataError(
                f"{self.file}: the value {_BORDER} besides 1 to {len(others)} is that of borders, as in Pascal VOC, and no "
                f"object; replace it by 0, or by {len(others) + 1}"
            )
        return _objects(of_label_map(labels))

    def stamp(self) -> bytes:
        return f"{self.file.stat().st_size}".encode()


@dataclass(frozen=True)
class MaskFiles:
    """A mask file per object."""

    files: tuple[Path, ...]

    def size(self, image: Path) -> tuple[int, int]:
        return image_size(image)

    def objects(self, image: Path) -> Objects:
        masks, runs = list[RunLengths](), 0
        for file in self.files:
            plane = _values(file, image) != 0
            runs += _runs(plane)
            _check_runs(runs, file)
            if not plane.any():
                raise DataError(f"{file}: the mask has no pixel; correct or remove it")
            masks.append(mask_api().encode(np.asfortranarray(plane, dtype=np.uint8)))
        return _objects(masks)

    def stamp(self) -> bytes:
        return repr([file.stat().st_size for file in self.files]).encode()


def _values(file: Path, image: Path) -> np.ndarray:
    """Return the values (H, W) of a mask."""
    mask = read_mask(file)
    if mask.mode not in _VALUES:
        raise DataError(
            f"{file}: a mask in mode {mask.mode}; instance masks have one value per pixel, 0 for the background and 1, 2, "
            "... for the objects"
        )
    size = image_size(image)
    if mask.size != size:
        reduced = (
            "; JPEGs of more than 33 million pixels are read at a reduced size" if size[0] * size[1] > HUGE else ""
        )
        raise DataError(
            f"{file}: {mask.width} x {mask.height}, but its image {image.name} is {size[0]} x {size[1]}{reduced}; make them "
            "the same size"
        )
    values = np.asarray(mask)
    return values.astype(np.uint8) if values.dtype == bool else values


def _runs(values: np.ndarray) -> int:
    """Return the number of changes of values down the columns, one after the other."""
    down = np.count_nonzero(values[1:] != values[:-1])
    return int(down + np.count_nonzero(values[0, 1:] != values[-1, :-1]))


def _check_runs(runs: int, file: Path) -> None:
    if runs > _RUNS:
        raise DataError(f"{file}: {runs:,} changes of values, so it is noise and no instance mask; replace it")


def _objects(masks: list[RunLengths]) -> Objects:
    return Objects(
        boxes=boxes_of(masks),
        labels=np.zeros(len(masks), dtype=np.int64),
        crowd=np.zeros(len(masks), dtype=bool),
        areas=areas_of(masks),
        masks=masks,
    )


def has_nested(root: Path) -> bool:
    """Return whether the folders in a folder, or in that of its training split, have folders of images and masks."""
    folders = islice(_folders(split_folder(root, "train") or root), _PROBED)
    return any(None not in (find_side(each, None, IMAGES), find_side(each, None, MASKS)) for each in folders)


def read_instances(root: Path, config: ObjectDataConfig) -> ReadObjects:
    """Find images and instance masks, which are opened on access.

    Raises:
        DataError: there are none, or an image or a mask is missing.
    """
    folders = {split: folder for split in SPLITS if (folder := split_folder(root, split)) is not None}
    nested = {split: _nested(folder, root, config) for split, folder in (folders or {"train": root}).items()}
    nested = {split: found for split, found in nested.items() if found}
    if not nested:
        pairs = find_pairs(root, images_name=config.images, masks_name=config.masks)
        nested = {split: [(name, image, LabelMap(mask)) for name, image, mask in each] for split, each in pairs.items()}
    parts = {
        split: AnnotatedImages(
            names=tuple(name for name, _, _ in found),
            images=tuple(image for _, image, _ in found),
            annotations=tuple(annotation for _, _, annotation in found),
        )
        for split, found in nested.items()
    }
    return ReadObjects(classes=(CLASS,), category_ids=(1,), parts=parts, masks=True)


def _nested(folder: Path, root: Path, config: ObjectDataConfig) -> list[tuple[str, Path, LabelMap | MaskFiles]]:
    """Return name, image and masks of each folder with an image and a folder of masks."""
    found: list[tuple[str, Path, LabelMap | MaskFiles]] = []
    for each in _folders(folder):
        images, masks = find_side(each, config.images, IMAGES), find_side(each, config.masks, MASKS)
        if images is None:
            if found:
                raise DataError(f"{each}: no folder of its image; add it, or remove this folder")
            return []
        files = sorted(image_files(images).values())
        if len(files) != 1:
            raise DataError(f"{images}: {len(files)} images, but a folder beside masks of objects must have one")
        if masks is None:
            raise DataError(
                f"{each}: no folder of masks; add it, empty for an image without objects, or remove this folder"
            )
        objects = tuple(sorted(image_files(masks).values()))
        found.append((files[0].relative_to(root).as_posix(), files[0], MaskFiles(objects)))
    return found


def _folders(folder: Path) -> list[Path]:
    others = (".", "__")  # of notebooks and archives
    splits = [name for usual in SPLITS.values() for name in usual]
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_dir() and path.name not in splits and not path.name.startswith(others)
    )
