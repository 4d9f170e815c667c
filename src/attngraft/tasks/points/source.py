"""Data sets of point clouds in files and arrays, with their splits.

NAME.npz                     x_train (n, N, 3 or 6), y_train, x_test, y_test, ..., and optionally parts_train (n, N)
*.h5                         PointNet's: data, label, and optionally normal and pid (parts); the split is in the file name
train/CLASS/*, test/CLASS/*  a file per cloud (`formats`); or CLASS/train/*, CLASS/test/*; or CLASS/* without splits
modelnet40_shape_names.txt   ModelNet40 resampled: modelnet40_train.txt, modelnet40_test.txt, CLASS/*.txt
synsetoffset2category.txt    ShapeNetPart in text: train_test_split/*.json, SYNSET/*.txt
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import ConfigError, DataError
from attngraft.files import printable, user_path
from attngraft.hdf5 import array_in
from attngraft.opening import DAMAGE, access_errors, open_npz, open_regular, read_json, read_text
from attngraft.suggest import did_you_mean, first_line, quoted, shortened
from attngraft.tasks.images.sources.base import MAX_CLASSES, check_classes, file_stamp
from attngraft.tasks.images.sources.listing import is_junk, natural
from attngraft.tasks.points.clouds import Cloud, check_cloud, cloud_columns, numbered, quiet
from attngraft.tasks.points.formats import EXTENSIONS, SAMPLES, point_place, read_cloud
from attngraft.tasks.points.meshes import Raw

SPLITS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}

#: categories of ShapeNetPart with their numbers of parts, which are numbered from 0 to 49 in this order
_SHAPENET = (
    "Airplane 4, Bag 2, Cap 2, Car 4, Chair 4, Earphone 3, Guitar 3, Knife 2, Lamp 4, Laptop 2, Motorbike 6, Mug 2, "
    "Pistol 3, Rocket 3, Skateboard 3, Table 3"
)
MODELNETS = ("modelnet40", "modelnet10")
CATEGORIES, _LISTS = "synsetoffset2category.txt", "train_test_split"
_MANY = 100_000  #: more clouds in an array than this ...
_POINTS = 64  #: ... have this many points each, because names and places take as much memory
_GIVE = (
    "give a folder with train/CLASS/* and test/CLASS/*, an .npz, or the unpacked folder of ModelNet40 or ShapeNetPart"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Arrays:
    """Clouds of equal size in arrays."""

    where: str
    points: np.ndarray  #: (n, N, 3)
    normals: np.ndarray | None = None  #: (n, N, 3)
    parts: np.ndarray | None = None  #: (n, N)

    @quiet
    def read(self, index: int) -> Raw:
        columns = [self.points[index]]
        columns += [] if self.normals is None else [self.normals[index]]
        columns += [] if self.parts is None else [self.parts[index][:, None]]
        return cloud_columns(np.concatenate(columns, axis=1, dtype=np.float64), numbered(f"{self.where}[{index}]"))


@dataclass(frozen=True, slots=True)
class Row:
    """A cloud in arrays."""

    arrays: Arrays
    index: int

    def __str__(self) -> str:
        return f"{self.arrays.where}[{self.index}]"


Stored = Path | Row  #: a cloud


@dataclass(frozen=True, kw_only=True)
class Clouds:
    """Clouds of a split, which are read when they are used."""

    names: list[str]
    categories: np.ndarray  #: (N,) int64, indices into the classes
    stored: Sequence[Stored]
    has_normals: bool = False  #: whether clouds have normals; those of files without are refused then
    parts: Mapping[int, tuple[int, ...]] | None = None  #: parts of each category; None: clouds have no parts
    least: int = 1  #: smallest number of points
    samples: int = SAMPLES  #: number of points that are drawn from a mesh

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: np.ndarray) -> Clouds:
        """Return the clouds at `indices`, in this order."""
        names, stored = ([values[i] for i in indices] for values in (self.names, self.stored))
        return replace(self, names=names, categories=self.categories[indices], stored=stored)

    def joined(self, other: Clouds) -> Clouds:
        """Return these clouds, and then the `other` clouds of the same source."""
        categories = np.concatenate([self.categories, other.categories])
        return replace(
            self, names=self.names + other.names, categories=categories, stored=[*self.stored, *other.stored]
        )

    def raw(self, index: int) -> Raw:
        """Return points, normals and parts as they are stored."""
        stored = self.stored[index]
        return (
            read_cloud(stored, samples=self.samples) if isinstance(stored, Path) else stored.arrays.read(stored.index)
        )

    def cloud(self, index: int) -> Cloud:
        """Read a cloud.

        Raises:
            DataError: it cannot be used, see `check_cloud`; names the file and the line, or the cloud and the point.
        """
        stored, category = self.stored[index], int(self.categories[index])
        points, normals, parts = self.raw(index)
        for values, expected, what in (
            (normals, self.has_normals, "normals"),
            (parts, self.parts is not None, "parts"),
        ):
            if values is None and expected:
                raise DataError(f"{stored}: has no {what}, but other clouds have; add them, or remove this cloud")
        cloud = Cloud(
            name=self.names[index],
            points=points,
            normals=normals if self.has_normals else None,
            parts=None if self.parts is None else parts,
            category=category,
        )

        def place(point: int) -> str:
            return point_place(stored, point) if isinstance(stored, Path) else numbered(stored)(point)

        allowed = None if self.parts is None else self.parts[category]
        check_cloud(cloud, where=str(stored), place=place, least=self.least, parts=allowed)
        return cloud

    def fingerprint(self) -> bytes:
        """Return a digest of categories, parts, and the sizes and times of files or the content of arrays."""
        found = hashlib.sha256(np.ascontiguousarray(self.categories).tobytes())
        found.update(repr((self.has_normals, self.parts and sorted(self.parts.items()), self.samples)).encode())
        for arrays in {id(row.arrays): row.arrays for row in self.stored if isinstance(row, Row)}.values():
            for array in (arrays.points, arrays.normals, arrays.parts):
                found.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        for stored in self.stored:
            found.update(repr(file_stamp(stored) if isinstance(stored, Path) else stored.index).encode())
        return found.digest()


@dataclass(frozen=True, kw_only=True)
class CloudSource:
    """Clouds by split: train, and val and test if the data have them."""

    where: str
    classes: tuple[str, ...]
    splits: Mapping[str, Clouds]
    has_normals: bool
    parts: Mapping[int, tuple[int, ...]] | None  #: numbers of the parts of each category

    def fingerprint(self) -> bytes:
        """Return a digest of the classes and of all splits."""
        found = hashlib.sha256("\n".join(self.classes).encode("utf-8", "surrogateescape"))
        for name, clouds in self.splits.items():
            found.update(name.encode() + clouds.fingerprint())
        return found.digest()


@access_errors()
def load_clouds(path: Path | str, *, least: int = 1, samples: int = SAMPLES) -> CloudSource:
    """Find the clouds of a file or folder in one of the layouts above; files are listed, and read later.

    Whether clouds have normals and parts is read from the first cloud. The parts of a category are those of ShapeNetPart if
    the classes are its 16, otherwise all parts in its training clouds, which are read for it.

    Args:
        path: the file or folder.
        least: smallest number of points of a cloud.
        samples: number of points that are drawn from a mesh.

    Raises:
        DataError: the data cannot be used; the message names the file and the remedy.
        ConfigError: HDF5 without h5py.
    """
    root = user_path(path)
    found = _found(root)
    if not found.splits.get("train"):
        raise DataError(f"{root}: no training clouds; {_GIVE}")
    classes = found.classes
    check_classes(classes, where=str(root))
    splits = {
        name: Clouds(
            names=[each for each, _, _ in entries],
            categories=np.array([category for _, _, category in entries], dtype=np.int64),
            stored=[stored for _, stored, _ in entries],
            least=least,
            samples=samples,
        )
        for name in SPLITS
        if (entries := found.splits.get(name))
    }
    _, normals, labels = splits["train"].raw(0)
    has_normals, parts = normals is not None, None if labels is None else _parts(splits["train"], classes)
    splits = {name: replace(clouds, has_normals=has_normals, parts=parts) for name, clouds in splits.items()}
    for clouds in splits.values():
        for index in range(len(clouds)):
            if isinstance(clouds.stored[index], Row):  # in memory already
                clouds.cloud(index)
    return CloudSource(where=str(root), classes=classes, splits=splits, has_normals=has_normals, parts=parts)


@dataclass
class _Found:
    """Name, location and category of the clouds of each split."""

    classes: tuple[str, ...]
    splits: dict[str, list[tuple[str, Stored, int]]] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)  #: names of clouds that a list names

    def add(self, split: str, name: str, stored: Stored, category: int) -> None:
        self.splits.setdefault(split, []).append((name, stored, category))


def _found(root: Path) -> _Found:
    if not root.exists():
        raise DataError(f"{root}: no such file or folder; {_GIVE}")
    if not root.is_dir():
        if root.suffix.lower() not in (".npz", ".h5"):
            raise DataError(f"{root}: not a data set of point clouds; {_GIVE}")
        return _npz(root) if root.suffix.lower() == ".npz" else _hdf5(root.parent, [root])
    entries = sorted(
        (entry for entry in root.iterdir() if not is_junk(entry.name)), key=lambda entry: natural(entry.name)
    )
    names = {entry.name for entry in entries}
    if CATEGORIES in names:
        return _shapenet(root)
    for listed in MODELNETS:
        if f"{listed}_shape_names.txt" in names:
            return _resampled(root, listed)
    folders = [entry for entry in entries if entry.is_dir()]
    for kind in (".h5", ".npz"):
        files = [entry for entry in entries if entry.suffix.lower() == kind]
        if kind == ".h5" and files:
            return _hdf5(root, files)
        if len(files) == 1 and not folders:
            return _npz(files[0])
    return _folders(root, folders)


def class_folders(folders: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """Return the folder of each class of each split, of the folders in the folder of a data set."""
    tops = dict[str, Path | None]()
    for split, usual in SPLITS.items():
        found = [each for each in folders if each.name.lower() in usual]
        if len(found) > 1:
            listed = " and ".join(each.name for each in found)
            raise DataError(f"{found[0].parent}: the folders {listed} are both the part {split}; join or rename them")
        tops[split] = found[0] if found else None
    if tops["train"] is not None:
        return {split: _subfolders(top) for split, top in tops.items() if top is not None}
    if any((folder / "train").is_dir() for folder in folders):
        return {
            split: {folder.name: folder / split for folder in folders if (folder / split).is_dir()} for split in SPLITS
        }
    return {"train": {folder.name: folder for folder in folders}}


def _folders(root: Path, folders: Sequence[Path]) -> _Found:
    sides = class_folders(folders)
    classes = tuple(sorted({name for side in sides.values() for name in side}, key=natural))
    found = _Found(classes)
    for split, side in sides.items():
        for name in sorted(side, key=natural):
            for file in sorted(side[name].iterdir(), key=lambda file: natural(file.name)):
                if file.suffix.lower() in EXTENSIONS and not is_junk(file.name):
                    found.add(split, file.relative_to(root).as_posix(), file, classes.index(name))
    if not found.splits:
        listed = shortened((folder.name for folder in folders), 8) or "no folders"
        raise DataError(
            f"{root}: no point clouds ({', '.join(EXTENSIONS)}) in the folders of classes ({listed}); {_GIVE}"
        )
    return found


def _subfolders(folder: Path) -> dict[str, Path]:
    return {each.name: each for each in folder.iterdir() if each.is_dir() and not is_junk(each.name)}


def _listed(path: Path) -> list[tuple[str, str]]:
    """Return the location and the text of the lines of a list that are not empty."""
    lines = _read(path, read_text).split("\n")
    return [(f"{path}: line {number}", line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]


def _read(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except (FileNotFoundError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); download it again") from None


def _resampled(root: Path, listed: str) -> _Found:
    found = _Found(tuple(name for _, name in _listed(root / f"{listed}_shape_names.txt")))
    number = {name: category for category, name in enumerate(found.classes)}
    for split in SPLITS:
        lists = root / f"{listed}_{split}.txt"
        for place, name in _listed(lists) if split == "train" or lists.exists() else ():
            kind = name.rpartition("_")[0]
            if kind not in number or "/" in name or kind == "..":
                near = did_you_mean(kind, found.classes)
                raise DataError(
                    f"{place}: {quoted(name)} is not CLASS_NUMBER of a class of {listed}{near}; correct the line"
                )
            _add_file(found, split, root / kind / f"{name}.txt", f"{kind}/{name}.txt", number[kind], place)
    return found


def _shapenet(root: Path) -> _Found:
    classes, number = list[str](), dict[str, int]()
    for place, line in _listed(root / CATEGORIES):
        if len(line.split()) != 2 or "/" in line or ".." in line:
            raise DataError(f"{place}: expected a category and the name of its folder; download the file again")
        name, synset = line.split()
        number[synset] = len(classes)
        classes.append(name)
    found = _Found(tuple(classes))
    for split in SPLITS:
        lists = root / _LISTS / f"shuffled_{split}_file_list.json"
        if split != "train" and not lists.exists():
            continue
        entries = _read(lists, read_json)
        for entry in entries if isinstance(entries, list) else [entries]:
            folder, synset, name = [*entry.split("/"), "", ""][:3] if isinstance(entry, str) else ["", "", ""]
            if folder != "shape_data" or synset not in number or entry.count("/") != 2 or name in ("", ".."):
                raise DataError(
                    f"{lists}: {quoted(entry)} is not shape_data/SYNSET/NAME of a listed category; correct it"
                )
            place = f"{lists}: {quoted(entry)}"
            _add_file(found, split, root / synset / f"{name}.txt", f"{synset}/{name}.txt", number[synset], place)
    return found


def _add_file(found: _Found, split: str, file: Path, name: str, category: int, place: str) -> None:
    if not file.is_file():
        raise DataError(f"{place}: there is no file {file}; download the data again, or remove this entry")
    if name in found.listed:
        raise DataError(f"{place}: lists the cloud {quoted(name)} a second time; remove this entry")
    found.listed.add(name)
    found.add(split, name, file, category)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert errors of damaged files of arrays."""
    try:
        yield
    except DataError:
        raise
    except DAMAGE as error:
        objects = "clouds of different numbers of points cannot be in one array: save a file for each"
        remedy = objects if "Object arrays" in str(error) else "download or save it again"
        raise DataError(f"{path}: cannot be read ({first_line(error)}); {remedy}") from None


