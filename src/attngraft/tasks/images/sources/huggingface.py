"""Local Hugging Face data sets: from `save_to_disk`, downloaded, or in the library's cache.

This requires only pyarrow and never downloads anything. Arrow files are read in place, with random access. Parquet files
only allow sequential reads, so they are converted once to Arrow files in the cache folder.
"""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from attngraft.cache import cache_file
from attngraft.errors import ConfigError, DataAccessError, DataError, StorageError
from attngraft.files import atomic_file
from attngraft.opening import check_unpacked, open_regular, parse_json, read_mapping
from attngraft.suggest import cut, did_you_mean, quoted, repeated
from attngraft.tasks.images.coco import path_below
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import (
    TRAIN_NAMES,
    VAL_NAMES,
    FileImages,
    ImageSource,
    Stamp,
    file_stamp,
    find_test,
    find_train,
    find_val,
    split_name,
    stamp_of,
)
from attngraft.tasks.images.sources.listing import natural
from attngraft.tasks.images.sources.table import Labels, LabelTable, arrow_errors, check_parquet, read_labels

if TYPE_CHECKING:  # pyarrow is optional, so it is imported in functions
    import pyarrow

UNPACKED_VERSION = "1"  #: version of the format of converted parquet files

_ROWS = 1000  #: number of rows per batch of a converted file

KINDS = (".arrow", ".parquet")

_SAVED = ("dataset_dict.json", "state.json")  #: files that `save_to_disk` writes next to the data
_END = b"\xff\xff\xff\xff\0\0\0\0"  #: mark at the end of an Arrow stream
_NUMBER = re.compile(r"[-_.](\d{4,5})[-_]of[-_](\d{4,5})([-_][0-9a-f]{16})?$")


class ArrowImages(FileImages):
    """Rows of Arrow tables whose `column` contains encoded images: bytes, or a struct of `bytes` and `path`.

    Args:
        files: the original files, for messages.
        places: file and row of each image, (N, 2) int64.
        root: base folder of images that are stored as separate files.
    """

    def __init__(
        self,
        files: Sequence[Path],
        *,
        column: str,
        places: np.ndarray,
        names: Sequence[str],
        labels: np.ndarray,
        root: Path,
    ) -> None:
        self.files, self.column, self.places, self.root = files, column, places, root
        self.names, self.labels = names, labels
        self._tables: dict[int, Any] = {}

    @property
    def shard_index(self) -> np.ndarray:
        return self.places

    def where(self, index: int) -> str:
        file, row = self.places[index]
        return f"{self.files[file]}: row {row}"

    def raw(self, index: int) -> IO[bytes]:
        data, path = self._entry(index)
        if data is not None:
            return io.BytesIO(data)
        if not path:
            raise DataError(f"{self.where(index)}: column {self.column!r} contains no image")
        file = self._file(index, path)
        try:
            return open_regular(file)
        except OSError as error:
            raise DataAccessError(f"{self.where(index)}: {file}: cannot be opened ({error.strerror})") from None

    def stamp(self, index: int) -> Stamp | None:
        data, path = self._entry(index)
        if data is None:
            return file_stamp(self._file(index, path or ""))
        stamp = file_stamp(self.files[self.places[index, 0]])
        return None if stamp is None else (len(data), *stamp[1:])

    def _file(self, index: int, path: str) -> Path:
        try:
            return path_below(self.root, self.root, path)
        except ValueError as error:
            raise DataError(f"{self.where(index)}: {error}; correct the cell") from None

    def take(self, indices: np.ndarray, labels: np.ndarray) -> ArrowImages:
        return ArrowImages(
            self.files,
            column=self.column,
            places=self.places[indices],
            names=[self.names[i] for i in indices],
            labels=labels,
            root=self.root,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": {}}

    def _entry(self, index: int) -> tuple[Any, str | None]:
        """Return an image's bytes (a buffer) and path, None if missing."""
        file, row = (int(number) for number in self.places[index])
        if file not in self._tables:
            self._tables[file] = open_table(self.files[file]).column(self.column)
        entry = self._tables[file][row]
        if not entry.is_valid:
            return None, None
        if hasattr(entry, "as_buffer"):
            return entry.as_buffer(), None
        return entry["bytes"].as_buffer(), entry["path"].as_py()


def image_columns(schema: pyarrow.Schema) -> list[str]:
    """Return the columns declared as images, else those of structs of bytes and path, else those of bytes."""
    import pyarrow.types as kinds

    found = [field for field in schema if _holds_images(field.type)]
    known = {name: feature for name, feature in features(schema).items() if isinstance(feature, dict)}
    declared = [field.name for field in found if known.get(field.name, {}).get("_type") == "Image"]
    pairs = [field.name for field in found if kinds.is_struct(field.type)]
    return declared or pairs or [field.name for field in found]


def _holds_images(kind: pyarrow.DataType) -> bool:
    """Return whether a column may contain encoded images: bytes, or structs of `bytes` and `path`."""
    import pyarrow.types as kinds

    if not kinds.is_struct(kind):
        return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))
    data, path = kind.get_field_index("bytes"), kind.get_field_index("path")
    if min(data, path) < 0 or not _holds_images(kind.field(data).type):
        return False
    text = kind.field(path).type
    return bool(kinds.is_string(text) or kinds.is_large_string(text) or kinds.is_null(text))


