"""Tar files: a single tar, a folder with tars per split, or a pattern of shards (`birds-{000..009}.tar`).

Labels are class folders inside the tar or, as in WebDataset, files with the same name as the image: `7.cls` contains the
class, `7.json` contains fields. A tar is read once; its index (images, folders and label files) is stored in the cache
folder until the tar changes, so opening a hundred shards again only reads a hundred small files.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from attngraft.cache import cache_file, keep_arrays, load_arrays
from attngraft.errors import DataAccessError, DataError
from attngraft.files import shown_size, user_path
from attngraft.opening import DAMAGE, TAR_MEMBERS, open_regular, parse_json
from attngraft.suggest import quoted
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import (
    TRAIN_NAMES,
    FileImages,
    Images,
    ImageSource,
    Stamp,
    file_stamp,
    find_splits,
    split_name,
    stamp_of,
)
from attngraft.tasks.images.sources.listing import (
    Listing,
    by_class,
    class_source,
    common_folder,
    is_image,
    is_junk,
    natural,
    split_folders,
)
from attngraft.tasks.images.sources.table import FieldColumns, LabelTable, read_labels

INDEX_VERSION = "2"  #: version of the contents of an index
LABELS = ("cls", "json")  #: extensions of label files, which have the same name as the image

_LABEL_BYTES = 2**20  #: largest size of a label file
_FIELD_BYTES = 2**20  #: largest size of the extra fields of a member
_FIELDS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_OPEN_FILES = 64  #: largest number of tars that a process keeps open

_BRACES = re.compile(r"\{([^{}]*)\}")
_LIMIT = 1_000_000  #: largest number of shards in a pattern


@dataclass(kw_only=True)
class TarIndex:
    """Index of a tar: lists with one entry per image, in the tar's order."""

    members: list[str] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    texts: dict[str, list[str | None]] = field(default_factory=dict)  #: contents of the label files, by extension
    folders: list[str] = field(default_factory=list)  #: all folders, including empty ones


