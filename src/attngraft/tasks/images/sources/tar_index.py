"""What a tar holds: images and where their bytes lie, folders, and labels that lie beside images (WebDataset).

A tar is gone through once; what was found is kept in the cache folder until the file changes, so that opening a hundred
shards again costs a hundred small files.
"""

from __future__ import annotations

import json
import os
import tarfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from attngraft.cache import cache_file, keep_arrays, load_arrays
from attngraft.errors import DataError
from attngraft.tasks.images.sources.listing import is_image, is_junk

VERSION = "1"  #: changes with what an index holds
LABELS = ("cls", "json")  #: endings of files that say something of the image of the same name

_LABEL_BYTES = 2**20  #: a larger one is no label


@dataclass(kw_only=True)
class TarIndex:
    """Lists of equal length for the images, in the order in which they lie in the tar."""

    members: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    texts: dict[str, list[str | None]] = field(default_factory=dict)  #: `cls` and `json`, where any image has one
    folders: list[str] = field(default_factory=list)  #: also empty ones


def index_tar(path: Path) -> TarIndex:
    """The index of an uncompressed tar.

    Raises:
        DataError: damaged, compressed, or no tar at all.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    kept = cache_file("tars", VERSION, os.path.realpath(path), str(found.st_size), str(found.st_mtime_ns))
    held = load_arrays(kept).get("index")
    if held is not None:
        return TarIndex(**json.loads(held.tobytes()))
    index = _gone_through(path)
    keep_arrays(kept, {"index": np.frombuffer(json.dumps(asdict(index)).encode(), dtype=np.uint8)})
    return index


def _gone_through(path: Path) -> TarIndex:
    index, folders = TarIndex(), dict[str, None]()
    images: dict[
        str, tuple[int, int]
    ] = {}  #: member -> offset, size; of two of a name the later one, as tar itself does
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
                key, _, ending = name.rpartition(".")
                if is_image(name):
                    images[name] = member.offset_data, member.size
                    folders.update(dict.fromkeys(_parents(name)))
                elif ending.lower() in texts and member.size <= _LABEL_BYTES:
                    texts[ending.lower()][key] = _text(tar.extractfile(member), f"{path}: {name}")
    except (tarfile.TarError, EOFError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{path}: not readable as an uncompressed tar ({error}); unpack it, or pack it again without compression"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    index.folders = list(folders)
    labelled = {key for by_key in texts.values() for key in by_key}
    chosen = [name for name in images if not _beside(name, labelled)]
    keys = [name.rpartition(".")[0] for name in chosen]
    index.members = chosen
    index.offsets, index.sizes = ([images[name][i] for name in chosen] for i in (0, 1))
    for kind, by_key in texts.items():
        if any(key in by_key for key in keys):
            index.texts[kind] = [by_key.get(key) for key in keys]
    return index


def _beside(name: str, labelled: set[str]) -> bool:
    """Whether an image is a further one of a labelled sample: `7.mask.png` beside `7.jpg` and `7.cls`."""
    folder, slash, file = name.rpartition("/")
    key = f"{folder}{slash}{file.partition('.')[0]}"
    return name.rpartition(".")[0] not in labelled and key in labelled


def _text(file: IO[bytes] | None, where: str) -> str:
    try:
        return (file.read() if file is not None else b"").decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise DataError(f"{where}: is not UTF-8 text") from None


def _parents(name: str) -> list[str]:
    pieces = name.split("/")[:-1]
    return ["/".join(pieces[: i + 1]) for i in range(len(pieces))]


def fields_of(index: TarIndex, path: Path) -> dict[str, list[Any]]:
    """The columns of the images' labels: `label` of .cls files, and the fields of .json files.

    Raises:
        DataError: a .json file that is none, or holds no fields.
    """
    columns: dict[str, list[Any]] = {}
    for kind, texts in index.texts.items():
        if kind == "cls":
            columns["label"] = list(texts)
            continue
        for row, text in enumerate(texts):
            for name, value in _json(text, f"{path}: {index.members[row]}").items():
                if name != "label" or "cls" not in index.texts:  # .cls says it already
                    columns.setdefault(name, [None] * len(texts))[row] = value
    return columns


def _json(text: str | None, where: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: its .json cannot be read ({error})") from None
    if not isinstance(found, dict):
        raise DataError(f'{where}: its .json holds no fields; write {{"label": ...}}')
    return found