def check_columns(
    files: Sequence[Path], tables: Sequence[pyarrow.Table], images: Sequence[str], others: Sequence[str] = ()
) -> None:
    """Check that each file has the columns `images`, of encoded images, and `others`.

    Raises:
        DataError: a file lacks a column, has two of the same name, or has images of another type.
    """
    for file, table in zip(files, tables, strict=True):
        if (twice := repeated(table.column_names)) is not None:
            raise DataError(f"{file}: has two columns {quoted(twice)}; rename one")
        for column in (*images, *others):
            if column not in table.column_names:
                raise DataError(f"{file}: has no column {column!r}, which {files[0].name} has; add it")
        for column in images:
            kind = table.schema.field(column).type
            if not _holds_images(kind):
                raise DataError(
                    f"{file}: column {column!r} is {cut(str(kind))}; encoded images are binary, or a struct of bytes "
                    "(binary) and path (text)"
                )


def features(schema: pyarrow.Schema) -> dict[str, Any]:
    """Return the column descriptions of the library `datasets`; empty if another library wrote the file."""
    text = (schema.metadata or {}).get(b"huggingface")
    try:
        found = parse_json(text)["info"]["features"] if text else {}
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def open_table(path: Path) -> pyarrow.Table:
    """Open the table of a file, memory-mapped where possible.

    Raises:
        DataError: the file cannot be read or is damaged, or pyarrow is not installed.
    """
    with arrow_errors(path) as pa:
        table = _unpacked(path, pa) if path.suffix.lower() == ".parquet" else _mapped(path, pa)
        table.validate(full=True)  # access to data outside of the file would end the process
        return table


def read_schema(path: Path) -> pyarrow.Schema:
    """Read the schema of a file, without its rows.

    Raises:
        DataError: see `open_table`.
    """
    with arrow_errors(path) as pa:
        if path.suffix.lower() == ".parquet":
            return pa.parquet.read_schema(path)
        return pa.ipc.open_stream(_stream(path, pa)).schema


def _mapped(path: Path, pa: Any) -> pyarrow.Table:
    stream, size = _stream(path, pa), 0
    for message in pa.ipc.MessageReader.open_stream(stream):
        size += _unpacked_size(message)
        check_unpacked(path, size, path.stat().st_size)
    stream.seek(stream.tell() - len(_END))
    if stream.read(len(_END)) != _END:
        raise ValueError("it ends between two batches of rows")
    return pa.ipc.open_stream(_stream(path, pa)).read_all()


def _stream(path: Path, pa: Any) -> Any:
    """Open a file at the start of its stream; the file format has the same stream behind a mark of 8 bytes."""
    source = pa.memory_map(str(path))
    source.seek(8 if source.read(6) == b"ARROW1" else 0)
    return source


