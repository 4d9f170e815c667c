"""The task that data fit, for commands without `--task`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attngraft.errors import AttngraftError, DataError
from attngraft.files import user_path
from attngraft.tasks.captioning.files import has_captions
from attngraft.tasks.detection.voc import is_voc
from attngraft.tasks.detection.yolo import is_yolo
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.folders import has_masks
from attngraft.tasks.images.sources import coco, folder, huggingface, manifest, tar
from attngraft.tasks.images.sources.base import TRAIN_NAMES
from attngraft.tasks.images.sources.listing import is_image
from attngraft.tasks.images.sources.table import (
    KINDS,
    NUMBERS,
    SEPARATORS,
    LabelTable,
    as_lists,
    as_number,
    find_column,
    is_zero_one,
    label_column,
    read_table,
    zero_one_columns,
)
from attngraft.tasks.points.detection import point_task
from attngraft.tasks.segmentation.columns import has_mask_column
from attngraft.tasks.text.source import TEXT_NAMES
from attngraft.tasks.translation.files import aligned_files, languages_of
from attngraft.tasks.translation.source import NESTED, SIDES

DEFAULT = "classification"

_PROBED = 20  #: number of rows whose paths are looked at


def fitting_task(data: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the task that fits the data, and the reason.

    Captions of images in the files of `captioning` fit it, unless there are annotations of objects too.
    Point clouds fit `points`, or `point_parts` if their points have parts. YOLO labels with their data.yaml, and Pascal VOC
    annotations of objects, fit `detection`.
    Images with masks, in folders or in columns of a Hugging Face data set, fit `segmentation`. Line-aligned files of two
    languages, and tables with columns `source` and `target`, fit `translation`. Tables with a column of texts fit
    `text_classification`; tables of images fit `multilabel` (lists of labels, or several 0/1 columns), `regression`
    (numbers with decimals), or `classification`; COCO annotations fit `multilabel`.
    Everything else fits `classification`, which reports what is wrong with the data.

    Args:
        data: fields of the recipe's `task.data`, unchecked.
    """
    source = str(data.get("source", "")).strip()
    if source == "bars":
        return "regression", "bars are labeled with numbers"
    if source == "digits":
        return DEFAULT, "digits have one class each"
    path, found = user_path(source), None
    try:
        if source and has_captions(path):
            return "captioning", f"captions of images in {source}"
        if source and _has_coco(path):
            return "multilabel", f"COCO annotations in {source}"
        if source and path.is_dir() and has_masks(path):
            return "segmentation", f"folders of images and masks in {source}"
        if source and is_yolo(path):
            return "detection", f"YOLO labels in {source}"
        if source and is_voc(path):
            return "detection", f"Pascal VOC annotations in {source}"
        if source and has_mask_column(source):
            return "segmentation", f"columns of images and masks in {source}"
        if source and (points := point_task(path)):
            return points, f"point clouds{' with parts' if points == 'point_parts' else ''} in {source}"
        if source and path.is_dir() and folder.has_class_folders(path):
            return DEFAULT, f"class folders in {source}"
        if source and (languages := languages_of(aligned_files(path))):
            return "translation", f"line-aligned files of {' and '.join(languages[:2])} in {source}"
        table = _table_of(path)
        found = None if table is None else _task_of(read_table(table, keep=True), table, data)
    except (AttngraftError, OSError):  # reported when the data are opened
        pass
    return found or (DEFAULT, "the default")


def _has_coco(path: Path) -> bool:
    if path.is_file():
        return path.suffix.lower() == ".json"
    return path.is_dir() and not huggingface.is_saved(path) and not tar.tars_in(path) and coco.coco_in(path)


def _table_of(path: Path) -> Path | None:
    """Return the (training) table of a source; None if its labels are not in a table."""
    if path.is_file():
        stored = path.suffix.lower() == ".parquet" and huggingface.holds_images(path)
        return path if path.suffix.lower() in KINDS and not stored else None
    if not path.is_dir() or huggingface.is_saved(path) or tar.tars_in(path) or coco.coco_in(path):
        return None
    tables = manifest.tables_in(path)
    lowered = {name.lower(): table for name, table in tables.items()}
    usual = next((lowered[name] for name in (*TRAIN_NAMES, *manifest.TABLE_NAMES) if name in lowered), None)
    return next(iter(tables.values())) if usual is None and len(tables) == 1 else usual


def _task_of(table: LabelTable, path: Path, data: Mapping[str, Any]) -> tuple[str, str] | None:
    name = path.name
    paths = data.get("path_column") or find_column(table, manifest.PATH_NAMES)
    texts = data.get("text_column") or find_column(table, TEXT_NAMES)
    if texts in table.columns and (data.get("text_column") or not _has_images(table, paths, path.parent, data)):
        return "text_classification", f"texts in column {texts!r} of {name}"
    if paths not in table.columns:
        sides = [data.get(f"{side}_column") or find_column(table, usual) for side, usual in SIDES.items()]
        if NESTED in table.columns or all(each in table.columns for each in sides):
            return "translation", f"pairs of sentences in {name}"
        return None
    split = data.get("split_column") or find_column(table, manifest.SPLIT_NAMES) or ""
    exclude = {str(paths), str(split)}
    columns = data.get("label_columns")
    if columns is None and data.get("label_column") is None:
        columns = zero_one_columns(table, exclude=exclude)
    if columns is not None:
        several = columns.split(",") if isinstance(columns, str) else [str(column) for column in columns]
        entries = [table.columns[column] for column in several if column in table.columns]
        if all(is_zero_one(each) for each in entries):
            return "multilabel", f"{len(several)} columns of 0 and 1 in {name}"
        numbers = all(_are_numbers(each) for each in entries)
        return ("regression", f"numbers in {len(several)} columns of {name}") if numbers else None
    column = data.get("label_column") or _column(table, exclude)
    if column not in table.columns:
        return None
    rows = table.columns[column]
    separator = data.get("label_separator")
    settings = DataConfig(source=name, label_separator=separator if separator in (*SEPARATORS, "none") else None)
    if as_lists(table, column, rows, settings) is not None:
        return "multilabel", f"lists of labels in column {column!r} of {name}"
    if _are_numbers(rows) and not all(float(entry).is_integer() for entry in rows):
        return "regression", f"numbers in column {column!r} of {name}"
    return DEFAULT, f"one label per image in column {column!r} of {name}"


def _column(table: LabelTable, exclude: set[str]) -> str | None:
    try:
        return label_column(table, exclude)
    except DataError:
        return find_column(table, NUMBERS, exclude=exclude)


def _has_images(table: LabelTable, column: str | None, folder: Path, data: Mapping[str, Any]) -> bool:
    entries = [str(entry).replace("\\", "/") for entry in table.columns.get(column or "", [])[:_PROBED]]
    if not entries or all(is_image(entry) for entry in entries):
        return bool(entries)
    root = data.get("root")
    try:
        manifest.find_root(folder, entries, DataConfig(source=str(folder), root=None if root is None else str(root)))
    except DataError:
        return False
    return True


def _are_numbers(entries: Sequence[Any]) -> bool:
    return all(math.isfinite(as_number(entry)) for entry in entries)