def _npz(path: Path) -> _Found:
    with _reading(path), open_npz(path) as archive:
        arrays = {
            name: archive[name]
            for name in archive.files
            if name.rpartition("_")[2] in SPLITS or name.startswith("class")
        }
    _check_names(archive.files, arrays, path)
    named = next((_texts(arrays[name]) for name in ("class_names", "classes") if name in arrays), None)
    labels, parts = dict[str, np.ndarray](), dict[str, Arrays]()
    for split in SPLITS:
        if f"x_{split}" not in arrays:
            continue
        values, where = arrays[f"x_{split}"], f"{path}: x_{split}"
        if f"y_{split}" not in arrays:
            raise DataError(f"{path}: has the clouds x_{split}, but no labels y_{split}; add them")
        if values.ndim != 3 or values.shape[2] not in (3, 6):
            raise DataError(f"{where} must be (clouds, points, 3 or 6) numbers, got {values.dtype} {values.shape}")
        labels[split] = arrays[f"y_{split}"]
        normals = values[:, :, 3:] if values.shape[2] == 6 else None
        parts[split] = Arrays(where=where, points=values[:, :, :3], normals=normals, parts=arrays.get(f"parts_{split}"))
    if "train" not in parts:
        listed = shortened(sorted(arrays), 8) or "nothing"
        raise DataError(
            f"{path}: must contain the arrays x_train and y_train, and perhaps x_test and y_test; found: {listed}"
        )
    rows = {split: [(each, labels[split])] for split, each in parts.items()}
    found = _from_arrays(rows, named)
    for split in parts:
        ids = arrays.get(f"id_{split}")
        names = _texts(ids) if ids is not None and ids.size == len(found.splits.get(split, ())) else []
        if names and len({*names}) == len(names):
            found.splits[split] = [
                (name, stored, category) for name, (_, stored, category) in zip(names, found.splits[split], strict=True)
            ]
    return found


