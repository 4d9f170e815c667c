"""Folders of images and masks.

    images/NAME.jpg, masks/NAME.png;  images/SPLIT/..., masks/SPLIT/...;  SPLIT/images/..., SPLIT/masks/...
    ADE20K: images/training, annotations/training, ...;  Cityscapes: leftImg8bit/SPLIT/CITY, gtFine/SPLIT/CITY

Images and masks are matched by path and name without the extension (Cityscapes: without the last part of the name).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from attngraft.errors import DataError
from attngraft.tasks.images.stored import lossy

IMAGES = ("images", "image", "imgs", "img", "JPEGImages", "leftImg8bit")
MASKS = ("masks", "mask", "labels", "label", "annotations", "annotation", "SegmentationClass", "gtFine", "gt")
SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
CITYSCAPES_END = "_labelIds"  #: end of the names of masks of Cityscapes
_EXTENSIONS = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp"}
_LOSSY = {".jpg", ".jpeg"}
_ENDS = {"leftImg8bit": "_leftImg8bit", "gtFine": f"_gtFine{CITYSCAPES_END}"}  #: Cityscapes: ends of names

Pairs = list[tuple[str, Path, Path]]  #: name, image, mask


def has_masks(root: Path) -> bool:
    """Return whether a folder, or the folder of a split in it, contains folders of images and of masks as image files."""
    for folder in (root, *(found for split in SPLITS if (found := split_folder(root, split)))):
        images, masks = find_side(folder, None, IMAGES), find_side(folder, None, MASKS)
        if images is not None and masks is not None:
            return all(any(path.suffix.lower() in _EXTENSIONS for path in side.rglob("*")) for side in (images, masks))
    return False


def find_pairs(root: Path, *, images_name: str | None, masks_name: str | None) -> dict[str, Pairs]:
    """Return the images and masks of each split; those of a folder without splits are `train`.

    Args:
        root: the folder.
        images_name, masks_name: names of the folders of images and of masks; None: the usual ones.
    """
    names = (images_name, IMAGES), (masks_name, MASKS)
    images, masks = (find_side(root, name, usual) for name, usual in names)
    if images is not None and masks is not None:
        sides = {split: (split_folder(images, split), split_folder(masks, split)) for split in SPLITS}
        found = {split: both for split, both in sides.items() if both[0] is not None}
        return {
            split: _matched(one, other, root, images.name, masks.name)
            for split, (one, other) in (found or {"train": (images, masks)}).items()
            if one is not None
        }
    result = {}
    for split in SPLITS:
        folder = split_folder(root, split)
        if folder is not None:
            one, other = (find_side(folder, name, usual) for name, usual in names)
            if one is None or other is None:
                raise DataError(_no_folders(folder, images_name, masks_name))
            result[split] = _matched(one, other, root, one.name, other.name)
    if not result:
        raise DataError(_no_folders(root, images_name, masks_name))
    return result


def _no_folders(root: Path, images: str | None, masks: str | None) -> str:
    present = sorted(path.name for path in root.iterdir() if path.is_dir())
    wanted = f"{images or 'images'} and {masks or 'masks'}"
    return (
        f"{root}: no folders {wanted} there (found: {', '.join(present[:8]) or 'no folders'}); name them with --set "
        "task.data.images=NAME and --set task.data.masks=NAME, or, if the folders are classes, use --task classification"
    )


def find_side(root: Path, name: str | None, usual: Sequence[str]) -> Path | None:
    """Return the folder `name` in `root`, by default one with a usual name; None if there is none."""
    names = usual if name is None else (name,)
    return next((root / each for each in names if (root / each).is_dir()), None)


def split_folder(root: Path, split: str) -> Path | None:
    """Return the folder of a split in `root`; None if there is none."""
    return next((root / name for name in SPLITS[split] if (root / name).is_dir()), None)


def image_files(folder: Path, end: str = "") -> dict[str, Path]:
    """Return the image files below a folder by path without extension and the `end` of the name."""
    return files_by_key(folder, _EXTENSIONS, end)


def files_by_key(folder: Path, extensions: Collection[str], end: str = "") -> dict[str, Path]:
    """Return the files below a folder that have one of the extensions, by path without extension and the `end` of the name.

    Raises:
        DataError: two files have the same key.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in extensions and not path.name.startswith(".") and path.stem.endswith(end):
            key = path.relative_to(folder).with_suffix("").as_posix().removesuffix(end)
            if key in found:
                raise DataError(f"{path}: {found[key].name} has the same name; keep one of them")
            found[key] = path
    return found


def _matched(one: Path, other: Path | None, root: Path, images: str, masks: str) -> Pairs:
    if other is None:
        raise DataError(f"{one}: no folder of masks for it below {masks}; add it")
    found, labels = image_files(one, _ENDS.get(images, "")), image_files(other, _ENDS.get(masks, ""))
    if not found:
        raise DataError(f"{one}: contains no images; add some, or correct task.data.images")
    for path in labels.values():
        if path.suffix.lower() in _LOSSY:
            raise lossy(path)
    for name, others, what, folder in ((found, labels, "mask", other), (labels, found, "image", one)):
        missing = sorted(name.keys() - others.keys())
        if missing:
            more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise DataError(
                f"{name[missing[0]]}{more}: has no {what} {missing[0]}.* in {folder}; add it, or remove the file"
            )
    return [(found[key].relative_to(root).as_posix(), found[key], labels[key]) for key in sorted(found)]