def _unpacked_size(message: Any) -> int:
    """Return the uncompressed size of a message's columns in bytes; a compressed buffer starts with its own.

    The message is a flatbuffer that pyarrow has checked; only the positions of the buffers are read from it.
    """
    data, body = memoryview(message.metadata), memoryview(message.body or b"")

    def number(kind: str, place: int) -> int:
        return int(struct.unpack_from(kind, data, place)[0])

    def field(table: int, index: int) -> int:
        """Return the place of a field of a table; 0 if it is missing."""
        listed = table - number("<i", table)
        offset = number("<H", listed + 4 + 2 * index) if 4 + 2 * index < number("<H", listed) else 0
        return table + offset if offset else 0

    def target(place: int) -> int:
        return place + number("<I", place)

    if message.type not in ("record batch", "dictionary"):
        return 0
    batch = target(field(target(0), 2))
    if message.type == "dictionary":
        batch = target(field(batch, 1))
    buffers, compressed = target(field(batch, 2)), field(batch, 3)
    places = (struct.unpack_from("<qq", data, buffers + 4 + 16 * i) for i in range(number("<I", buffers)))
    return sum(
        max(length, struct.unpack_from("<q", body, start)[0]) if compressed else length
        for start, length in places
        if length
    )


def _unpacked(path: Path, pa: Any) -> pyarrow.Table:
    """Convert a parquet file to Arrow in the cache folder (in memory if it is not writable) and open it."""
    cached = cache_file("arrow", UNPACKED_VERSION, os.path.realpath(path), *map(str, stamp_of(os.stat(path))))
    cached = cached.with_suffix(".arrow")
    if not cached.exists():
        try:
            with (
                pa.parquet.ParquetFile(path) as packed,
                atomic_file(cached) as file,
                pa.ipc.new_stream(file, packed.schema_arrow) as writer,
            ):
                check_parquet(path, packed.metadata)
                for batch in packed.iter_batches(batch_size=_ROWS):
                    writer.write_batch(batch)
        except StorageError:
            return pa.parquet.read_table(path)
    return _mapped(cached, pa)


def is_saved(folder: Path) -> bool:
    """Return whether `folder` was written by `save_to_disk`, or contains parquet or Arrow files with images."""
    if any((folder / name).is_file() for name in _SAVED):
        return True
    first = next((path for paths in splits_in(folder).values() for path in paths), None)
    return first is not None and holds_images(first)


def holds_images(path: Path) -> bool:
    """Return whether a parquet or Arrow file contains images rather than their paths."""
    try:
        return bool(image_columns(read_schema(path)))
    except DataError:
        return False


def open_huggingface(path: Path, config: DataConfig) -> ImageSource:
    """Open the images of a local data set.

    Labels come from the column `task.data.label_column`, or from the first column with a usual name. The classes of a
    `ClassLabel` column are the names that occur in the data, in the order of the `ClassLabel`.

    Raises:
        DataError: there are no files, no training split, or no column of images or labels.
        ConfigError: a column is unknown.
    """
    files = splits_in(path)
    if not files:
        raise DataError(f"{path}: contains no .arrow or .parquet files; use the folder that save_to_disk wrote")
    names = list(files)
    train, val = find_train(names, config, where=str(path)), None
    if train is None and len(names) > 1:
        raise DataError(
            f"{path}: no training split; name it with --set task.data.train_split=NAME; available: {', '.join(names)}"
        )
    if train is None:
        train = names[0]
    elif len(names) > 1 or config.val_split:
        val = find_val(names, config, train=train, where=str(path))
    source = _build(path, files, [train] if val is None else [train, val], config)
    return replace(source, test_split=find_test(names, config, used=(train, val), where=str(path)))


