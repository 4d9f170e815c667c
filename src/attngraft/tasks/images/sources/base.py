"""Base classes of labeled images, which are opened one at a time, and of their sources."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from attngraft.errors import ConfigError, DataError
from attngraft.files import shown_size, user_path
from attngraft.suggest import CONTROL, cut, did_you_mean, quoted, shortened
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.decoding import decode, in_mode

TRAIN_NAMES = ("train", "training")
VAL_NAMES = ("val", "valid", "validation", "eval", "dev", "test", "testing")  #: in order of preference

TEST_NAMES = ("test", "testing")

MAX_CLASSES = 1_000_000
_LONGEST_NAME = 1000  #: characters of a class
_MAX_CELLS = 2**32  #: images times classes, one byte each, with several labels per image
_FREE_CELLS, _CELLS_PER_LABEL = 2**28, 2000  #: with more cells, at least one in 2,000 must be a label

_DIGEST_SAMPLE = 64  #: number of images to decode for the digest of images without files

Stamp = tuple[int, int, int]  #: a file's size in bytes, and the times in ns when its content and its entry changed


class Images(ABC):
    """Images with labels and names, in a fixed order; picklable, without sharing open files between processes.

    `labels` (N,) int64 are indices into the source's classes; for multi-label images they are (N, K) uint8, 1 where one of
    the K classes applies, and in regression K numbers, (N, K) float64. `names` identify images to users.
    """

    names: Sequence[str]
    labels: np.ndarray
    in_memory: bool = False  #: whether pixels are already decoded

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def open(self, index: int) -> Image.Image:
        """Return the image at `index`, in the mode in which it is stored.

        Raises:
            DataError: the image cannot be read; the message contains its location.
        """

    @abstractmethod
    def take(self, indices: np.ndarray, labels: np.ndarray) -> Images:
        """Return the images at `indices`, in this order, with new labels."""

    def where(self, index: int) -> str:
        """Return the image's location for messages, such as its path."""
        return self.names[index]

    @property
    def shard_index(self) -> np.ndarray | None:
        """Shard (a large file) of each image and position in the shard, (N, 2) int64; None without shards."""
        return None

    def stamp(self, index: int) -> Stamp | None:
        """Return a value that changes when the image's file changes; None if there is no file."""
        return None

    def digest(self) -> str:
        """Return a SHA-256 digest that changes when the images change.

        It covers the size and modification time of every file; for images without files, the pixels of an evenly spaced
        sample.

        Raises:
            DataError: a sampled image cannot be read.
        """
        stamps = [self.stamp(index) for index in range(len(self))]
        if any(stamp is not None for stamp in stamps):
            lasting = [stamp and stamp[:2] for stamp in stamps]  # also of a copy
            return hashlib.sha256(repr(lasting).encode()).hexdigest()
        chosen = np.unique(np.linspace(0, len(self) - 1, min(_DIGEST_SAMPLE, len(self))).round().astype(np.int64))
        return _pixel_digest(np.asarray(self.open(int(index))) for index in chosen)


def _pixel_digest(pixels: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for each in pixels:
        digest.update(f"{each.dtype} {each.shape}\0".encode())
        digest.update(np.ascontiguousarray(each).tobytes())
    return digest.hexdigest()


def file_stamp(path: str | Path) -> Stamp | None:
    """Return the stamp of the file at `path`; None if there is no such file."""
    try:
        return stamp_of(os.stat(path))
    except OSError:
        return None


def stamp_of(stat: os.stat_result) -> Stamp:
    """Return the stamp of a file whose status is known."""
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


class FileImages(Images):
    """Encoded images, stored as individual files or inside larger files."""

    @abstractmethod
    def raw(self, index: int) -> IO[bytes]:
        """Open the encoded image at `index` for reading.

        Raises:
            DataError: it cannot be read; names the file.
        """

    def open(self, index: int) -> Image.Image:
        with self.raw(index) as stream:
            return decode(stream, where=self.where(index))


class ArrayImages(Images):
    """Images in uint8 arrays: (N, H, W) or (N, H, W, C) with C 3 or 4, or a list of N arrays of any size."""

    in_memory = True

    def __init__(self, pixels: np.ndarray | Sequence[np.ndarray], *, names: Sequence[str], labels: np.ndarray) -> None:
        self.pixels, self.names, self.labels = pixels, names, labels

    def open(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])

    def take(self, indices: np.ndarray, labels: np.ndarray) -> ArrayImages:
        pixels = self.pixels[indices] if isinstance(self.pixels, np.ndarray) else [self.pixels[i] for i in indices]
        return ArrayImages(pixels, names=[self.names[i] for i in indices], labels=labels)

    def digest(self) -> str:
        return _pixel_digest(self.pixels)


