"""Labeled images that are opened one at a time, and sources of them: training and validation images with their classes."""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from attngraft.errors import ConfigError, DataError
from attngraft.suggest import did_you_mean
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.decoding import decode, in_mode

TRAIN_NAMES = ("train", "training")
VAL_NAMES = ("val", "valid", "validation", "eval", "dev", "test", "testing")  #: in order of preference

_DIGEST_SAMPLE = 64  #: images that are decoded for the digest of images without files

Stamp = tuple[int, int]  #: size of a file in bytes, and time of its last change (ns)


class Images(ABC):
    """Images with labels and names, in a fixed order. Picklable; holds no open file across processes.

    `labels` (N,) int64 are indices of the source's classes; multi-label images have (N, K) uint8, 1 for each of the K
    classes that apply. `names` identify images for users.
    """

    names: Sequence[str]
    labels: np.ndarray
    in_memory: bool = False  #: pixels are already decoded

    def __len__(self) -> int:
        return len(self.names)

    @abstractmethod
    def open(self, index: int) -> Image.Image:
        """Return the image at `index`, in its own mode.

        Raises:
            DataError: it cannot be read; names the file.
        """

    @abstractmethod
    def take(self, indices: np.ndarray, labels: np.ndarray) -> Images:
        """Return the images at `indices`, in that order, with new labels."""

    def where(self, index: int) -> str:
        """Return the image's location for messages: its path, if it has one."""
        return self.names[index]

    @property
    def shard_index(self) -> np.ndarray | None:
        """(N, 2) int64: shard (a large file) and position in it of each image; None for single files and memory."""
        return None

    def stamp(self, index: int) -> Stamp | None:
        """Return a value that changes with the image's file; None if there is no such file."""
        return None

    def digest(self) -> str:
        """Return a SHA-256 that changes when the images do.

        It covers the stamps of all files, or, for images without files, the pixels of an evenly spaced sample.

        Raises:
            DataError: a sampled image cannot be read.
        """
        stamps = [self.stamp(index) for index in range(len(self))]
        if any(stamp is not None for stamp in stamps):
            return hashlib.sha256(repr(stamps).encode()).hexdigest()
        chosen = np.unique(np.linspace(0, len(self) - 1, min(_DIGEST_SAMPLE, len(self))).round().astype(np.int64))
        return _pixel_digest(np.asarray(self.open(int(index))) for index in chosen)


