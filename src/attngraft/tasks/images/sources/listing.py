"""Splits and classes derived from the paths of images in a folder or tar."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import (
    TRAIN_NAMES,
    VAL_NAMES,
    Images,
    ImageSource,
    find_splits,
)

#: extensions of image files
EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
)

#: extensions of image formats that are not read: Pillow cannot on all platforms, or they are rare
UNSUPPORTED = frozenset(
    (
        *(".heic", ".heif", ".avif", ".jxl", ".jp2", ".psd", ".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw"),
        *(".tga", ".pbm", ".pnm", ".pcx", ".exr", ".hdr", ".dcm", ".eps"),
    )
)

#: function that builds `Images` from paths and labels
Make = Callable[[list[str], np.ndarray], Images]


@dataclass(frozen=True)
class Listing:
    """Paths of image files and of folders, also empty ones, relative to the source, separated by `/`."""

    where: str
    files: tuple[str, ...]
    folders: tuple[str, ...]
    unsupported: tuple[str, ...] = ()  #: paths of images in unsupported formats
    special: tuple[str, ...] = ()  #: paths of broken links, FIFOs and devices without an image's extension

    def below(self, folder: str) -> Listing:
        """Return the contents of `folder`, still relative to the source."""
        prefix = f"{folder}/"
        return Listing(
            f"{self.where}/{folder}",
            tuple(file for file in self.files if file.startswith(prefix)),
            tuple(name for name in self.folders if name.startswith(prefix)),
        )


def is_junk(name: str) -> bool:
    """Return whether this is a hidden file or folder, or one that an operating system creates."""
    return name.startswith(".") or name in ("__MACOSX", "@eaDir")


def is_image(path: str) -> bool:
    """Return whether the path has an image's extension and is not junk."""
    name = path.rpartition("/")[2]
    return not is_junk(name) and "." in name and f".{name.rpartition('.')[2].lower()}" in EXTENSIONS


def is_unsupported(path: str) -> bool:
    """Return whether the path has the extension of an unsupported image format."""
    return f".{path.rpartition('.')[2].lower()}" in UNSUPPORTED


def natural(name: str) -> tuple[list[str | int], str]:
    """Return a sort key for natural order, with `class 2` before `class 10`."""
    pieces: list[str | int] = [*re.split(r"(\d{1,1000})", name)]  # int refuses thousands of digits
    pieces[1::2] = [int(piece) for piece in pieces[1::2]]
    return pieces, name


def by_class(listing: Listing, depth: int) -> dict[str, list[str]]:
    """Return the image files of each class, in natural order; the class is the path component at `depth`."""
    classes: dict[str, list[str]] = {}
    for folder in listing.folders:
        pieces = folder.split("/")
        if len(pieces) > depth:
            classes.setdefault(pieces[depth], [])
    for file in listing.files:
        pieces = file.split("/")
        if len(pieces) > depth + 1:
            classes.setdefault(pieces[depth], []).append(file)
    return {name: sorted(classes[name], key=natural) for name in sorted(classes, key=natural)}


def common_folder(listing: Listing, *, exclude: Sequence[str] = ()) -> str:
    """Return the folder that contains all class folders: `flowers` for `flowers/daisy/1.jpg`, ...

    The search stops at folders whose names are in `exclude`.
    """
    paths = [file.split("/") for file in listing.files]
    depth = 0
    while paths and all(len(path) > depth + 2 for path in paths) and len({path[depth] for path in paths}) == 1:
        siblings = {folder.split("/")[depth] for folder in listing.folders if folder.count("/") >= depth}
        if paths[0][depth].lower() in exclude or len(siblings | {paths[0][depth]}) > 1:
            break
        depth += 1
    return "/".join(paths[0][:depth]) if paths else ""


