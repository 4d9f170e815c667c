"""Whether data are point clouds, from names and headers of files."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Literal

from attngraft.errors import DataError
from attngraft.opening import DAMAGE, array_header, open_npz, open_regular
from attngraft.tasks.images.sources.listing import is_image, is_junk
from attngraft.tasks.points.formats import EXTENSIONS, read_cloud
from attngraft.tasks.points.source import CATEGORIES, MODELNETS, class_folders

PointTask = Literal["points", "point_parts"]

_ALWAYS = (".off", ".ply", ".pcd")  #: extensions of files that contain nothing else
_FOLDERS, _FILES = 3, 20  #: number of folders of classes, and of files in each, that are looked at


def point_task(path: Path) -> PointTask | None:
    """Return `points` or, if the points have parts, `point_parts`; None if these are no point clouds.

    Arrays of floats (n, N, 3) and (n, N, 6) are clouds if N is more than twice the last number: images that narrow are not
    expected. Texts are clouds if they are in folders of classes, and a line has 3, 4, 6 or 7 numbers.
    """
    if path.is_file():
        kind = path.suffix.lower()
        return _of_npz(path) if kind == ".npz" else _of_hdf5(path) if kind == ".h5" else None
    if not path.is_dir():
        return None
    entries = sorted((entry for entry in os.scandir(path) if not is_junk(entry.name)), key=lambda entry: entry.name)
    names = {entry.name for entry in entries}
    if CATEGORIES in names:
        return "point_parts"
    if any(f"{listed}_shape_names.txt" in names for listed in MODELNETS):
        return "points"
    folders = [Path(entry.path) for entry in entries if entry.is_dir()]
    files = [Path(entry.path) for entry in entries if not entry.is_dir()]
    stored = [file for file in files if file.suffix.lower() == ".h5"]
    if stored:
        return _of_hdf5(stored[0])
    archives = [file for file in files if file.suffix.lower() == ".npz"]
    if len(archives) == 1 and not folders:
        return _of_npz(archives[0])
    flat = [file for file in files if file.suffix.lower() in _ALWAYS]
    return _of_file(flat[0]) if flat else _of_classes(folders)


def _of_npz(path: Path) -> PointTask | None:
    with suppress(*DAMAGE), open_npz(path) as archive:
        if "x_train" in archive.files:
            with archive.zip.open("x_train.npy") as file:  # type: ignore[union-attr]
                shape, _, dtype = array_header(file)
            if dtype.kind == "f" and len(shape) == 3 and shape[2] in (3, 6) and shape[1] > 2 * shape[2]:
                return "point_parts" if "parts_train" in archive.files else "points"
    return None


def _of_hdf5(path: Path) -> PointTask | None:
    try:
        import h5py
    except ImportError:  # reported when the data are opened
        return "points"
    with suppress(*DAMAGE), open_regular(path) as opened, h5py.File(opened, "r") as file:
        if {"data", "label"} <= {*file}:
            return "point_parts" if "pid" in file else "points"
    return None


def _of_classes(folders: list[Path]) -> PointTask | None:
    for folder in islice(class_folders(folders).get("train", {}).values(), _FOLDERS):
        found = [Path(entry.path) for entry in islice(os.scandir(folder), _FILES) if not is_junk(entry.name)]
        if any(is_image(file.name) for file in found):
            return None
        clouds = [file for file in sorted(found) if file.suffix.lower() in EXTENSIONS and file.is_file()]
        if clouds:
            return _of_file(clouds[0])
    return None


def _of_file(path: Path) -> PointTask | None:
    try:
        return "points" if read_cloud(path)[2] is None else "point_parts"
    except DataError:  # reported when the data are opened
        return "points" if path.suffix.lower() in _ALWAYS else None