def _pixel_digest(pixels: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for each in pixels:
        digest.update(f"{each.dtype} {each.shape}\0".encode())
        digest.update(np.ascontiguousarray(each).tobytes())
    return digest.hexdigest()


def file_stamp(path: str | Path) -> Stamp | None:
    """Return the stamp of an image in a file of its own; None if there is no such file."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


class FileImages(Images):
    """Encoded images, in files of their own or inside other files."""

    @abstractmethod
    def raw(self, index: int) -> IO[bytes]:
        """Return the encoded image at `index`, open for reading.

        Raises:
            DataError: it cannot be read; names the file.
        """

    def open(self, index: int) -> Image.Image:
        with self.raw(index) as stream:
            return decode(stream, where=self.where(index))


class ArrayImages(Images):
    """uint8 pixels: (N, H, W) gray or (N, H, W, C) with 3 or 4 channels, or a list of N such images of any sizes."""

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
    """Return all of `images` decoded into memory, in mode RGB or L."""
    pixels = [np.asarray(in_mode(images.open(i), mode)) for i in range(len(images))]
    return ArrayImages(pixels, names=images.names, labels=images.labels)


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """The images of one source."""

    kind: str  #: digits, folder, tar, webdataset, npz, table, coco, huggingface, timm
    where: str  #: location for messages: a path or a name
    classes: tuple[str, ...]
    train: Images
    val: Images | None  #: None: to be split from `train`
    origin: str  #: description of the splits for the report
    mirrored: bool = True  #: whether a mirror image has the same class
    multilabel: bool = False  #: labels are (N, K) uint8, see `Images`
    notes: tuple[str, ...] = ()  #: how the source was read, for the report


def configured_root(config: DataConfig) -> Path | None:
    """Return the folder `task.data.root`; None if it is not configured.

    Raises:
        DataError: no such folder.
    """
    root = None if config.root is None else Path(config.root).expanduser()
    if root is not None and not root.is_dir():
        raise DataError(f"task.data.root: no folder {root}")
    return root


def split_name(stem: str) -> str:
    """Return the split that a file belongs to: its last word if that names a split (`birds-train`), else its name."""
    last = re.split(r"[-_.]", stem)[-1]
    return last if last.lower() in (*TRAIN_NAMES, *VAL_NAMES) else stem


def find_split(
    available: Sequence[str], wanted: str | None, usual: Sequence[str], *, field: str, where: str
) -> str | None:
    """Return `wanted` or, if that is None, the first of the `usual` names (in any case) that is available.

    Raises:
        DataError: `wanted` is not available.
    """
    if wanted is not None:
        if wanted in available:
            return wanted
        listed = ", ".join(sorted(available)[:12]) or "none"
        raise DataError(
            f"{where}: no split {wanted!r} (task.data.{field}){did_you_mean(wanted, available)}; available: {listed}"
        )
    lowered = {name.lower(): name for name in sorted(available, reverse=True)}
    return next((lowered[name] for name in usual if name in lowered), None)


def find_train(available: Sequence[str], config: DataConfig, *, where: str) -> str | None:
    """Return the name of the training split: `train_split`, or the first usual name.

    Raises:
        DataError: no such split.
    """
    return find_split(available, config.train_split, TRAIN_NAMES, field="train_split", where=where)


def find_val(available: Sequence[str], config: DataConfig, *, train: str, where: str) -> str | None:
    """Return the name of the validation split; None if it is taken from the training split.

    Raises:
        DataError: no such split.
    """
    if not config.val_split and config.splits_train:
        return None
    val = find_split(available, config.val_split, VAL_NAMES, field="val_split", where=where)
    if val is None:
        raise missing_validation(where, train, available)
    return val


def missing_validation(where: str, train: str, available: Sequence[str]) -> DataError:
    """Return the error for a source with a training split only."""
    others = ", ".join(sorted(name for name in available if name != train)[:8]) or "nothing else"
    return DataError(
        f"{where}: a training split {train!r} but no validation split (found: {others}); call it "
        f"{', '.join(VAL_NAMES[:3])}, name it with task.data.val_split, or take a random share with "
        "task.data.val_fraction=0.2"
    )


def restrict(source: ImageSource, classes: tuple[str, ...] | None) -> ImageSource:
    """Return the images of `classes` only, labeled in that order; all images if `classes` is None.

    Multi-label images all stay (an image without any of `classes` is a negative example of each); other labels are dropped.

    Raises:
        ConfigError: an unknown class.
    """
    if classes is None:
        return source
    for name in classes:
        if name not in source.classes:
            near = did_you_mean(name, source.classes)
            listed = ", ".join(source.classes[:20]) + (", ..." if len(source.classes) > 20 else "")
            raise ConfigError(f"task.data.classes: {source.where} has no class {name!r}{near}; available: {listed}")
    columns = [source.classes.index(name) for name in classes]
    new_label = np.full(len(source.classes), -1, dtype=np.int64)
    new_label[columns] = np.arange(len(classes))

    def chosen(images: Images) -> Images:
        if source.multilabel:
            return images.take(np.arange(len(images)), images.labels[:, columns])
        labels = new_label[images.labels]
        indices = np.flatnonzero(labels >= 0)
        return images.take(indices, labels[indices])

    return replace(source, classes=classes, train=chosen(source.train), val=source.val and chosen(source.val))