def decoded(images: Images, mode: str) -> ArrayImages:
    """Decode all of `images` into memory, in mode RGB or L."""
    pixels = [np.asarray(in_mode(images.open(i), mode)) for i in range(len(images))]
    return ArrayImages(pixels, names=images.names, labels=images.labels)


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """Training and validation images of one source, with their classes."""

    kind: str  #: digits, folder, tar, webdataset, npz, npy, table, coco, huggingface, timm
    where: str  #: path or name of the source, for messages
    classes: tuple[str, ...]
    train: Images
    val: Images | None  #: None: to be taken from `train`
    origin: str  #: description of the splits, for the report
    test_split: str | None = None  #: name of the test split; None: no test split
    test: Images | None = None  #: images of the test split; set by `open_source`
    mirrored: bool = True  #: whether mirrored images keep their class
    multilabel: bool = False  #: whether labels are (N, K) uint8, see `Images`
    numeric: bool = False  #: whether labels are numbers (N, K) float64, named by `classes`
    notes: tuple[str, ...] = ()  #: notes on how the source was read, for the report
    groups: Mapping[str, str] | None = None  #: group of each image by name (`task.data.group_column`)


def check_classes(classes: Sequence[str], *, where: str) -> None:
    """Check the names of classes, or of the columns of numbers.

    Raises:
        DataError: there are too many, two are equal, or one is too long or contains a control character.
    """
    if len(classes) > MAX_CLASSES:
        raise DataError(f"{where}: {len(classes):,} classes, more than {MAX_CLASSES:,}; give the column of the labels")
    seen: dict[str, str] = {}
    for name in classes:
        if CONTROL.search(name):
            raise DataError(f"{where}: the class {quoted(name)} contains a control character; rename it")
        if len(name) > _LONGEST_NAME:
            raise DataError(f"{where}: the class {quoted(name)} has {len(name):,} characters; shorten its name")
        plain = unicodedata.normalize("NFC", " ".join(name.split()))
        if plain in seen:
            raise DataError(
                f"{where}: two classes have the same name, {cut(ascii(seen[plain]))} and {cut(ascii(name))}; "
                "rename or join them"
            )
        seen[plain] = name


def alike_classes(classes: Sequence[str]) -> list[str]:
    """Return a note on classes that may be one: their names differ only in case, or are equal as numbers."""
    known: dict[object, str] = {}
    for name in classes:
        try:
            key: object = float(name)
        except ValueError:
            key = name.casefold()
        other = known.setdefault(key, name)
        if other != name:
            return [
                f"The classes {quoted(other)} and {quoted(name)} may be one, but are trained as two; if so, rename one."
            ]
    return []


def no_labels(rows: int, classes: int, *, where: str, given: int | None = None) -> np.ndarray:
    """Return zeros (N, K), uint8, in which the caller sets the labels of N images, `given` labels in total.

    Raises:
        DataError: the labels would not fit into memory, or nearly every label is a class of its own.
    """
    most = _MAX_CELLS if given is None else min(_MAX_CELLS, max(_FREE_CELLS, _CELLS_PER_LABEL * given))
    if rows * classes > most:
        raise DataError(
            f"{where}: {classes:,} classes for {rows:,} rows of several labels need {shown_size(rows * classes)}; use fewer "
            "labels, or name a column with one label per row with --set task.data.label_column=NAME"
        )
    return np.zeros((rows, classes), dtype=np.uint8)


def configured_root(config: DataConfig) -> Path | None:
    """Return the folder `task.data.root`; None if it is not configured.

    Raises:
        DataError: the folder does not exist.
    """
    root = None if config.root is None else user_path(config.root)
    if root is not None and not root.is_dir():
        raise DataError(f"task.data.root: {root} is not a folder")
    return root


def split_name(stem: str) -> str:
    """Return the last word of a file's name if it is a split (train for `birds-train`), else the name."""
    last = re.split(r"[-_.]", stem)[-1]
    return last if last.lower() in (*TRAIN_NAMES, *VAL_NAMES) else stem


def find_split(
    available: Sequence[str], wanted: str | None, usual: Sequence[str], *, field: str, where: str
) -> str | None:
    """Return `wanted`, or, if it is None, the first available of the `usual` names, ignoring case.

    Raises:
        DataError: `wanted` is not available, or the names of two splits differ only in case.
    """
    if wanted is not None:
        if wanted in available:
            return wanted
        listed = ", ".join(sorted(available)[:12]) or "none"
        raise DataError(
            f"{where}: no split {wanted!r} (task.data.{field}){did_you_mean(wanted, available)}; available: {listed}"
        )
    lowered: dict[str, list[str]] = {}
    for name in sorted(available):
        lowered.setdefault(name.lower(), []).append(name)
    found = next((lowered[name] for name in usual if name in lowered), [None])
    if len(found) > 1:
        raise DataError(
            f"{where}: the splits {found[0]} and {found[1]} differ only in case; join or rename them, or choose one with "
            f"--set task.data.{field}={found[0]}"
        )
    return found[0]