def _build(path: Path, files_of: dict[str, list[Path]], splits: Sequence[str], config: DataConfig) -> ImageSource:
    files = [file for split in splits for file in files_of[split]]
    tables = [open_table(file) for file in files]
    column = _image_column(files[0], tables[0].schema, config)
    check_columns(files, tables, [column])
    rows = [len(table) for table in tables]
    places = np.stack([np.repeat(np.arange(len(files)), rows), np.concatenate([np.arange(n) for n in rows])], axis=1)
    split_of = [split for split in splits for _ in files_of[split]]
    names = image_names(tables, column, split_of)
    labels = _labels(files, tables, column, config)
    count = sum(n for n, split in zip(rows, split_of, strict=True) if split == splits[0])

    def images(first: int, last: int) -> ArrowImages:
        return ArrowImages(
            files,
            column=column,
            places=places[first:last],
            names=names[first:last],
            labels=labels.values[first:last],
            root=path.parent if path.is_file() else path,
        )

    return ImageSource(
        kind="huggingface",
        where=str(path),
        classes=labels.classes,
        train=images(0, count),
        val=images(count, len(names)) if len(splits) > 1 else None,
        origin=f"the split{'s' if len(splits) > 1 else ''} {' and '.join(splits)}",
        multilabel=labels.multilabel,
        notes=tuple(filter(None, (labels.note, missing_parts(path, files)))),
    )


def _image_column(file: Path, schema: Any, config: DataConfig) -> str:
    if config.path_column is not None:
        if config.path_column not in schema.names:
            near = did_you_mean(config.path_column, schema.names)
            raise ConfigError(
                f"task.data.path_column: {file} has no column {config.path_column!r}{near}; available: "
                f"{', '.join(schema.names)}"
            )
        return config.path_column
    found = image_columns(schema)
    if not found:
        raise DataError(
            f"{file}: no column of images (bytes, or a struct of bytes and path); available: {', '.join(schema.names)}"
        )
    return "image" if "image" in found else found[0]


def _names(table: Any, column: str) -> Iterator[str | None]:
    """Yield the original file name of each image; None if unknown."""
    import pyarrow.types as kinds  # optional dependency

    kind = table.schema.field(column).type
    if not kinds.is_struct(kind):
        yield from [None] * len(table)
        return
    for chunk in table.column(column).chunks:
        yield from chunk.field("path").to_pylist()


def image_names(tables: Sequence[pyarrow.Table], column: str, splits: Sequence[str]) -> list[str]:
    """Return the file names of a column's images if they are unique, otherwise `<split>/<number>`; a split per table."""
    names = [name for table in tables for name in _names(table, column)]
    given = [name for name in names if name]
    if len(given) == len(names) == len(set(given)):
        return given
    count: dict[str, int] = {}
    numbered = []
    for split, length in zip(splits, map(len, tables), strict=True):
        start = count.get(split, 0)
        numbered += [f"{split}/{start + i}" for i in range(length)]
        count[split] = start + length
    return numbered


def _labels(files: Sequence[Path], tables: Sequence[Any], image: str, config: DataConfig) -> Labels:
    """Read the labels of all rows; the names of a `ClassLabel` replace its numbers."""
    schema = tables[0].schema
    wanted = [name for name in schema.names if name != image and _is_plain(schema.field(name).type)]
    if config.label_column in wanted:
        wanted = [config.label_column]
    check_columns(files, tables, [], wanted)
    columns: dict[str, list[Any]] = {}
    for name in wanted:
        named = [_class_names(features(table.schema).get(name)) for table in tables]  # each split has its own
        if any(named) and not all(named):
            raise DataError(
                f"{files[named.index(())]}: column {name!r} has no names of classes, which other files have"
            )
        columns[name] = [
            _named(value, names, file, row) if names else value
            for file, table, names in zip(files, tables, named, strict=True)
            for row, value in enumerate(table.column(name).to_pylist())
        ]
    numbers: list[int | str] = [
        f"{file.name}, row {row}" for file, table in zip(files, tables, strict=True) for row in range(len(table))
    ]
    table = LabelTable(where=str(files[0].parent), columns=columns, numbers=numbers)
    labels = read_labels(table, config, exclude=set())
    # keep the order of the ClassLabel
    orders = [_class_names(features(schema).get(name)) for name in wanted]
    number = {name: label for label, name in enumerate(labels.classes)}
    order = next((names for names in orders if names and number.keys() <= set(names)), None)
    if order is None:
        return labels
    classes = tuple(name for name in order if name in number)
    position = [number[name] for name in classes]
    if labels.multilabel:
        return replace(labels, classes=classes, values=labels.values[:, position])
    return replace(labels, classes=classes, values=np.argsort(position)[labels.values])


