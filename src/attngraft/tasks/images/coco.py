"""Annotation files of COCO: their places and those of their images, and their run lengths.

    annotations/panoptic_train2017.json;  annotations/instances_train2017.json;  train/_annotations.coco.json

Images are in SPLIT/, images/SPLIT/, images/, or beside the annotations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import DataError
from attngraft.suggest import quoted, repeated

KINDS = ("panoptic_", "instances_")  #: starts of the names of files with masks, in order of preference

_FARTHEST = 1e6  #: largest coordinate of a polygon, in pixels
_BITS = 60  #: largest number of bits of a run length
_PROBED = 20  #: number of images to look for when searching for their folder


def coco_files(root: Path, kinds: Sequence[str] = KINDS) -> dict[str, Path]:
    """Return the annotation file of each split (`train2017`), of the first of `kinds` that there is.

    Raises:
        DataError: a split has two.
    """
    for kind in kinds:
        files = [file for folder in (root / "annotations", root) for file in sorted(folder.glob(f"{kind}*.json"))]
        if twice := repeated(file.name for file in files):
            raise DataError(f"{root}: has {twice} and annotations/{twice}; remove one")
        if files:
            return {file.stem.removeprefix(kind): file for file in files}
    return {file.parent.name: file for file in sorted(root.glob("*/_annotations.coco.json"))}


def split_files(
    root: Path, splits: Mapping[str, Sequence[str]], kinds: Sequence[str] = KINDS
) -> dict[str, tuple[str, Path]]:
    """Return name (`train2017`) and annotation file of each split; `splits` are its usual names (`train`).

    Raises:
        DataError: there is no file of a known split, or two of one.
    """
    files = dict[str, tuple[str, Path]]()
    for name, file in coco_files(root, kinds).items():
        split = re.sub(r"\d+$", "", name).strip("_-")
        if split in files:
            raise DataError(f"{file}: annotations of {split}, as {files[split][1].name}; remove or rename one of them")
        files[split] = name, file
    found = {split: files[each] for split, usual in splits.items() for each in usual if each in files}
    if not found:
        raise DataError(f"{root}: no annotations for training (found: {', '.join(files)}); name a file ..._train.json")
    return found


def image_folder(root: Path, split: str, file: Path, names: Sequence[str], *, given: str | None = None) -> Path:
    """Return the folder of the images `names` of an annotation file: `given`, or a usual one.

    Raises:
        DataError: there is none.
    """
    folders = [root / split, root / "images" / split, root / "images", file.parent, root]
    if given is not None:
        folders = [root / given / split, root / given]
    for folder in folders:
        if any((folder / name).is_file() for name in names[:_PROBED]):
            return folder
    raise DataError(f"{file}: its images are not in {', '.join(map(str, folders))}; put them there")


def path_below(root: Path, folder: Path, name: Any) -> Path:
    """Return the path of an image or mask in `folder`.

    Raises:
        ValueError: it is not below `root`.
    """
    valid = isinstance(name, str) and "\0" not in name and ".." not in Path(name).parts
    if not valid or not (folder / name).is_relative_to(root):
        raise ValueError(f"its file_name {quoted(name)} is not a path below {root}")
    return folder / name


def polygon_points(polygon: Any) -> np.ndarray:
    """Return the points (P, 2) of a polygon x, y, x, y, ...

    Raises:
        ValueError: it is not a list of finite numbers, or has a coordinate above a million.
    """
    try:
        points = np.asarray(polygon)
    except (TypeError, ValueError, OverflowError):
        points = np.zeros(1)
    if points.dtype.kind not in "if" or points.ndim != 1 or len(points) % 2 or not np.isfinite(points).all():
        raise ValueError("a polygon must be a list of finite numbers x, y, x, y, ...")
    if np.abs(points).max(initial=0) > _FARTHEST:
        raise ValueError(f"a polygon lies far outside of the image, at {np.abs(points).max():g}")
    return points.reshape(-1, 2).astype(np.float64, copy=False)


def run_lengths(given: Mapping[str, Any], size: tuple[int, int]) -> list[int]:
    """Return the run lengths of a mask, which go down the columns and start with the background.

    Args:
        given: `counts` as a list or as compressed text, and `size` (height, width).
        size: width and height of the image.

    Raises:
        ValueError: they are damaged, or of another size.
        LookupError, TypeError: the mask has another form.
    """
    counts = given["counts"]
    lengths = _lengths(counts) if isinstance(counts, str) else counts
    if any(type(each) is not int for each in lengths):
        raise TypeError("run lengths must be integers")
    if sum(lengths) != size[0] * size[1] or min(lengths, default=0) < 0:
        raise ValueError(f"the run lengths have {sum(lengths):,} pixels, the image {size[0] * size[1]:,}")
    if list(given.get("size", size[::-1])) != [*size[::-1]]:
        raise ValueError(f"the run lengths are of {quoted(given['size'])}, not {[*size[::-1]]} (height, width)")
    return list(lengths)


def _lengths(text: str) -> list[int]:
    """Decode compressed run lengths: 5 bits per character, lowest first, as differences from the run two before."""
    if strange := re.search(r"[^0-o]", text):  # 64 characters
        raise ValueError(f"a run length contains {quoted(strange[0])}")
    found: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        value |= (bits & 31) << shift
        shift += 5
        if shift > _BITS:
            raise ValueError("a run length has too many digits")
        if not bits & 32:
            value -= (1 << shift) if bits & 16 else 0
            found.append(value + (found[-2] if len(found) > 2 else 0))
            value = shift = 0
    return found