def split_folders(listing: Listing, config: DataConfig, *, kind: str, make: Make) -> ImageSource:
    """Build a source from `train/<class>/...` and `val/<class>/...`, or from `<class>/...` alone.

    Raises:
        DataError: there are no images or no class folders, or a split is missing.
    """
    inside = common_folder(listing, exclude=(*TRAIN_NAMES, *VAL_NAMES))
    depth = inside.count("/") + 1 if inside else 0
    names = list(by_class(listing, depth))
    where = f"{listing.where}/{inside}" if inside else listing.where
    train, val, test = find_splits(names, config, where=where)
    if train is None:
        source = _class_folders_only(listing, config, names, depth, where=where, kind=kind, make=make)
    else:
        prefix = f"{inside}/" if inside else ""
        below = {name: by_class(listing.below(prefix + name), depth + 1) for name in (train, val) if name is not None}
        origin = f"the folders {train} and {val}" if val else f"the folder {train}"
        source = class_source(
            below[train], below[val] if val else None, kind=kind, where=where, origin=origin, make=(make, make)
        )
        source = replace(source, test_split=test)
    return replace(source, notes=(*source.notes, *_skipped(listing)))


def _skipped(listing: Listing) -> Iterator[str]:
    """Yield notes on what is skipped."""
    if listing.special:
        first, *others = listing.special
        what = f"{first} and {len(others)} more are" if others else f"{first} is"
        yield f"{what} skipped: neither a file nor a folder; restore or remove broken links, FIFOs and devices."
    if not listing.unsupported:
        return
    kinds = ", ".join(sorted({f".{name.rpartition('.')[2].lower()}" for name in listing.unsupported}))
    count = len(listing.unsupported)
    files = "file in an unsupported format was" if count == 1 else "files in unsupported formats were"
    yield f"{count} {files} skipped ({kinds}): {listing.unsupported[0]}{', ...' if count > 1 else ''}; save as JPEG or PNG."


def class_source(
    train: dict[str, list[str]],
    val: dict[str, list[str]] | None,
    *,
    kind: str,
    where: str,
    origin: str,
    make: tuple[Make, Make],
) -> ImageSource:
    """Build a source from the files of each class in each split; `make` builds the images of a split.

    Raises:
        DataError: there are no class folders.
    """
    classes = tuple(sorted({*train, *(val or {})}, key=natural))
    if not classes:
        raise DataError(f"{where}: no class folders; put each class's images into a folder named after it")
    number = {name: label for label, name in enumerate(classes)}

    def images(split: dict[str, list[str]], make: Make) -> Images:
        files = [file for members in split.values() for file in members]
        labels = [number[name] for name, members in split.items() for _ in members]
        return make(files, np.array(labels, dtype=np.int64))

    return ImageSource(
        kind=kind,
        where=where,
        classes=classes,
        train=images(train, make[0]),
        val=None if val is None else images(val, make[1]),
        origin=origin,
    )


def _class_folders_only(
    listing: Listing, config: DataConfig, names: list[str], depth: int, *, where: str, kind: str, make: Make
) -> ImageSource:
    if config.val_split is not None:
        raise DataError(
            f"{where}: task.data.val_split names a validation split, but there is no training split (looked for "
            f"{', '.join(TRAIN_NAMES)}); name it with --set task.data.train_split=NAME; found: "
            f"{', '.join(names[:12]) or 'nothing'}"
        )
    if names and all(name.lower() in VAL_NAMES for name in names):
        raise DataError(
            f"{where}: found {', '.join(names)} but no training split; add a folder named train, or name "
            "the training folder with --set task.data.train_split=NAME"
        )
    loose = sum(file.count("/") == depth for file in listing.files)
    if not names and loose:
        raise DataError(
            f"{where}: {loose} images but no class folders; put each class's images into a folder named after it"
        )
    if not listing.files:
        kinds = " ".join(sorted(EXTENSIONS))
        other = f"; {listing.unsupported[0]} has an unsupported format" if listing.unsupported else ""
        raise DataError(f"{where}: no images found (looked for {kinds}, in a folder per class){other}")
    return class_source(
        by_class(listing, depth), None, kind=kind, where=where, origin="the class folders", make=(make, make)
    )
