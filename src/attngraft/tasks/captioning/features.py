"""Features of images in HDF5 files: regions of a detector, or the grid of a host.

    <key>_features  (R, C)  rows of the image `key`: COCO's id, or the image's path with `%` codes for special characters

`attngraft features` writes such files (`extraction`), with the image model as attributes; the meshed-memory transformer's
`coco_detections.hdf5` has the 2,048 channels of up to 50 or more regions, most confident first.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from attngraft.errors import AttngraftError, ConfigError, DataError
from attngraft.files import user_path
from attngraft.hdf5 import array_in
from attngraft.opening import DAMAGE, access_errors, open_regular, parse_json
from attngraft.suggest import cut, shortened
from attngraft.tasks.captioning.config import CaptioningConfig
from attngraft.tasks.captioning.encoder import EncoderConfig
from attngraft.tasks.captioning.source import CaptionedImages, CaptionSource

ENDING = "_features"
REGIONS = 50  #: most regions of a detector that are used
LARGEST = 1e10  #: largest absolute value in features; squares of larger ones may overflow
LARGEST_ROWS = 2**14  #: most rows of a grid; attention takes time and memory that grow with their square

_ENCODER = ("host", "args", "pretrained", "weights")  #: attributes of our own files
_USUAL = ("features.h5", "features.hdf5")
_LISTED = 5  #: most names in a message
_DIGEST_SAMPLE = 64  #: number of images to read for the digest, at least if there are as many


def described(config: EncoderConfig) -> dict[str, str]:
    """Return the attributes of a file of features by an image model."""
    weights = "" if config.weights is None else str(user_path(config.weights).resolve())
    trained = "yes" if config.pretrained else ""
    return {"host": config.name, "args": json.dumps(dict(config.args)), "pretrained": trained, "weights": weights}


def _encoder(attributes: Mapping[str, Any]) -> EncoderConfig | None:
    if not all(isinstance(attributes[name], str) for name in _ENCODER):
        return None
    name, arguments, pretrained, weights = (attributes[name] for name in _ENCODER)
    found = parse_json(arguments)
    if not isinstance(found, Mapping):
        raise ValueError(f"the attribute args is {cut(arguments)}, not a JSON object")
    return EncoderConfig(name=name, args=found, pretrained=bool(pretrained), weights=weights or None)


def key_of(path: str) -> str:
    """Return the key of an image's path, in which no character has a meaning to HDF5."""
    return quote(path.replace(os.sep, "/"), safe="", errors="surrogateescape")


def mistake(rows: np.ndarray) -> str:
    """Return what is wrong with the numbers of an image's features, or an empty string."""
    if not (np.abs(rows) <= LARGEST).all():
        return f"contains numbers that are not finite, or above {LARGEST:g}"
    return "" if rows.any() else "has only zeros"