def find_train(available: Sequence[str], config: DataConfig, *, where: str) -> str | None:
    """Return the name of the training split: the configured `train_split`, or the first of the usual names.

    Raises:
        DataError: no such split.
    """
    return find_split(available, config.train_split, TRAIN_NAMES, field="train_split", where=where)


def usual_val_names(config: DataConfig) -> Sequence[str]:
    """Return the usual names of validation splits; with folds, without those of test splits, which are never used then."""
    return VAL_NAMES if config.folds is None else [name for name in VAL_NAMES if name not in TEST_NAMES]


def find_val(available: Sequence[str], config: DataConfig, *, train: str, where: str) -> str | None:
    """Return the name of the validation split; None if it is to be taken from the training split.

    Raises:
        DataError: no such split.
    """
    if not config.val_split and config.splits_train:
        return None
    others = [name for name in available if name != config.test_split]
    val = find_split(others, config.val_split, usual_val_names(config), field="val_split", where=where)
    if val is None and config.folds is None:
        raise missing_validation(where, train, available)
    return val


def find_test(available: Sequence[str], config: DataConfig, *, used: Collection[str | None], where: str) -> str | None:
    """Return the name of the test split; None if it is turned off, missing, or among the splits in `used`.

    Raises:
        DataError: no split has the configured name.
    """
    if config.test_split == "none":
        return None
    found = find_split(available, config.test_split, TEST_NAMES, field="test_split", where=where)
    return None if found in used else found


def find_splits(
    available: Sequence[str], config: DataConfig, *, where: str
) -> tuple[str, str | None, str | None] | tuple[None, None, None]:
    """Return the names of the training, validation and test splits, as found by `find_train`, ...

    Raises:
        DataError: no such split; if there is no training split, None is returned instead.
    """
    train = find_train(available, config, where=where)
    if train is None:
        return None, None, None
    val = find_val(available, config, train=train, where=where)
    return train, val, find_test(available, config, used=(train, val), where=where)


def missing_validation(where: str, train: str, available: Sequence[str]) -> DataError:
    """Return the error for a source that has a training split but no validation split."""
    others = ", ".join(sorted(name for name in available if name != train)[:8]) or "nothing else"
    return DataError(
        f"{where}: has a training split {train!r} but no validation split (found: {others}); rename it to "
        f"{', '.join(VAL_NAMES[:2])} or {VAL_NAMES[2]}, name it with --set task.data.val_split=NAME, or split off a random "
        "fraction with --set task.data.val_fraction=0.2"
    )


def restrict(source: ImageSource, classes: tuple[str, ...] | None) -> ImageSource:
    """Restrict a source to `classes`, with labels in that order; None keeps all classes.

    All multi-label images are kept (an image without any of `classes` is a negative example for each of them), but their
    other labels are dropped.

    Raises:
        ConfigError: a class is unknown.
    """
    if classes is None:
        return source
    number = {name: label for label, name in enumerate(source.classes)}
    for name in classes:
        if name not in number:
            near = did_you_mean(name, source.classes)
            listed = shortened(source.classes, 20)
            raise ConfigError(
                f"task.data.classes: {source.where} has no class {quoted(name)}{near}; available: {listed}"
            )
    columns = [number[name] for name in classes]
    new_label = np.full(len(source.classes), -1, dtype=np.int64)
    new_label[columns] = np.arange(len(classes))

    def chosen(images: Images) -> Images:
        if source.multilabel:
            return images.take(np.arange(len(images)), images.labels[:, columns])
        labels = new_label[images.labels]
        indices = np.flatnonzero(labels >= 0)
        return images.take(indices, labels[indices])

    val, test = (None if images is None else chosen(images) for images in (source.val, source.test))
    return replace(source, classes=classes, train=chosen(source.train), val=val, test=test)


def with_classes(images: Images, own: Sequence[str], source: ImageSource) -> Images:
    """Convert the labels of images from indices into `own` to indices into the classes of `source`.

    Raises:
        DataError: an image has a class that the source lacks.
    """
    if source.numeric or tuple(own) == source.classes:
        return images
    number = {name: label for label, name in enumerate(source.classes)}
    several = images.labels.ndim == 2
    present = (np.flatnonzero(images.labels.any(axis=0)) if several else np.unique(images.labels)).tolist()
    unknown = [own[label] for label in present if own[label] not in number]
    if unknown:
        raise DataError(f"it has the class {quoted(unknown[0])}, which training and validation lack")
    if not several:
        position = np.array([number.get(name, -1) for name in own])
        return images.take(np.arange(len(images)), position[images.labels])
    labels = np.zeros((len(images), len(source.classes)), dtype=images.labels.dtype)
    labels[:, [number[own[label]] for label in present]] = images.labels[:, present]
    return images.take(np.arange(len(images)), labels)