def index_tar(path: Path) -> TarIndex:
    """Return the index of an uncompressed tar.

    Raises:
        DataError: the file is damaged, compressed, or not a tar, or an image in it is a link to a file that is not.
    """
    try:
        stamp = stamp_of(os.stat(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    cached = cache_file("tars", INDEX_VERSION, os.path.realpath(path), *map(str, stamp))
    stored = load_arrays(cached).get("index")
    if stored is not None:
        return TarIndex(**json.loads(stored.tobytes()))
    index = _read_index(path)
    keep_arrays(cached, {"index": np.frombuffer(json.dumps(asdict(index)).encode(), dtype=np.uint8)})
    return index


class _Member(tarfile.TarInfo):
    """A member whose name and other extra fields, which tarfile reads as a whole, are of limited size."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size > _FIELD_BYTES and self.type in _FIELDS:
            raise ValueError(f"a member has extra fields of {shown_size(self.size)}")
        return super()._proc_member(tar)  # type: ignore[misc]


def _read_index(path: Path) -> TarIndex:
    index, folders = TarIndex(), dict[str, None]()
    #: file -> offset, size; of members with the same name, the last counts, as in tar
    places: dict[str, tuple[int, int]] = {}
    texts: dict[str, dict[str, str]] = {kind: {} for kind in LABELS}
    try:
        with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:", tarinfo=_Member) as tar:
            for count, member in enumerate(tar):
                if count == TAR_MEMBERS:
                    raise ValueError(f"it has more than {TAR_MEMBERS:,} members")
                if member.issparse() or member.size < 0:  # tarfile would read the latter again and again
                    raise ValueError(f"a member has {'holes' if member.issparse() else 'a negative size'}")
                tar.members = []  # type: ignore[attr-defined]  # which tarfile keeps, a kilobyte each
                name = member.name.removeprefix("./")
                if ".." in name.split("/"):
                    raise ValueError(f"the name {quoted(name)} leads out of it")
                place = (member.offset_data, member.size) if member.isreg() else None
                if member.islnk():  # tar's form of a file's second name
                    place = places.get(member.linkname.removeprefix("./"))
                if place is not None:
                    places[name] = place
                if any(is_junk(piece) for piece in name.split("/")):
                    continue
                if member.isdir():
                    folders[name] = None
                elif place is None and is_image(name):
                    raise DataError(
                        f"{path}: the image {quoted(name)} is not a file, but a link or a device; pack it again with tar "
                        "--dereference"
                    )
                if place is None:
                    continue
                key, _, extension = name.rpartition(".")
                if is_image(name):
                    pieces = name.split("/")[:-1]
                    folders.update(dict.fromkeys("/".join(pieces[: i + 1]) for i in range(len(pieces))))
                elif extension.lower() in texts and place[1] <= _LABEL_BYTES:
                    file.seek(place[0])
                    texts[extension.lower()][key] = _text(file.read(place[1]), f"{path}: {name}")
            file.seek(tar.offset)  # tarfile also accepts a tar that was cut off between two members
            if len(file.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
                raise ValueError("its end is missing")
            while rest := file.read(2**20):
                if rest.strip(b"\0"):
                    raise ValueError("it goes on behind its end, like tars that were joined")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); replace or remove it") from None
    except (tarfile.TarError, *DAMAGE) as error:
        raise DataError(
            f"{path}: not readable as an uncompressed tar ({error}); unpack it, or pack it again without compression"
        ) from None
    index.folders = list(folders)
    labeled = {key for by_key in texts.values() for key in by_key}
    images = (name for name in places if is_image(name) and not any(map(is_junk, name.split("/"))))
    index.members = [name for name in images if not _is_extra(name, labeled)]
    index.offsets, index.sizes = ([places[name][i] for name in index.members] for i in (0, 1))
    keys = [name.rpartition(".")[0] for name in index.members]
    for kind, by_key in texts.items():
        if any(key in by_key for key in keys):
            index.texts[kind] = [by_key.get(key) for key in keys]
    return index


def _is_extra(name: str, labeled: set[str]) -> bool:
    """Return whether an image only accompanies a labeled one, like `7.mask.png` next to `7.jpg` and `7.cls`."""
    folder, slash, file = name.rpartition("/")
    key = f"{folder}{slash}{file.partition('.')[0]}"
    return name.rpartition(".")[0] not in labeled and key in labeled


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise DataError(f"{where}: not UTF-8 text; save it as UTF-8") from None


def fields_of(index: TarIndex, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the labels of each image: `label` from the .cls file, and the fields of the .json file.

    Raises:
        DataError: a .json file is damaged or has no fields.
    """
    none = [None] * len(index.members)
    for name, label, text in zip(index.members, *(index.texts.get(kind, none) for kind in LABELS), strict=True):
        fields = _json_fields(text, f"{path}: {name}")
        if "cls" in index.texts:  # has precedence
            fields = {"label": label} | fields | {"label": label}
        yield fields


def _json_fields(text: str | None, where: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        content = parse_json(text)
    except ValueError as error:
        raise DataError(f"{where}: the .json file cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise DataError(f'{where}: the .json file contains no fields; write {{"label": ...}}')
    return content


class TarImages(FileImages):
    """Images in tars; each process opens the tars itself, because forks would share file positions.

    Args:
        paths: the tars.
        members: each image's name inside its tar.
        places: tar of each image, and offset and number of its bytes in the tar, (N, 3) int64.
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
        self._files: dict[int, IO[bytes]] = {}
        self._owner = -1
        self._changed: dict[int, Stamp | None] = {}

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
            data = file.read(min(size, os.fstat(file.fileno()).st_size))  # which limits the memory
        except OSError as error:
            raise DataAccessError(f"{self.where(index)}: cannot be read ({error.strerror})") from None
        if len(data) < size:
            raise DataError(f"{self.where(index)}: the tar ends within this image; it was changed or truncated")
        return io.BytesIO(data)

    def stamp(self, index: int) -> Stamp | None:
        tar = int(self.places[index, 0])
        if tar not in self._changed:
            self._changed[tar] = file_stamp(self.paths[tar])
        changed = self._changed[tar]
        return None if changed is None else (int(self.places[index, 2]), *changed[1:])

    def take(self, indices: np.ndarray, labels: np.ndarray) -> TarImages:
        members = [self.members[i] for i in indices]
        return TarImages(
            self.paths, members=members, places=self.places[indices], labels=labels, prefixed=self.prefixed
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": {}, "_owner": -1, "_changed": {}}

    def _file(self, tar: int) -> IO[bytes]:
        if self._owner != os.getpid():
            self._files, self._owner = {}, os.getpid()
        if tar not in self._files:
            while len(self._files) >= _OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            self._files[tar] = open_regular(self.paths[tar])
        return self._files[tar]


def is_pattern(source: str) -> bool:
    """Return whether `source` is a pattern of shards."""
    return source.endswith(".tar") and _BRACES.search(source) is not None


def expanded(pattern: str) -> list[str]:
    """Expand `a-{00..02}.tar` to `a-00.tar`, `a-01.tar`, `a-02.tar`, and `{a,b}.tar` to `a.tar`, `b.tar`.

    Raises:
        DataError: the contents of a brace are neither a range nor a list, or a range decreases.
    """
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    inside, before, behind = match[1], pattern[: match.start()], pattern[match.end() :]
    numbers = re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", inside)
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        if last < first:
            raise DataError(f"{pattern}: {{{inside}}} must increase; write {{000..009}}")
        if last >= first + _LIMIT:
            raise DataError(f"{pattern}: {{{inside}}} has more than {_LIMIT:,} shards; correct the pattern")
        choices = [str(number).zfill(len(numbers[1])) for number in range(first, last + 1)]
    elif "," in inside:
        choices = inside.split(",")
    else:
        raise DataError(f"{pattern}: {{{inside}}} is not a pattern; write {{000..009}} or {{train,val}}")
    rests = expanded(behind)
    if len(choices) * len(rests) > _LIMIT:
        raise DataError(f"{pattern}: has more than {_LIMIT:,} shards; correct the pattern")
    return [f"{before}{choice}{rest}" for choice in choices for rest in rests]


def grouped(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Group paths by split, or by name without the final number.

    `train-000.tar` and `birds-train-000.tar` belong to `train`, and `birds-000.tar` to `birds`.
    """
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(split_name(re.sub(r"[-_.]?\d+$", "", path.stem)), []).append(path)
    return groups


@dataclass(frozen=True)
class _Tars:
    """The tars of one split."""

    paths: Sequence[Path]
    indexes: Sequence[TarIndex]
    prefixed: bool = True  #: whether image names start with their tar's name

    @classmethod
    def opened(cls, paths: Sequence[Path], *, prefixed: bool = True) -> _Tars:
        tars = cls(paths, [index_tar(path) for path in paths], prefixed)
        for path, index in zip(paths, tars.indexes, strict=True):
            if not index.members:
                raise DataError(f"{path}: contains no images")
        return tars

    @property
    def name(self) -> str:
        first, last = self.paths[0].name, self.paths[-1].name
        return first if len(self.paths) == 1 else f"{first} to {last}"

    @property
    def labeled(self) -> bool:
        return any(index.texts for index in self.indexes)

    def by_names(self, names: Sequence[str], labels: np.ndarray) -> Images:
        """Return the images with these names."""
        row = {name: i for i, name in enumerate(self.names())}
        return self.by_rows(np.array([row[name] for name in names], dtype=np.int64), labels)

    def by_rows(self, rows: np.ndarray, labels: np.ndarray) -> TarImages:
        """Return the images at these positions in the concatenation of all tars."""
        members = [member for index in self.indexes for member in index.members]
        tars = np.repeat(np.arange(len(self.paths)), [len(index.members) for index in self.indexes])
        offsets = [offset for index in self.indexes for offset in index.offsets]
        sizes = [size for index in self.indexes for size in index.sizes]
        places = np.stack([tars, np.array(offsets, dtype=np.int64), np.array(sizes, dtype=np.int64)], axis=1)
        return TarImages(
            self.paths,
            members=[members[row] for row in rows],
            places=places[rows],
            labels=labels,
            prefixed=self.prefixed,
        )

    def names(self, *, folders: bool = False) -> list[str]:
        return [
            f"{path.name}/{name}" if self.prefixed else name
            for path, index in zip(self.paths, self.indexes, strict=True)
            for name in (index.folders if folders else index.members)
        ]

    def by_class(self) -> dict[str, list[str]]:
        """Return the names of the images in each class folder."""
        members = tuple(member for index in self.indexes for member in index.members)
        folders = tuple(dict.fromkeys(folder for index in self.indexes for folder in index.folders))
        inside = common_folder(Listing("", members, folders))
        depth = (inside.count("/") + 1 if inside else 0) + self.prefixed
        return by_class(Listing("", tuple(self.names()), tuple(self.names(folders=True))), depth)


def open_tar(path: Path, config: DataConfig) -> ImageSource:
    """Open one tar that contains class folders or label files.

    Raises:
        DataError: the file is not an uncompressed tar, or its labels are not found; see also `listing.split_folders`.
    """
    index = index_tar(path)
    tars = _Tars([path], [index], prefixed=False)
    if tars.labeled:
        return _with_labels(tars, None, config, where=str(path), origin=path.name)
    listing = Listing(str(path), tuple(index.members), tuple(index.folders))
    return split_folders(listing, config, kind="tar", make=tars.by_names)


def tars_in(folder: Path) -> list[Path]:
    """Return the tars directly in `folder`."""
    tars = (entry for entry in folder.iterdir() if entry.suffix == ".tar" and not is_junk(entry.name))
    return sorted(tars, key=lambda entry: natural(entry.name))


def open_tar_folder(folder: Path, config: DataConfig) -> ImageSource:
    """Open the only tar in a folder, or the tars named by split (`train.tar`, or `train-000.tar`, ...).

    Raises:
        DataError: there is no training or validation tar; see also `open_tar`.
    """
    tars = tars_in(folder)
    if len(tars) == 1 and config.train_split is None and tars[0].stem.lower() not in TRAIN_NAMES:
        return open_tar(tars[0], config)
    return _open_groups(tars, config, where=str(folder))


def open_shards(pattern: str, config: DataConfig) -> ImageSource:
    """Open the tars of a pattern with ranges `{000..009}` or lists `{train,val}`.

    Tars are assigned to splits by name, as in a folder; if no name is that of a split, all tars form one split.

    Raises:
        DataError: a tar is missing; see also `open_tar`.
    """
    paths = [user_path(path) for path in expanded(pattern)]
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise DataError(
            f"{pattern}: {len(missing)} of {len(paths)} shards do not exist (first: {missing[0]}); correct the pattern"
        )
    return _open_groups(paths, config, where=pattern)


def _open_groups(paths: Sequence[Path], config: DataConfig, *, where: str) -> ImageSource:
    groups = grouped(paths)
    train, val, test = find_splits(list(groups), config, where=where)
    if train is None and len(groups) > 1:
        listed = ", ".join(path.name for path in paths[:8])
        raise DataError(
            f"{where}: no train.tar among {listed}; name the training tar with --set task.data.train_split=NAME"
        )
    first = _Tars.opened(groups[train] if train is not None else list(paths))
    second = None if val is None else _Tars.opened(groups[val])
    origin = first.name if second is None else f"{first.name} and {second.name}"
    if first.labeled:
        source = _with_labels(first, second, config, where=where, origin=origin)
    else:
        source = class_source(
            first.by_class(),
            None if second is None else second.by_class(),
            kind="tar",
            where=where,
            origin=origin,
            make=(first.by_names, (second or first).by_names),
        )
    return replace(source, test_split=test)


def _with_labels(train: _Tars, val: _Tars | None, config: DataConfig, *, where: str, origin: str) -> ImageSource:
    """Build a source whose labels are in label files next to the images."""
    parts = [train] if val is None else [train, val]
    names: list[int | str] = [name for tars in parts for name in tars.names()]
    columns = FieldColumns(where)
    pairs = (pair for tars in parts for pair in zip(tars.paths, tars.indexes, strict=True))
    for name, fields in zip(names, (fields for path, index in pairs for fields in fields_of(index, path)), strict=True):
        columns.add(fields, name)
    labels = read_labels(LabelTable(where=where, columns=columns.columns(), numbers=names), config, exclude=set())
    count = sum(len(index.members) for index in train.indexes)
    rows = np.arange(len(names))
    return ImageSource(
        kind="webdataset",
        where=where,
        classes=labels.classes,
        train=train.by_rows(rows[:count], labels.values[:count]),
        val=None if val is None else val.by_rows(rows[count:] - count, labels.values[count:]),
        origin=origin,
        multilabel=labels.multilabel,
        notes=(labels.note,) if labels.note else (),
    )
