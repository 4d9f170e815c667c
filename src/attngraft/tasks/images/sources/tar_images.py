"""Images inside uncompressed tars: an index of each tar, and images read by their position in the file.

A tar is read once; its index (images, folders, and WebDataset labels beside the images) is kept in the cache folder until
the file changes, so that reopening a hundred shards costs a hundred small files.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from attngraft.cache import cache_file, keep_arrays, load_arrays
from attngraft.errors import DataError
from attngraft.tasks.images.sources.base import FileImages, Stamp
from attngraft.tasks.images.sources.listing import is_image, is_junk

INDEX_VERSION = "1"  #: changes with the contents of an index
LABELS = ("cls", "json")  #: extensions of label files, which share the image's name

_LABEL_BYTES = 2**20  #: larger files are not labels
_OPEN_FILES = 64  #: tars that a process keeps open


@dataclass(kw_only=True)
class TarIndex:
    """Lists of equal length for the images, in the tar's order."""

    members: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    texts: dict[str, list[str | None]] = field(default_factory=dict)  #: `cls` and `json`, if any image has one
    folders: list[str] = field(default_factory=list)  #: includes empty ones


def index_tar(path: Path) -> TarIndex:
    """Return the index of an uncompressed tar.

    Raises:
        DataError: damaged, compressed, or not a tar.
    """
    try:
        stat = os.stat(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    cached = cache_file("tars", INDEX_VERSION, os.path.realpath(path), str(stat.st_size), str(stat.st_mtime_ns))
    stored = load_arrays(cached).get("index")
    if stored is not None:
        return TarIndex(**json.loads(stored.tobytes()))
    index = _read_index(path)
    keep_arrays(cached, {"index": np.frombuffer(json.dumps(asdict(index)).encode(), dtype=np.uint8)})
    return index


def _read_index(path: Path) -> TarIndex:
    index, folders = TarIndex(), dict[str, None]()
    images: dict[str, tuple[int, int]] = {}  #: member -> offset, size; the last of equal names counts, as in tar itself
    texts: dict[str, dict[str, str]] = {kind: {} for kind in LABELS}
    try:
        with tarfile.open(path, mode="r:") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if any(is_junk(piece) for piece in name.split("/")):
                    continue
                if member.isdir():
                    folders[name] = None
                if not member.isreg():
                    continue
                key, _, extension = name.rpartition(".")
                if is_image(name):
                    images[name] = member.offset_data, member.size
                    pieces = name.split("/")[:-1]
                    folders.update(dict.fromkeys("/".join(pieces[: i + 1]) for i in range(len(pieces))))
                elif extension.lower() in texts and member.size <= _LABEL_BYTES:
                    texts[extension.lower()][key] = _text(tar.extractfile(member), f"{path}: {name}")
    except (tarfile.TarError, EOFError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path}: not readable as an uncompressed tar ({error}); unpack it, or pack it again without compression"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    index.folders = list(folders)
    labeled = {key for by_key in texts.values() for key in by_key}
    index.members = [name for name in images if not _is_extra(name, labeled)]
    index.offsets, index.sizes = ([images[name][i] for name in index.members] for i in (0, 1))
    keys = [name.rpartition(".")[0] for name in index.members]
    for kind, by_key in texts.items():
        if any(key in by_key for key in keys):
            index.texts[kind] = [by_key.get(key) for key in keys]
    return index


def _is_extra(name: str, labeled: set[str]) -> bool:
    """Return whether an image is an additional one of a labeled sample: `7.mask.png` beside `7.jpg` and `7.cls`."""
    folder, slash, file = name.rpartition("/")
    key = f"{folder}{slash}{file.partition('.')[0]}"
    return name.rpartition(".")[0] not in labeled and key in labeled


def _text(file: IO[bytes] | None, where: str) -> str:
    try:
        return (file.read() if file is not None else b"").decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise DataError(f"{where}: not UTF-8 text") from None


def fields_of(index: TarIndex, path: Path) -> dict[str, list[Any]]:
    """Return columns of the images' labels: `label` from .cls files, and the fields of .json files.

    Raises:
        DataError: a damaged .json file, or one without fields.
    """
    columns: dict[str, list[Any]] = {}
    for kind, texts in index.texts.items():
        if kind == "cls":
            columns["label"] = list(texts)
            continue
        for row, text in enumerate(texts):
            for name, value in _json_fields(text, f"{path}: {index.members[row]}").items():
                if name != "label" or "cls" not in index.texts:  # .cls goes first
                    columns.setdefault(name, [None] * len(texts))[row] = value
    return columns


def _json_fields(text: str | None, where: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        content = json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: its .json cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f'{where}: its .json holds no fields; write {{"label": ...}}')
    return content


class TarImages(FileImages):
    """Members of one or more tars. Every process opens its own files (forked ones would share file positions).

    Args:
        paths: the tars.
        members: each image's name inside its tar.
        places: (N, 3) int64: tar, offset of the image's bytes in it, number of bytes.
        prefixed: whether image names start with the tar's name.
    """

    def __init__(
        self, paths: Sequence[Path], *, members: Sequence[str], places: np.ndarray, labels: np.ndarray, prefixed: bool
    ) -> None:
        self.paths, self.members, self.places, self.labels, self.prefixed = paths, members, places, labels, prefixed
        tars = places[:, 0].tolist()
        self.names = (
            [f"{paths[tar].name}/{member}" for tar, member in zip(tars, members, strict=True)] if prefixed else members
        )
        self._files: dict[int, BinaryIO] = {}
        self._owner = -1
        self._changed: dict[int, int | None] = {}

    @property
    def shard_index(self) -> np.ndarray:
        return self.places[:, :2]

    def where(self, index: int) -> str:
        return f"{self.paths[self.places[index, 0]]}: {self.members[index]}"

    def raw(self, index: int) -> IO[bytes]:
        tar, offset, size = (int(number) for number in self.places[index])
        try:
            file = self._file(tar)
            file.seek(offset)
            data = file.read(size)
        except OSError as error:
            raise DataError(f"{self.where(index)}: cannot be read ({error.strerror})") from None
        if len(data) < size:
            raise DataError(f"{self.where(index)}: the tar ends within this image; it was changed or truncated")
        return io.BytesIO(data)

    def stamp(self, index: int) -> Stamp | None:
        tar = int(self.places[index, 0])
        if tar not in self._changed:
            try:
                self._changed[tar] = os.stat(self.paths[tar]).st_mtime_ns
            except OSError:
                self._changed[tar] = None
        changed = self._changed[tar]
        return None if changed is None else (int(self.places[index, 2]), changed)

    def take(self, indices: np.ndarray, labels: np.ndarray) -> TarImages:
        members = [self.members[i] for i in indices]
        return TarImages(
            self.paths, members=members, places=self.places[indices], labels=labels, prefixed=self.prefixed
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": {}, "_owner": -1, "_changed": {}}

    def _file(self, tar: int) -> BinaryIO:
        if self._owner != os.getpid():
            self._files, self._owner = {}, os.getpid()
        if tar not in self._files:
            while len(self._files) >= _OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            self._files[tar] = self.paths[tar].open("rb")
        return self._files[tar]
