"""Images and labels in the arrays of an .npz file, or of a folder of .npy files.

Arrays of splits are called `x_train` and `y_train`, or `train_images` and `train_labels` as in MedMNIST. Without splits,
they are `x` and `y`, or `images` and `labels`. Upper and lower case are the same. Optional arrays are `classes` and, with
splits, the file names `f_train`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.opening import DAMAGE, array_header, open_regular
from attngraft.opening import open_npz as open_npz_file
from attngraft.suggest import first_line, quoted, repeated
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import MAX_CLASSES, ArrayImages, ImageSource, find_test, find_train, find_val
from attngraft.tasks.images.sources.listing import is_image, is_junk, natural

Arrays = Mapping[str, np.ndarray]

#: names of arrays of images and of labels, in order of preference; {} is the split
_IMAGES = ("x_{}", "{}_x", "{}_images", "images_{}")
_LABELS = ("y_{}", "{}_y", "{}_labels", "labels_{}")
_UNSPLIT_IMAGES, _UNSPLIT_LABELS = ("x", "images"), ("y", "labels")

_MANY = 1_000_000  #: more images than this ...
_PIXELS = 64  #: ... have this many pixels each, because names and digests take as much memory

_TOLERANCE = 1e-3  #: allowed rounding error of floats from 0 to 1
_BRIGHT = 128  #: smallest maximum of floats that are read as 0 to 255


def open_npz(path: Path, config: DataConfig) -> ImageSource:
    """Open the images in an .npz file, or in a folder of .npy files.

    Images are (N, H, W) or (N, H, W, C) with 1, 3 or 4 channels: integers from 0 to 255, or floats from 0 to 1 or from
    0 to 255. Labels are one integer or name per image, (N,) or (N, 1), or, for several labels per image, (N, K) of 0 and 1.
    Integers count from 0; they are indices into the array `classes` if it exists.

    Raises:
        DataError: an array is missing or cannot be read, or has a wrong shape, type, range or label.
    """
    keys = _Keys(_names(path), path)
    names, train = keys.splits(config)
    if train is None:
        parts, val = [keys.unsplit()], None
        origin = f"the array {parts[0].images}"
    else:
        val = find_val(names, config, train=train, where=str(path))
        parts = [keys.part(split) for split in (train, val) if split is not None]
        origin = " and ".join(part.images for part in parts)
        origin = f"the arrays {origin}" if val else f"the array {origin}"
    wanted = [key for part in parts for key in (part.images, part.labels, part.files) if key is not None]
    arrays = _load(path, [*wanted, *keys.named("classes")])
    for part in parts:
        _check_part(arrays, part, path)
    for key in keys.named("classes"):
        if arrays[key].size > MAX_CLASSES:
            raise DataError(f"{path}: {key} has {arrays[key].size:,} names; give {MAX_CLASSES:,} classes or fewer")
    labels = _Labels.read(arrays, parts, path)
    scale, note = _scale(arrays, parts, path)
    images = [_images(arrays, part, labels.values[part.labels], scale=scale, path=path) for part in parts]
    return ImageSource(
        kind="npy" if path.is_dir() else "npz",
        where=str(path),
        classes=labels.classes,
        train=images[0],
        val=images[1] if val is not None else None,
        test_split=None if train is None else find_test(names, config, used=(train, val), where=str(path)),
        origin=origin,
        multilabel=labels.multilabel,
        notes=tuple(text for text in (labels.note, note) if text),
    )


def archive_in(folder: Path) -> Path | None:
    """Return the only .npz file in `folder`, or `folder` itself if it has .npy files; None with subfolders."""
    entries = [entry for entry in folder.iterdir() if not is_junk(entry.name)]
    if any(entry.is_dir() for entry in entries):
        return None
    files = [entry for entry in entries if entry.suffix == ".npz"]
    if files:
        return files[0] if len(files) == 1 else None
    has_arrays = any(entry.suffix == ".npy" for entry in entries)
    return folder if has_arrays and not any(is_image(entry.name) for entry in entries) else None


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Names of the arrays of one split."""

    name: str  #: prefix of the images' names
    images: str
    labels: str
    files: str | None


