"""Where the images of a folder or tar lie, and what their folders say: part, then class."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.images import Images
from attngraft.tasks.images.sources.parts import TRAIN_NAMES, VAL_NAMES, Parts, find_name, missing_validation

#: what counts as an image file
EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
)

#: images that Pillow does not read, or not everywhere
FOREIGN = frozenset((".heic", ".heif", ".avif", ".jxl", ".jp2", ".psd", ".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw"))

#: builds images from paths (as listed) and their labels
Make = Callable[[list[str], np.ndarray], Images]


@dataclass(frozen=True)
class Listing:
    """Paths relative to the source, separated by `/`: image files, and all folders (also empty ones)."""

    where: str
    files: tuple[str, ...]
    folders: tuple[str, ...]
    foreign: tuple[str, ...] = ()  #: images of kinds that are not read

    def below(self, folder: str) -> Listing:
        """What lies in `folder`, relative to the source still."""
        prefix = f"{folder}/"
        return Listing(
            f"{self.where}/{folder}",
            tuple(file for file in self.files if file.startswith(prefix)),
            tuple(name for name in self.folders if name.startswith(prefix)),
        )


def is_junk(name: str) -> bool:
    """Files and folders that systems leave behind."""
    return name.startswith(".") or name in ("__MACOSX", "@eaDir")


def is_image(path: str) -> bool:
    """Whether the path's extension is an image's, and its name no system's leftover."""
    name = path.rpartition("/")[2]
    return not is_junk(name) and "." in name and f".{name.rpartition('.')[2].lower()}" in EXTENSIONS


def is_foreign(path: str) -> bool:
    """Whether the path's extension is that of an image which is not read."""
    return f".{path.rpartition('.')[2].lower()}" in FOREIGN


def natural(name: str) -> tuple[list[str | int], str]:
    """Sorts `class 2` before `class 10`."""
    pieces: list[str | int] = [*re.split(r"(\d+)", name)]
    pieces[1::2] = [int(piece) for piece in pieces[1::2]]
    return pieces, name


def by_class(listing: Listing, depth: int) -> dict[str, list[str]]:
    """Class name -> image files, in natural order; the class is the path's component at `depth`."""
    found: dict[str, list[str]] = {}
    for folder in listing.folders:
        pieces = folder.split("/")
        if len(pieces) > depth:
            found.setdefault(pieces[depth], [])
    for file in listing.files:
        pieces = file.split("/")
        if len(pieces) > depth + 1:
            found.setdefault(pieces[depth], []).append(file)
    return {name: sorted(found[name], key=natural) for name in sorted(found, key=natural)}


def wrapper(listing: Listing, *, but: Sequence[str] = ()) -> str:
    """The folders that everything lies in (a tar of `flowers/daisy/1.jpg`, ...), unless their name is in `but`."""
    paths = [file.split("/") for file in listing.files]
    depth = 0
    while paths and all(len(path) > depth + 2 for path in paths) and len({path[depth] for path in paths}) == 1:
        siblings = {folder.split("/")[depth] for folder in listing.folders if folder.count("/") >= depth}
        if paths[0][depth].lower() in but or len(siblings | {paths[0][depth]}) > 1:
            break
        depth += 1
    return "/".join(paths[0][:depth]) if paths else ""


def divide(listing: Listing, config: DataConfig, *, kind: str, make: Make) -> Parts:
    """Parts from folders: `train/<class>/...` beside `val/<class>/...`, or `<class>/...` alone.

    Raises:
        DataError: no images, no class folders, or a missing part.
    """
    parts = _divided(listing, config, kind=kind, make=make)
    if not listing.foreign:
        return parts
    kinds = ", ".join(sorted({f".{name.rpartition('.')[2].lower()}" for name in listing.foreign}))
    count = len(listing.foreign)
    verb = "file is of a kind that is" if count == 1 else "files are of kinds that are"
    note = (
        f"{count} {verb} not read ({kinds}): {listing.foreign[0]}{', ...' if count > 1 else ''}; save as JPEG or PNG."
    )
    return replace(parts, notes=(*parts.notes, note))


def _divided(listing: Listing, config: DataConfig, *, kind: str, make: Make) -> Parts:
    inside = wrapper(listing, but=(*TRAIN_NAMES, *VAL_NAMES))
    depth = inside.count("/") + 1 if inside else 0
    there = list(by_class(listing, depth))
    where = f"{listing.where}/{inside}" if inside else listing.where
    train = find_name(there, config.train_split, TRAIN_NAMES, field="train_split", where=where)
    if train is None:
        return _undivided(listing, config, there, depth, where=where, kind=kind, make=make)
    named = config.val_split or not config.draws
    val = find_name(there, config.val_split, VAL_NAMES, field="val_split", where=where) if named else None
    if named and val is None:
        raise missing_validation(where, train, there)
    prefix = f"{inside}/" if inside else ""
    below = {part: by_class(listing.below(prefix + part), depth + 1) for part in (train, val) if part is not None}
    origin = f"the folders {train} and {val}" if val else f"the folder {train}"
    return together(below[train], below[val] if val else None, kind=kind, where=where, origin=origin, make=(make, make))


def together(
    train: dict[str, list[str]],
    val: dict[str, list[str]] | None,
    *,
    kind: str,
    where: str,
    origin: str,
    make: tuple[Make, Make],
) -> Parts:
    """Parts from each part's files by class; `make` builds the training and the validation images.

    Raises:
        DataError: no class folders.
    """
    classes = tuple(sorted({*train, *(val or {})}, key=natural))
    if not classes:
        raise DataError(f"{where}: no class folders; put each class's images into a folder named after it")
    number = {name: label for label, name in enumerate(classes)}

    def built(part: dict[str, list[str]], make: Make) -> Images:
        files = [file for members in part.values() for file in members]
        labels = [number[name] for name, members in part.items() for _ in members]
        return make(files, np.array(labels, dtype=np.int64))

    return Parts(
        kind=kind,
        where=where,
        classes=classes,
        train=built(train, make[0]),
        val=None if val is None else built(val, make[1]),
        origin=origin,
    )


def _undivided(
    listing: Listing, config: DataConfig, there: list[str], depth: int, *, where: str, kind: str, make: Make
) -> Parts:
    """Class folders without parts."""
    if config.val_split is not None:
        raise DataError(
            f"{where}: task.data.val_split names a validation part, but no training part was found (looked for "
            f"{', '.join(TRAIN_NAMES)}); name it with task.data.train_split; there is: {', '.join(there[:12]) or 'nothing'}"
        )
    if there and all(name.lower() in VAL_NAMES for name in there):
        raise DataError(
            f"{where}: there is {', '.join(there)} but no training part; add a folder train, or name it with "
            "task.data.train_split"
        )
    loose = sum(file.count("/") == depth for file in listing.files)
    if not there and loose:
        raise DataError(
            f"{where}: {loose} images but no class folders; put each class's images into a folder named after it"
        )
    if not listing.files:
        kinds = " ".join(sorted(EXTENSIONS))
        other = f"; there is {listing.foreign[0]}, of a kind that is not read" if listing.foreign else ""
        raise DataError(f"{where}: no images found (looked for {kinds}, in a folder per class){other}")
    return together(
        by_class(listing, depth), None, kind=kind, where=where, origin="the class folders", make=(make, make)
    )
