"""Label maps from COCO annotations: segments of panoptic PNGs, or drawn polygons and run lengths of instances.

    annotations/panoptic_train2017.json, annotations/panoptic_train2017/*.png;  annotations/instances_train2017.json
    train/_annotations.coco.json beside the images

Images are in SPLIT/, images/SPLIT/, images/, or beside the annotations. Panoptic annotations are preferred to instances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from attngraft.errors import DataError
from attngraft.opening import DAMAGE, JSON_LIMIT, read_mapping
from attngraft.suggest import cut, quoted
from attngraft.tasks.images.boundaries import IGNORED
from attngraft.tasks.images.coco import image_folder, path_below, polygon_points, run_lengths, split_files
from attngraft.tasks.images.stored import Stored, image_size, read_mask

Color = tuple[int, int, int]
Class = tuple[int, str, Color | None]  #: label, name, color

_BLOCK = 2**24  #: number of pixels whose segments are converted at once
_DRAWN = 2**30  #: largest number of pixels of all objects of an image


@dataclass(frozen=True, kw_only=True)
class CocoSplit:
    """Images of an annotation file, and the segments or objects of each of them."""

    file: Path
    panoptic: bool
    names: list[tuple[str, Path, Path]]  #: name, image, and panoptic PNG, or the image itself with instances
    annotated: Mapping[
        Stored, tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]
    ]  #: by mask: image entry, annotations
    numbers: Mapping[int, int]  #: category id -> label

    def labels(self, path: Stored) -> np.ndarray:
        """Return the label map (H, W) uint8 of a path of `names`."""
        entry, annotations = self.annotated[path]
        try:
            if self.panoptic:
                colors = np.asarray(read_mask(path).convert("RGB"))
                segments = annotations[0]["segments_info"] if annotations else ()
                blocks = np.array_split(colors, -(-colors.shape[0] * colors.shape[1] // _BLOCK))
                return np.concatenate([self._of_segments(block, segments, path) for block in blocks])
            return self._drawn(entry, annotations, path)
        except DAMAGE as error:
            raise DataError(
                f"{self.file}: the annotations of {path} cannot be read "
                f"({type(error).__name__}: {cut(str(error))}); correct them"
            ) from None

    def _of_segments(self, colors: np.ndarray, segments: Sequence[Mapping[str, Any]], path: Stored) -> np.ndarray:
        ids = colors.astype(np.int64) @ np.array([1, 256, 65536])
        values, inverse = np.unique(ids, return_inverse=True)
        known = {0: IGNORED} | {segment["id"]: self.numbers[segment["category_id"]] for segment in segments}
        if len(known) <= len(segments):
            raise DataError(f"{self.file}: {path} has segments without an id of their own; correct them")
        if unknown := [int(value) for value in values if int(value) not in known]:
            raise DataError(f"{path}: contains the segment {unknown[0]}, which {self.file} does not list; correct one")
        return np.array([known[int(value)] for value in values], dtype=np.uint8)[inverse].reshape(ids.shape)

    def _drawn(self, entry: Mapping[str, Any], annotations: Sequence[Mapping[str, Any]], path: Stored) -> np.ndarray:
        """Draw all objects on the background, label 0, large ones first."""
        size = int(entry["width"]), int(entry["height"])
        width, height = image_size(path)
        if (width, height) != size:
            raise DataError(
                f"{path}: {width} x {height}, but {size[0]} x {size[1]} in {self.file}; correct one of them"
            )
        if len(annotations) * size[0] * size[1] > _DRAWN:
            raise ValueError(
                f"{len(annotations):,} objects in {size[0]} x {size[1]} pixels are too many; save label maps"
            )
        drawn: list[tuple[int, np.ndarray, int]] = []
        for each in annotations:
            mask = _mask(each, size)
            drawn.append((int(mask.sum()), np.packbits(mask), self.numbers[each["category_id"]]))
        found = np.zeros(height * width, dtype=np.uint8)
        for _, bits, number in sorted(drawn, key=lambda each: -each[0]):
            found[np.unpackbits(bits, count=found.size).view(bool)] = number
        return found.reshape(height, width)


def read_coco(root: Path, splits: Mapping[str, Sequence[str]]) -> tuple[dict[str, CocoSplit], list[Class]]:
    """Read the annotation files.

    Returns:
        The images of each of `splits`, and label, name and color of each class.

    Raises:
        DataError: a file is not such annotations, or an image or a mask is missing.
    """
    found: dict[str, CocoSplit] = {}
    classes: list[Class] = []
    for split, (name, file) in split_files(root, splits).items():
        found[split], own = _read(root, name, file)
        if classes and own != classes:
            raise DataError(f"{file}: its categories differ from those of the other splits; make them the same")
        classes = own
    return found, classes


def _read(root: Path, split: str, file: Path) -> tuple[CocoSplit, list[Class]]:
    panoptic = file.stem.startswith("panoptic_")
    try:
        content = read_mapping(file, limit=JSON_LIMIT)
        categories = sorted(content["categories"], key=lambda each: int(each["id"]))
        images = {each["id"]: each for each in content["images"]}
        for kind in ("images", "categories"):
            if len({each["id"] for each in content[kind]}) < len(content[kind]):
                raise ValueError(f"two {kind} have the same id")
        annotations: dict[Any, list[Mapping[str, Any]]] = {key: [] for key in images}
        for each in content["annotations"]:
            annotations[each["image_id"]].append(each)
        first = 0 if panoptic else 1  # label 0 of instances is the background
        numbers = {each["id"]: number for number, each in enumerate(categories, start=first)}
        classes: list[Class] = [] if panoptic else [(0, "background", (0, 0, 0))]
        for each in categories:
            classes.append((numbers[each["id"]], str(each["name"]), _color(each) if "color" in each else None))
        folder = image_folder(root, split, file, [str(each["file_name"]) for each in images.values()])
        masks = next((each for each in (file.with_suffix(""), root / file.stem) if each.is_dir()), None)
        if panoptic and masks is None:
            raise DataError(f"{file}: no folder {file.with_suffix('')} with the PNGs of its segments; add it")
        names, annotated = list[tuple[str, Path, Path]](), dict[Stored, Any]()
        for key, entry in images.items():
            path = path_below(root, folder, entry["file_name"])
            mask = path
            if panoptic and masks is not None:
                if len(annotations[key]) != 1:
                    what = "two lists of" if annotations[key] else "no"
                    raise DataError(f"{file}: {what} segments for {cut(str(entry['file_name']))}; give each image one")
                mask = path_below(masks, masks, annotations[key][0]["file_name"])
            for each in (path, mask):
                if not each.exists():
                    raise DataError(f"{each}: is missing, but {file} lists it; add it, or remove its entry")
            if mask in annotated:
                raise DataError(f"{file}: lists {cut(str(entry['file_name']))} twice; join the entries")
            names.append((path.relative_to(root).as_posix(), path, mask))
            annotated[mask] = (entry, annotations[key])
    except (OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{file}: not COCO annotations ({type(error).__name__}: {cut(str(error))}); save or download it again"
        ) from None
    if len(classes) > IGNORED - 1:
        raise DataError(f"{file}: {len(classes)} classes; segmentation requires 2 to 254")
    names.sort()
    return CocoSplit(file=file, panoptic=panoptic, names=names, annotated=annotated, numbers=numbers), classes


def _color(category: Mapping[str, Any]) -> Color:
    color = category["color"]
    if (
        not isinstance(color, list)
        or len(color) != 3
        or any(type(each) is not int or not 0 <= each < 256 for each in color)
    ):
        raise ValueError(
            f"the color {quoted(color)} of {quoted(category['name'])} is not three whole numbers from 0 to 255"
        )
    return color[0], color[1], color[2]


def _mask(annotation: Mapping[str, Any], size: tuple[int, int]) -> np.ndarray:
    """Return the mask (H, W) of an object given by polygons or run lengths; `size` is (width, height)."""
    given = annotation["segmentation"]
    if isinstance(given, Mapping):
        lengths = run_lengths(given, size)
        flat = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
        return flat.reshape(size).T
    picture = Image.new("1", size)
    if not given:
        raise ValueError("an object has no mask")
    for polygon in given:
        if len(points := polygon_points(polygon)) < 3:
            raise ValueError(f"a polygon has {len(points)} points, but needs 3")
        ImageDraw.Draw(picture).polygon([value - 0.5 for value in polygon], fill=1)  # pixel 0 covers 0 to 1
    return np.asarray(picture)