class FeatureFile:
    """An open file of features; each process that reads it opens it once.

    Args:
        path: the file.

    Attributes:
        encoder: the image model that computed the features; None for another file, such as of a detector.
        encoder_digest: of its weights.
        channels: number of channels of all features.

    Raises:
        DataError: the file is missing, damaged, or has no features.
        ConfigError: h5py is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        self._process = -1
        with _reading(path):
            file = self._opened()
            self._keys = {name.removesuffix(ENDING) for name in file if name.endswith(ENDING)}
            attributes = {name: text_attribute(file, name) for name in (*_ENCODER, "digest")}
            self.encoder = _encoder(attributes)
        self.encoder_digest = str(attributes["digest"])
        if not self._keys:
            raise DataError(
                f"{path}: contains no <image>{ENDING}; give a file of features, see attngraft features --help"
            )
        first = min(self._keys)
        self.channels = self._read(first, first).shape[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_process": -1}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    @cached_property
    def digest(self) -> str:
        """A digest of the model, the keys, and the rows of some images."""
        facts = [str(self.encoder), str(self.channels), *sorted(self._keys)]
        found = hashlib.sha256("\n".join(facts).encode("utf-8", "surrogateescape"))
        keys = sorted(self._keys)
        for key in keys[:: max(1, len(keys) // _DIGEST_SAMPLE)]:
            found.update(self._read(key, key).tobytes())
        return found.hexdigest()[:16]

    def key(self, images: CaptionedImages, index: int) -> str | None:
        """Return the key of an image: COCO's id, or the longest end of its path that is a key; None if there is none."""
        number = images.keys[index]
        if number is not None and str(number) in self._keys:
            return str(number)
        return self._named(images, index)

    def _named(self, images: CaptionedImages, index: int) -> str | None:
        """Return the longest end of an image's path that is a key."""
        parts = images.images[index].parts
        ends = ["/".join(parts[start:]) for start in range(len(parts))]
        return next((key for end in (images.names[index], *ends) if (key := key_of(end)) in self._keys), None)

    def check(self, source: CaptionSource) -> None:
        """Check that all images have features of their own, with equally many channels.

        Raises:
            DataError: some have none, or others; the message names the first of them.
        """
        owners = dict[str, Path]()
        for images in source.parts().values():
            keys = [self.key(images, index) for index in range(len(images))]
            missing = [name for name, key in zip(images.names, keys, strict=True) if key is None]
            if missing:
                place = images.places[images.names.index(missing[0])]
                raise DataError(
                    f"{self.path}: has no features of {len(missing)} of {len(images)} images "
                    f"({shortened(map(cut, missing), _LISTED)}; {place}); add them with attngraft features IMAGES --out "
                    f"{self.path}, or remove their captions"
                )
            for index, (name, key) in enumerate(zip(images.names, map(str, keys), strict=True)):
                by_name = self._named(images, index)
                if by_name not in (None, key) or owners.setdefault(key, images.images[index]) != images.images[index]:
                    raise DataError(
                        f"{self.path}: {key}{ENDING} of {cut(name)} ({images.places[index]}) may be that of another image; "
                        "name all features by COCO's ids, or all by the images' paths"
                    )
                with self._dataset(key, name):
                    pass

    def rows(self, images: CaptionedImages, index: int) -> np.ndarray:
        """Return the rows of an image, (R, C) float32: all of a host's grid, at most 50 of a detector.

        Raises:
            DataError: the image has none, or they have another form.
        """
        key = self.key(images, index)
        if key is None:
            raise DataError(f"{self.path}: has no features of {images.names[index]}; add them, or remove its captions")
        return self._read(key, images.names[index])

    def _read(self, key: str, name: str) -> np.ndarray:
        with self._dataset(key, name) as dataset, np.errstate(over="ignore"):  # gives infinity, which is refused
            rows: np.ndarray = dataset[: None if self.encoder is not None else REGIONS].astype(np.float32)
        if found := mistake(rows):
            raise DataError(f"{self.path}: {key}{ENDING} of {cut(name)} {found}; compute it again")
        return rows

    @contextmanager
    def _dataset(self, key: str, name: str) -> Iterator[Any]:
        """Open the array of an image after checking its shape and dtype."""
        entry, what = f"{key}{ENDING}", f"{self.path}: {key}{ENDING}"
        with _reading(self.path, entry):
            file = self._opened()
            dataset = array_in(file, entry)
            if dataset is None:
                raise DataError(f"{what} is not an array in this file; write the array itself into it")
            shape, kind = dataset.shape, dataset.dtype.kind
            if len(shape) != 2 or min(shape) < 1 or kind != "f":
                raise DataError(
                    f"{what} of {cut(name)} must be floats (regions, channels), got {dataset.dtype} {shape}; "
                    "write them again"
                )
            if self.encoder is not None and shape[0] > LARGEST_ROWS:
                raise DataError(
                    f"{what} of {cut(name)} has {shape[0]} rows, more than {LARGEST_ROWS}; compute it with smaller images"
                )
            if shape[1] != getattr(self, "channels", shape[1]):
                raise DataError(
                    f"{what} of {cut(name)} has {shape[1]} channels, but other images {self.channels}; compute all features "
                    "with the same model"
                )
            yield dataset

    def _opened(self) -> Any:
        """Return the open file; a forked process must not share it with its parent."""
        if self._file is None or self._process != os.getpid():
            self._file, self._process = open_hdf5(self.path), os.getpid()
        return self._file


def text_attribute(owner: Any, name: str) -> str | None:
    """Return an attribute of a file or array; None if there is none, or it is not a text.

    Raises:
        ValueError: its length is variable; if such an attribute is damaged, the HDF5 library crashes.
    """
    if name not in owner.attrs:
        return None
    stored = owner.attrs.get_id(name)
    if stored.dtype.kind == "O":
        raise ValueError(f"the attribute {name} has a variable length, as in files of earlier versions")
    is_text = stored.dtype.kind == "S" and stored.shape == ()
    return owner.attrs[name].decode("utf-8", "surrogateescape") if is_text else None


def as_attribute(text: str) -> np.ndarray:
    """Return a text as an attribute of fixed length."""
    return np.array(text.encode("utf-8", "surrogateescape") or b"\0")


def open_hdf5(path: Path, mode: str = "r") -> Any:
    """Open an HDF5 file.

    Raises:
        ConfigError: h5py is not installed.
        OSError: the file cannot be opened.
    """
    try:
        import h5py
    except ImportError:
        raise ConfigError(f"{path}: requires h5py; run pip install 'attngraft[captioning]'") from None
    if mode == "r":  # by its descriptor: HDF5 itself would take a file that was replaced for the one that it has open
        return h5py.File(open_regular(path), mode)
    return h5py.File(path, mode)


@contextmanager
def _reading(path: Path, entry: str = "") -> Iterator[None]:
    """Convert errors of damaged files, which h5py raises as of many classes, to `DataError`."""
    try:
        yield
    except AttngraftError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; write it with attngraft features IMAGES --out {path}") from None
    except DAMAGE as error:
        where = f"{path}: {entry}" if entry else str(path)
        raise DataError(f"{where}: cannot be read as features in HDF5 ({cut(str(error))}); write it again") from None


@access_errors()
def open_features(config: CaptioningConfig, source: CaptionSource) -> FeatureFile:
    """Open the features of the images of a source, and check that every image has some.

    Raises:
        DataError: see `FeatureFile` and `FeatureFile.check`.
    """
    if config.features is not None:
        path = user_path(config.features)
    else:
        where = Path(source.where)
        folder = where if where.is_dir() else where.parent
        path = next((folder / name for name in _USUAL if (folder / name).is_file()), folder / _USUAL[0])
    if config.features is None and not path.is_file():
        raise DataError(
            f"{path}: no features of the images; compute them with attngraft features IMAGES --host timm:resnet50 "
            f"--pretrained --out {path}, or name a file with --set task.features=FILE"
        )
    file = FeatureFile(path)
    file.check(source)
    return file