def _is_plain(kind: Any) -> bool:
    """Return whether a column may contain labels: text, integers, or lists of them."""
    import pyarrow.types as kinds  # optional dependency

    inner = kind.value_type if kinds.is_list(kind) or kinds.is_large_list(kind) else kind
    return bool(
        kinds.is_integer(inner) or kinds.is_string(inner) or kinds.is_large_string(inner) or kinds.is_boolean(inner)
    )


def _class_names(feature: Any) -> tuple[str, ...]:
    """Return the names of a `ClassLabel`, or of a list of them."""
    if isinstance(feature, list) and len(feature) == 1:
        return _class_names(feature[0])
    if not isinstance(feature, dict):
        return ()
    if feature.get("_type") == "ClassLabel":
        names = feature.get("names")
        return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()
    return _class_names(feature.get("feature"))


def _named(value: Any, names: Sequence[str], file: Path, row: int) -> Any:
    if isinstance(value, list):
        return [_named(each, names, file, row) for each in value]
    if isinstance(value, int) and not 0 <= value < len(names):
        raise DataError(
            f"{file}, row {row}: there is no name of class {value} (names: {len(names)}); correct the label"
        )
    return names[value] if isinstance(value, int) else value


def splits_in(path: Path) -> dict[str, list[Path]]:
    """Return the files of each split of a folder; a file is `train`.

    Splits are folders written by `save_to_disk`, or files named by split in the folder or in `data/`
    (`train-00000-of-00002.parquet`, `train/0000.parquet`, `beans-train.arrow`).
    """
    if path.is_file():
        return {"train": [path]}
    if (path / "dataset_dict.json").is_file():
        return {name: _data_files(path / name) for name in _saved_splits(path / "dataset_dict.json")}
    if (path / "state.json").is_file():
        return {"train": _data_files(path)}
    return _by_name(path) or _by_name(path / "data")


def _saved_splits(file: Path) -> list[str]:
    """Return the names of the splits in a dataset_dict.json.

    Raises:
        DataError: it is damaged.
    """
    try:
        names = read_mapping(file)["splits"]
        if not isinstance(names, list) or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise ValueError("splits is not a list of folder names")
        return sorted(names)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{file}: cannot be read ({error}); save the data set again") from None


def _data_files(folder: Path) -> list[Path]:
    """Return the files of a folder written by `save_to_disk`, in the order of its state.json."""
    try:
        state = read_mapping(folder / "state.json")
        names = [entry["filename"] for entry in state["_data_files"]]
        if outside := next((name for name in names if Path(name).name != name), None):
            raise ValueError(f"{quoted(outside)} is not the name of a file in this folder")
        if state.get("_indices_data_files"):
            raise ValueError("it selects some of the rows; call flatten_indices() first")
        files = [folder / name for name in names]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / 'state.json'}: cannot be read ({error}); save the data set again") from None
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise DataError(f"{missing[0]}: missing, but listed in {folder / 'state.json'}; copy the data set again")
    return files


def _by_name(folder: Path) -> dict[str, list[Path]]:
    if not folder.is_dir():
        return {}
    files: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: natural(entry.name)):
        if entry.is_dir() and entry.name.lower() in (*TRAIN_NAMES, *VAL_NAMES):
            inside = [file for file in sorted(entry.iterdir()) if file.suffix in KINDS]
            if inside:
                files.setdefault(entry.name, []).extend(inside)
        elif entry.is_file() and entry.suffix in KINDS and not entry.name.startswith(("cache-", ".")):
            files.setdefault(split_name(_NUMBER.sub("", entry.stem)), []).append(entry)
    return files


def missing_parts(path: Path, files: Sequence[Path]) -> str:
    """Return a note if names such as `train-00000-of-00002` show that a folder lacks files, else an empty string."""
    if path.is_file():
        return ""
    found = [(each.stem[: match.start()], int(match[2])) for each in files if (match := _NUMBER.search(each.stem))]
    missing = sum(count for _, count in set(found)) - len(found)
    what = "1 file is" if missing == 1 else f"{missing} files are"
    return f"{what} missing, by the names of the other {len(files)}." if missing > 0 else ""