def _texts(values: np.ndarray) -> list[str]:
    given = values.reshape(-1).tolist()
    return printable([os.fsdecode(each) if isinstance(each, bytes) else str(each) for each in given])


def _check_names(names: Sequence[str], arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """Check that no array would be ignored for its name, and that the classes are a list."""
    for split, others in SPLITS.items():
        for name in {f"x_{other}" for other in others[1:]} & {*names}:
            raise DataError(f"{path}: {name} would not be used; rename it to x_{split}, and its labels to y_{split}")
    for name in ("class_names", "classes"):
        if name in arrays and arrays[name].ndim != 1:
            raise DataError(f"{path}: {name} must be a list of names, (N,), got {arrays[name].shape}")
        if name in arrays and len(arrays[name]) > MAX_CLASSES:
            count = len(arrays[name])
            raise DataError(f"{path}: {name} has {count:,} names; give {MAX_CLASSES:,} classes or fewer")


def _hdf5(root: Path, files: Sequence[Path]) -> _Found:
    try:
        import h5py
    except ImportError:
        raise ConfigError(f"{files[0]}: requires h5py; run pip install 'attngraft[points]'") from None
    rows = dict[str, list[tuple[Arrays, np.ndarray]]]()
    for path in files:
        words = {*re.split(r"[\W\d_]+", path.stem.lower())}  # train of ply_data_train0, but not of constrained
        found = [split for split, usual in SPLITS.items() if words & {*usual}] or ["train"] * (len(files) == 1)
        if len(found) != 1:
            what = "contains " + " and ".join(found) if found else "tells no split"
            raise DataError(f"{path}: the name {what}; rename it so that it contains train, val or test as a word")
        with _reading(path), open_regular(path) as opened, h5py.File(opened, "r") as file:
            data = {name: _dataset(file, name, path) for name in ("data", "label", "normal", "pid") if name in {*file}}
        if not {"data", "label"} <= {*data}:
            raise DataError(f"{path}: has no data and label (found: {', '.join(data) or 'neither'}); download it again")
        arrays = Arrays(where=f"{path}: data", points=data["data"], normals=data.get("normal"), parts=data.get("pid"))
        rows.setdefault(found[0], []).append((arrays, data["label"]))
    lists = [root / name for name in ("shape_names.txt", "all_object_categories.txt") if (root / name).exists()]
    return _from_arrays(rows, [line.split("\t")[0] for _, line in _listed(lists[0])] if lists else None)


def _dataset(file: Any, name: str, path: Path) -> np.ndarray:
    """Read an array of an HDF5 file.

    Raises:
        DataError: it is in another file, which could be any, or is not an array.
        UnsuitableFile: see `array_in`.
    """
    dataset = array_in(file, name)
    if dataset is None:
        raise DataError(f"{path}: {name} is not an array in this file; write the array itself into it")
    values: np.ndarray = dataset[()]
    return values


def _from_arrays(rows: Mapping[str, Sequence[tuple[Arrays, np.ndarray]]], names: Sequence[str] | None) -> _Found:
    """Return the clouds of arrays, whose shapes and labels are checked."""
    found, highest = _Found(()), -1
    for split, pieces in rows.items():
        for arrays, labels in pieces:
            points, where = arrays.points, arrays.where
            for values, shape, what in (
                (points, (*points.shape[:2], 3), "the points"),
                (arrays.normals, (*points.shape[:2], 3), "the normals"),
                (arrays.parts, points.shape[:2], "the parts"),
            ):
                if values is not None and (values.dtype.kind not in "fiu" or values.shape != shape):
                    raise DataError(f"{where}: {what} must be numbers {shape}, got {values.dtype} {values.shape}")
            if len(points) > _MANY and points.shape[1] < _POINTS:
                raise DataError(
                    f"{where}: has {len(points):,} clouds of {points.shape[1]} points; use {_MANY:,} or fewer, or larger "
                    "ones"
                )
            labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
            if labels.dtype.kind not in "iu" or labels.shape != (len(points),):
                raise DataError(
                    f"{where}: the labels of {len(points)} clouds must be whole numbers ({len(points)},), got "
                    f"{labels.dtype} {labels.shape}; number the classes from 0"
                )
            for index, label in enumerate(labels.tolist()):
                count = MAX_CLASSES if names is None else len(names)
                if not 0 <= label < count:
                    raise DataError(
                        f"{where}[{index}]: the label {label} is not a class from 0 to {count - 1}; correct it"
                    )
                highest = max(highest, label)
                found.add(split, f"{split}/{len(found.splits.get(split, ()))}", Row(arrays, index), label)
    found.classes = tuple(map(str, range(highest + 1))) if names is None else tuple(names)
    return found


def _parts(clouds: Clouds, classes: Sequence[str]) -> dict[int, tuple[int, ...]]:
    """Return the parts of each category."""
    counts = {name: int(count) for name, count in (entry.split() for entry in _SHAPENET.split(", "))}
    if {*classes} == {*counts}:
        ends = dict(zip(counts, np.cumsum([*counts.values()]).tolist(), strict=True))
        return {number: tuple(range(ends[name] - counts[name], ends[name])) for number, name in enumerate(classes)}
    found: dict[int, set[int]] = {number: set() for number in range(len(classes))}
    for index, category in enumerate(clouds.categories.tolist()):
        parts = clouds.raw(index)[2]
        found[category].update(() if parts is None else np.unique(parts).tolist())
    return {category: tuple(sorted(numbers)) for category, numbers in found.items()}