class _Keys:
    """Names of the arrays of an archive, found by role, in upper or lower case."""

    def __init__(self, names: Sequence[str], path: Path) -> None:
        if twice := repeated(name.lower() for name in names):
            raise DataError(f"{path}: has two arrays {quoted(twice)} that differ in case; rename or remove one")
        self.path, self.lowered = path, {name.lower(): name for name in sorted(names)}

    def named(self, *names: str) -> list[str]:
        return [self.lowered[name.lower()] for name in names if name.lower() in self.lowered]

    def splits(self, config: DataConfig) -> tuple[list[str], str | None]:
        """Return the names of all splits and of the training split (None: the arrays have no splits)."""
        found: list[list[str]] = []
        for pattern in _IMAGES:
            before, _, behind = pattern.partition("{}")
            names = [
                name[len(before) : len(name) - len(behind)]
                for key, name in self.lowered.items()
                if len(key) > len(pattern) - 2 and key.startswith(before) and key.endswith(behind)
            ]
            if config.train_split in names or (config.train_split is None and find_train(names, config, where="")):
                return names, find_train(names, config, where=str(self.path))
            found.append(names)
        return [], find_train([name for names in found for name in names], config, where=str(self.path))

    def part(self, split: str) -> _Part:
        """Return the arrays of a split."""
        images, labels = ([pattern.format(split) for pattern in patterns] for patterns in (_IMAGES, _LABELS))
        return self._part(split, images, labels, self.named(f"f_{split}"))

    def unsplit(self) -> _Part:
        """Return the arrays of an archive without splits."""
        if not self.named(*_UNSPLIT_IMAGES):
            listed = ", ".join(sorted(self.lowered.values())) or "nothing"
            raise DataError(
                f"{self.path}: must contain the arrays x_train and y_train (or train_images and train_labels), or, without "
                f"splits, x and y (or images and labels); found: {listed}"
            )
        return self._part(None, _UNSPLIT_IMAGES, _UNSPLIT_LABELS, [])

    def _part(self, split: str | None, images: Sequence[str], labels: Sequence[str], files: Sequence[str]) -> _Part:
        key = self.named(*images)[0]
        found = self.named(*labels)
        if not found:
            usual = labels[[name.lower() for name in images].index(key.lower())]
            raise DataError(f"{self.path}: has the images {key}, but no labels {usual}")
        return _Part(name=split or key, images=key, labels=found[0], files=next(iter(files), None))


def _names(path: Path) -> list[str]:
    if path.is_dir():
        return [entry.stem for entry in path.iterdir() if entry.suffix == ".npy" and not is_junk(entry.name)]
    try:
        with open_npz_file(path) as archive:
            return list(archive.files)
    except DAMAGE as error:
        raise _unreadable(path, error) from None


