"""Hugging Face data sets with a column of images and a column of masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import ConfigError, DataError
from attngraft.files import user_path
from attngraft.suggest import did_you_mean
from attngraft.tasks.images.sources.base import TEST_NAMES, find_split, find_train, usual_val_names
from attngraft.tasks.images.sources.huggingface import (
    KINDS,
    ArrowImages,
    check_columns,
    image_columns,
    image_names,
    is_saved,
    missing_parts,
    open_table,
    read_schema,
    splits_in,
)
from attngraft.tasks.images.stored import Cell
from attngraft.tasks.segmentation.config import MaskDataConfig

PREFIX = "hf:"
IMAGES = ("image", "images", "img", "pixel_values", "picture")  #: usual columns of images
MASKS = (
    *("label", "labels", "mask", "masks", "annotation", "annotations", "segmentation"),
    *("semantic_segmentation", "segmentation_mask", "labels_mask"),
)  #: usual columns of masks

Rows = list[tuple[str, Cell, Cell]]  #: name, image, mask


def is_table(source: str) -> bool:
    """Return whether a source is a Hugging Face data set: `hf:...`, a folder of one, or a parquet or Arrow file."""
    path = user_path(source)
    return source.startswith(PREFIX) or (is_saved(path) if path.is_dir() else path.suffix in KINDS)


def has_mask_column(source: str) -> bool:
    """Return whether a source is a Hugging Face data set with columns of images, one of them with a usual name of masks."""
    path = _path(source)
    if not path.exists() or not is_table(source):
        return False
    file = next((file for files in splits_in(path).values() for file in files), None)
    found = [] if file is None else image_columns(read_schema(file))
    return len(found) > 1 and any(name in MASKS for name in found)


def read_columns(config: MaskDataConfig) -> tuple[Path, dict[str, Rows], str]:
    """Find the rows of each split, named `train`, `val` and `test`.

    Returns:
        The folder of the data set, for a class file, its rows, and a note or an empty string.

    Raises:
        DataError: there are no files, no training split, or no column of images or of masks.
        ConfigError: a configured column does not exist.
    """
    path = _path(config.source)
    if not path.exists():
        raise DataError(
            f"{config.source}: no such file or folder; hf: only reads data sets on the local disk (written by "
            "save_to_disk, or a downloaded repository)"
        )
    files = splits_in(path)
    if not files:
        raise DataError(f"{path}: contains no .arrow or .parquet files; use the folder that save_to_disk wrote")
    names, settings = list(files), config.as_images()
    train = find_train(names, settings, where=str(path)) or (names[0] if len(names) == 1 else None)
    if train is None:
        raise DataError(f"{path}: no training split (found: {', '.join(names)}); name one of them train")
    others = [name for name in names if name != train]
    val = None
    if not settings.splits_train:
        val = find_split(others, None, usual_val_names(settings), field="source", where=str(path))
    test = find_split([name for name in others if name != val], None, TEST_NAMES, field="source", where=str(path))
    chosen = {"train": train, "val": val, "test": test}
    files_of = {part: files[name] for part, name in chosen.items() if name is not None}
    note = missing_parts(path, [file for found in files_of.values() for file in found])
    root = path.parent if path.is_file() else path
    return root, _rows(files_of, root, config), note


def _path(source: str) -> Path:
    return user_path(source.removeprefix(PREFIX))


def _rows(files_of: Mapping[str, Sequence[Path]], root: Path, config: MaskDataConfig) -> dict[str, Rows]:
    """Return the rows of each split, whose names differ across splits."""
    files = [file for found in files_of.values() for file in found]
    tables = [open_table(file) for file in files]
    columns = _columns(files[0], tables[0].schema, config)
    check_columns(files, tables, columns)
    split_of = [split for split, found in files_of.items() for _ in found]
    places = np.array([(number, row) for number, table in enumerate(tables) for row in range(len(table))])
    names, nothing = image_names(tables, columns[0], split_of), np.zeros(len(places))
    images, masks = (
        ArrowImages(files, column=column, places=places, names=names, labels=nothing, root=root) for column in columns
    )
    rows: dict[str, Rows] = {split: [] for split in files_of}
    for index, (name, (file, _)) in enumerate(zip(names, places, strict=True)):
        rows[split_of[file]].append((name, Cell(images, index), Cell(masks, index)))
    return rows


def _columns(file: Path, schema: Any, config: MaskDataConfig) -> tuple[str, str]:
    """Return the columns of images and of masks."""
    found, listed = image_columns(schema), ", ".join(schema.names)
    for field, name in (("images", config.images), ("masks", config.masks)):
        if name is not None and name not in found:
            wrong = (
                "contains no images" if name in schema.names else f"does not exist{did_you_mean(name, schema.names)}"
            )
            raise ConfigError(
                f"task.data.{field}: the column {name!r} of {file} {wrong}; columns: {listed}; of images: "
                f"{', '.join(found) or 'none'}"
            )
    masks = config.masks or next((name for name in MASKS if name in found and name != config.images), None)
    others = [name for name in (*IMAGES, *found) if name in found and name not in (masks, *MASKS)]
    images = config.images or next(iter(others), None)
    for field, name in (("images", images), ("masks", masks)):
        if name is None:
            raise DataError(
                f"{file}: no column of {field} (columns: {listed}; of images: {', '.join(found) or 'none'}); name it with "
                f"--set task.data.{field}=COLUMN, or, if images have classes, use --task classification"
            )
    return str(images), str(masks)
