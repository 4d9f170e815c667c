"""Hugging Face data sets on local disk: what `save_to_disk` wrote, what a hub repository holds, and the library's own cache.

Only pyarrow is needed, and nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import ConfigError, DataError
from attngraft.suggest import did_you_mean
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.arrow import ArrowImages, features, image_columns, open_table, read_schema
from attngraft.tasks.images.sources.labels import Labels, read_labels
from attngraft.tasks.images.sources.listing import natural
from attngraft.tasks.images.sources.parts import TRAIN_NAMES, VAL_NAMES, Parts, find_name, missing_validation
from attngraft.tasks.images.sources.table import Table

KINDS = (".arrow", ".parquet")

_SAVED = ("dataset_dict.json", "state.json")  #: what `save_to_disk` leaves beside the data
_NUMBER = re.compile(r"[-_.]\d{4,5}[-_]of[-_]\d{4,5}([-_][0-9a-f]{16})?$")


def is_saved(folder: Path) -> bool:
    """Whether `folder` is what `save_to_disk` writes, or holds parquet or Arrow files with images in them."""
    if any((folder / name).is_file() for name in _SAVED):
        return True
    first = next((path for paths in _parts_in(folder).values() for path in paths), None)
    return first is not None and holds_images(first)


def holds_images(path: Path) -> bool:
    """Whether a parquet or Arrow file holds images, and not their paths."""
    try:
        return bool(image_columns(read_schema(path)))
    except DataError:
        return False


def open_huggingface(path: Path, config: DataConfig) -> Parts:
    """The images of a local data set.

    Labels are the column that `task.data.label_column` names, or the first of the usual names. Names of a `ClassLabel` are
    the classes, in its order, as far as any image has them.

    Raises:
        DataError: nothing there, no part that can be told, no images or labels.
        ConfigError: a column that is not there.
    """
    there = {"train": [path]} if path.is_file() else _parts_in(path)
    if not there:
        raise DataError(f"{path}: no .arrow or .parquet files of a data set; give the folder that save_to_disk wrote")
    names = list(there)
    train = find_name(names, config.train_split, TRAIN_NAMES, field="train_split", where=str(path))
    if train is None and len(names) > 1:
        raise DataError(f"{path}: no training part; name it with task.data.train_split; there is: {', '.join(names)}")
    val = None
    if train is None:
        train = names[0]
    elif len(names) > 1 or config.val_split or not path.is_file():
        named = config.val_split or (not config.draws and len(names) > 1)
        val = find_name(names, config.val_split, VAL_NAMES, field="val_split", where=str(path)) if named else None
        if named and val is None:
            raise missing_validation(str(path), train, names)
    return _opened(path, there, [train] if val is None else [train, val], config)


def _opened(path: Path, there: dict[str, list[Path]], parts: Sequence[str], config: DataConfig) -> Parts:
    files = [file for part in parts for file in there[part]]
    tables = [open_table(file) for file in files]
    column = _image_column(files[0], tables[0].schema, config)
    for file, table in zip(files, tables, strict=True):
        if column not in table.column_names:
            raise DataError(f"{file}: has no column {column!r}, which {files[0].name} has")
    rows = [len(table) for table in tables]
    places = np.stack([np.repeat(np.arange(len(files)), rows), np.concatenate([np.arange(n) for n in rows])], axis=1)
    part_of = [part for part in parts for _ in there[part]]
    names = _unique([name for table in tables for name in _names(table, column)], part_of, rows)
    labels = _labels(files, tables, column, config)
    count = sum(n for n, part in zip(rows, part_of, strict=True) if part == parts[0])

    def images(first: int, last: int) -> ArrowImages:
        own = np.arange(first, last)
        return ArrowImages(
            files,
            column=column,
            places=places[own],
            names=names[first:last],
            labels=labels.of(own),
            root=path.parent if path.is_file() else path,
        )

    return Parts(
        kind="huggingface",
        where=str(path),
        classes=labels.classes,
        train=images(0, count),
        val=images(count, len(names)) if len(parts) > 1 else None,
        origin=f"the part{'s' if len(parts) > 1 else ''} {' and '.join(parts)}",
        multilabel=labels.multilabel,
        notes=(labels.note,) if labels.note else (),
    )


def _image_column(file: Path, schema: Any, config: DataConfig) -> str:
    if config.path_column is not None:
        if config.path_column not in schema.names:
            near = did_you_mean(config.path_column, schema.names)
            raise ConfigError(
                f"task.data.path_column: {file} has no column {config.path_column!r}{near}; there are: "
                f"{', '.join(schema.names)}"
            )
        return config.path_column
    found = image_columns(schema)
    if not found:
        raise DataError(
            f"{file}: no column of images (bytes, or a structure of bytes and path); there are: {', '.join(schema.names)}"
        )
    return "image" if "image" in found else found[0]


def _names(table: Any, column: str) -> Iterator[str | None]:
    """The file names that the images had; None where nothing is said."""
    import pyarrow.types as kinds

    kind = table.schema.field(column).type
    if not kinds.is_struct(kind):
        yield from [None] * len(table)
        return
    for chunk in table.column(column).chunks:
        yield from chunk.field("path").to_pylist()


def _unique(names: list[str | None], parts: Sequence[str], rows: Sequence[int]) -> list[str]:
    """File names where every image has one of its own, else part and number."""
    given = [name for name in names if name]
    if len(given) == len(names) == len(set(given)):
        return given
    count: dict[str, int] = {}
    numbered = []
    for part, length in zip(parts, rows, strict=True):
        start = count.get(part, 0)
        numbered += [f"{part}/{start + i}" for i in range(length)]
        count[part] = start + length
    return numbered


def _labels(files: Sequence[Path], tables: Sequence[Any], image: str, config: DataConfig) -> Labels:
    """The labels of all rows, words for the numbers of a `ClassLabel`."""
    schema = tables[0].schema
    known = features(schema)
    wanted = [name for name in schema.names if name != image and _is_plain(schema.field(name).type)]
    if config.label_column in wanted:
        wanted = [config.label_column]
    columns: dict[str, list[Any]] = {}
    for name in wanted:
        words = _words(known.get(name))
        values = [value for table in tables for value in table.column(name).to_pylist()]
        columns[name] = [_in_words(value, words) for value in values] if words else values
    numbers: list[int | str] = [
        f"{file.name}, row {row}" for file, table in zip(files, tables, strict=True) for row in range(len(table))
    ]
    where = str(files[0].parent)
    labels = read_labels(Table(where=where, columns=columns, numbers=numbers), config, but=set())
    return _in_order(labels, [_words(known.get(name)) for name in wanted])


def _is_plain(kind: Any) -> bool:
    """Whether a column may hold labels: text, whole numbers, or lists of them."""
    import pyarrow.types as kinds

    inner = kind.value_type if kinds.is_list(kind) or kinds.is_large_list(kind) else kind
    return bool(
        kinds.is_integer(inner) or kinds.is_string(inner) or kinds.is_large_string(inner) or kinds.is_boolean(inner)
    )


def _words(feature: Any) -> tuple[str, ...]:
    """The names of a `ClassLabel`, alone or in a list."""
    if isinstance(feature, list) and len(feature) == 1:
        return _words(feature[0])
    if not isinstance(feature, dict):
        return ()
    if feature.get("_type") == "ClassLabel":
        return tuple(str(name) for name in feature.get("names") or ())
    return _words(feature.get("feature"))


def _in_words(value: Any, words: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_in_words(one, words) for one in value]
    return words[value] if isinstance(value, int) and 0 <= value < len(words) else None


def _in_order(labels: Labels, orders: Sequence[Sequence[str]]) -> Labels:
    """Classes in the order of the `ClassLabel` that they are of."""
    order = next((words for words in orders if words and set(labels.classes) <= set(words)), None)
    if order is None:
        return labels
    classes = tuple(name for name in order if name in labels.classes)
    place = [labels.classes.index(name) for name in classes]
    if labels.multilabel:
        return replace(labels, classes=classes, values=labels.values[:, place])
    return replace(labels, classes=classes, values=np.argsort(place)[labels.values])


def _parts_in(folder: Path) -> dict[str, list[Path]]:
    """The files of each part: folders of `save_to_disk`, or files whose names tell (`train-00000-of-00002.parquet`,
    `train/0000.parquet`, `beans-train.arrow`), here or in `data/`."""
    if (folder / "dataset_dict.json").is_file():
        below = sorted(entry for entry in folder.iterdir() if (entry / "state.json").is_file())
        return {entry.name: _data_files(entry) for entry in below}
    if (folder / "state.json").is_file():
        return {"train": _data_files(folder)}
    for place in (folder, folder / "data"):
        found = _by_name(place)
        if found:
            return found
    return {}


def _data_files(folder: Path) -> list[Path]:
    """Of a folder of `save_to_disk`, in the order in which it names them."""
    import json

    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        files = [folder / entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / 'state.json'}: cannot be read ({error}); save the data set again") from None
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise DataError(f"{missing[0]}: is not there, and {folder / 'state.json'} names it; copy the data set again")
    return files


def _by_name(folder: Path) -> dict[str, list[Path]]:
    if not folder.is_dir():
        return {}
    found: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: natural(entry.name)):
        if entry.is_dir() and entry.name.lower() in (*TRAIN_NAMES, *VAL_NAMES):
            inside = [file for file in sorted(entry.iterdir()) if file.suffix in KINDS]
            if inside:
                found.setdefault(entry.name, []).extend(inside)
        elif entry.is_file() and entry.suffix in KINDS and not entry.name.startswith(("cache-", ".")):
            name = _NUMBER.sub("", entry.stem)
            last = re.split(r"[-_.]", name)[-1]
            found.setdefault(last if last.lower() in (*TRAIN_NAMES, *VAL_NAMES) else name, []).append(entry)
    return found