def _load(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    file = path
    arrays: dict[str, np.ndarray] = {}
    try:
        if path.is_dir():
            for name in names:
                file = path / f"{name}.npy"
                with open_regular(file) as opened:
                    array_header(opened, size=file.stat().st_size)
                    opened.seek(0)
                    arrays[name] = np.lib.format.read_array(opened, allow_pickle=False)
            return arrays
        with open_npz_file(path) as archive:
            return {name: archive[name] for name in names}
    except DAMAGE as error:
        raise _unreadable(file, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    kind, write = (".npy", "numpy.save") if path.suffix == ".npy" else (".npz", "numpy.savez")
    return DataError(
        f"{path}: cannot be read as {kind} ({first_line(error)}); write it with {write}, without object arrays"
    )


@dataclass(frozen=True, kw_only=True)
class _Labels:
    """Labels of all splits: (N,) int64 each, or (N, K) uint8 if `multilabel`."""

    classes: tuple[str, ...]
    values: Arrays  #: by the name of the array
    multilabel: bool = False
    note: str = ""

    @classmethod
    def read(cls, arrays: Arrays, parts: Sequence[_Part], path: Path) -> "_Labels":
        """Read the labels of all `parts`, which are of one kind."""
        labels = {part.labels: arrays[part.labels] for part in parts}
        labels = {key: each[:, 0] if each.ndim == 2 and each.shape[1] == 1 else each for key, each in labels.items()}
        named = next((array for key, array in arrays.items() if key.lower() == "classes"), None)
        classes = None if named is None else _texts(named, "classes", path)
        if all(each.ndim == 1 and each.dtype.kind in "US" for each in labels.values()):
            return cls._of_names({key: [_text(name) for name in each] for key, each in labels.items()}, classes, path)
        columns = {each.shape[1] for each in labels.values() if each.ndim == 2}
        if len(columns) == 1 and all(each.ndim == 2 and _is_binary(each) for each in labels.values()):
            return cls._of_columns(labels, classes, columns.pop(), path)
        for key, each in labels.items():
            if each.ndim != 1 or each.dtype.kind not in "iub":
                raise DataError(
                    f"{path}: {key} must be one integer per image, or a column of 0 and 1 for each class, got {each.dtype} "
                    f"{each.shape}"
                )
        if classes is None:
            highest = max((int(each.max()) for each in labels.values() if len(each)), default=-1)
            if highest >= MAX_CLASSES:
                raise DataError(f"{path}: the highest label is {highest:,}; give {MAX_CLASSES:,} classes or fewer")
            classes = tuple(str(label) for label in range(highest + 1))
        for key, each in labels.items():
            if len(each) and not 0 <= each.min() <= each.max() < len(classes):
                raise DataError(
                    f"{path}: {key} ranges from {each.min()} to {each.max()}, but labels of {len(classes)} classes must be "
                    f"0 to {len(classes) - 1}"
                )
        return cls(classes=classes, values={key: each.astype(np.int64) for key, each in labels.items()})

    @classmethod
    def _of_names(cls, labels: Mapping[str, list[str]], classes: tuple[str, ...] | None, path: Path) -> "_Labels":
        if classes is None:
            classes = tuple(sorted({name for names in labels.values() for name in names}, key=natural))
        number = {name: label for label, name in enumerate(classes)}
        for key, names in labels.items():
            unknown = next((name for name in names if name not in number), None)
            if unknown is not None:
                raise DataError(f"{path}: {key} contains {unknown!r}, which the array classes lacks; add it there")
        values = {key: np.array([number[name] for name in names], dtype=np.int64) for key, names in labels.items()}
        return cls(classes=classes, values=values)

    @classmethod
    def _of_columns(cls, labels: Arrays, classes: tuple[str, ...] | None, columns: int, path: Path) -> "_Labels":
        names = tuple(map(str, range(columns))) if classes is None else classes
        if len(names) != columns:
            raise DataError(
                f"{path}: {next(iter(labels))} has {columns} columns, but the array classes has {len(names)} names; "
                "they must be the same number"
            )
        if all((each.sum(axis=1) == 1).all() for each in labels.values()):
            note = "Labels are one-hot: each row has a single 1, so each image has one class."
            return cls(classes=names, values={key: each.argmax(axis=1) for key, each in labels.items()}, note=note)
        values = {key: each.astype(np.uint8) for key, each in labels.items()}
        return cls(classes=names, values=values, multilabel=True)


def _is_binary(values: np.ndarray) -> bool:
    """Return whether all values are 0 or 1, for integers without a temporary array of their size."""
    if values.dtype.kind in "biu":
        return not values.size or bool(values.min() >= 0 and values.max() <= 1)
    return bool(((values == 0) | (values == 1)).all())


def _scale(arrays: Arrays, parts: Sequence[_Part], path: Path) -> tuple[int, str]:
    """Return the factor from float pixels to 0 to 255, the same for all splits, and a note if pixels are floats."""
    ranges = {}
    for key in (part.images for part in parts):
        pixels = arrays[key]
        if pixels.dtype == np.uint8:
            continue
        if pixels.dtype.kind not in "fiub":
            raise DataError(f"{path}: {key} must be integers from 0 to 255 or floats, got {pixels.dtype}")
        low, high = (float(pixels.min()), float(pixels.max())) if pixels.size else (0.0, 0.0)
        is_float = pixels.dtype.kind == "f"
        factor = 255 if is_float and low >= -_TOLERANCE and high <= 1 + _TOLERANCE else 1
        if factor == 1 and not (low >= 0 and (_BRIGHT if is_float else 0) <= high <= 255):
            raise DataError(
                f"{path}: {key} ({pixels.dtype}) ranges from {low:g} to {high:g}, but pixels must be integers from 0 to 255 "
                "or floats from 0 to 1 or 0 to 255; rescale it, such as with (x - x.min()) / (x.max() - x.min())"
            )
        if is_float:
            ranges[key] = factor, f"{pixels.dtype} from {low:g} to {high:g}"
    if not ranges:
        return 1, ""
    if len({factor for factor, _ in ranges.values()}) > 1:
        listed = ", ".join(f"{key} is {text}" for key, (_, text) in ranges.items())
        raise DataError(f"{path}: the splits have different ranges ({listed}); save all of them from 0 to 1")
    factor = next(iter(ranges.values()))[0]
    listed = ", ".join(f"{key} ({text})" for key, (_, text) in ranges.items())
    return factor, f"Float pixels in {listed} are {'multiplied by 255 and ' if factor > 1 else ''}rounded to 8 bits."


def _check_part(arrays: Arrays, part: _Part, path: Path) -> None:
    """Check the shapes of the arrays of a split, before anything is made for each image or class."""
    key, pixels, labels = part.images, arrays[part.images], arrays[part.labels]
    if pixels.ndim == 4 and pixels.shape[-1] not in (1, 3, 4) and pixels.shape[1] in (1, 3):
        raise DataError(
            f"{path}: {key} is channels-first {pixels.shape}; make it channels-last with x.transpose(0, 2, 3, 1)"
        )
    if pixels.ndim not in (3, 4) or (pixels.ndim == 4 and pixels.shape[-1] not in (1, 3, 4)):
        raise DataError(f"{path}: {key} must be (N, H, W) or (N, H, W, C) with 1, 3 or 4 channels, got {pixels.shape}")
    if len(pixels) and not pixels.size:
        raise DataError(f"{path}: {key} has images without pixels, {pixels.shape}; save them with a height and a width")
    height, width = pixels.shape[1:3]
    if len(pixels) > _MANY and height * width < _PIXELS:
        raise DataError(
            f"{path}: {key} has {len(pixels):,} images of {height} x {width} pixels; use {_MANY:,} or fewer, or larger ones"
        )
    for name in (part.labels, part.files):
        entries = 0 if name is None or not arrays[name].ndim else len(arrays[name])
        if name is not None and entries != len(pixels):
            raise DataError(f"{path}: {key} has {len(pixels)} images, {name} has {entries} entries")
    if labels.ndim == 2 and labels.shape[1] > MAX_CLASSES:
        raise DataError(f"{path}: {part.labels} has {labels.shape[1]:,} columns; give {MAX_CLASSES:,} classes or fewer")


def _images(arrays: Arrays, part: _Part, labels: np.ndarray, *, scale: int, path: Path) -> ArrayImages:
    pixels, files = arrays[part.images], None if part.files is None else arrays[part.files]
    if pixels.dtype.kind == "f":
        pixels = np.rint(pixels.clip(0, 255 / scale) * scale).astype(np.uint8)
    elif pixels.dtype.kind == "b":
        pixels = pixels * np.uint8(255)
    names = [f"{part.name}/{i}" for i in range(len(pixels))] if files is None else _texts(files, str(part.files), path)
    return ArrayImages(
        (pixels[..., 0] if pixels.shape[-1:] == (1,) and pixels.ndim == 4 else pixels).astype(np.uint8, copy=False),
        names=names,
        labels=labels,
    )


def _texts(array: np.ndarray, key: str, path: Path) -> tuple[str, ...]:
    if array.ndim != 1:
        raise DataError(f"{path}: {key} must be a list of names, (N,), got {array.shape}")
    return tuple(map(_text, array.tolist()))


def _text(name: object) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)
