"""Results of `attngraft data check`: all issues that training would report or reject, and a contact sheet."""

from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from attngraft.errors import ConfigError, DataError
from attngraft.files import atomic_file, printable
from attngraft.tasks.images.checks import Duplicate, class_counts, classes_without_images, refuse_other_labels
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.opening import Survey, survey_images
from attngraft.tasks.images.sources import Images, in_mode, open_source
from attngraft.tasks.images.sources.splitting import split_digest
from attngraft.tasks.task import load_task

_SKEWED = 10  #: smallest ratio of class sizes for a note with remedies

_TILE, _GAP, _LABEL = 96, 4, 150  #: pixels
_COLUMNS, _CLASSES, _DUPLICATES = 8, 40, 8
_INK, _GRAY, _RED = (30, 30, 30), (120, 120, 120), (190, 30, 30)

SheetRow = tuple[str, str, list[tuple[Images, int]], tuple[int, int, int]]  #: title, subtitle, images, color


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Survey of a source, and whether a task can be trained on it."""

    survey: Survey
    task: str  #: the requested task, or the task that fits the labels
    refusals: list[str]  #: reasons why training would reject the data; empty if it would start
    notes: list[str]  #: remarks for the user

    def as_dict(self) -> dict[str, Any]:
        """Return all results, JSON-ready."""
        survey, issues, source = self.survey, self.survey.issues, self.survey.source
        counts = self.counts()
        return printable(
            {
                "source": source.where,
                "kind": source.kind,
                "task": self.task,
                "ready": not self.refusals,
                "refusals": self.refusals,
                "notes": self.notes,
                "split": source.origin,
                "split_digest": None if survey.val is None else split_digest(survey.val),
                "targets" if source.numeric else "classes": list(source.classes),
                "parts": {
                    name: {
                        "images": len(images),
                        **(
                            {"ranges": dict(zip(source.classes, self.ranges()[name], strict=True))}
                            if source.numeric
                            else {"counts": dict(zip(source.classes, counts[name], strict=True))}
                        ),
                        **self.sizes_and_modes(name),
                    }
                    for name, images in self.images().items()
                },
                "depth": issues.depth,
                "unreadable": [{"part": part, "name": name, "reason": why} for part, name, why in issues.unreadable],
                "leaks": _groups(issues.leaks),
                "repeated": _groups(issues.repeated),
                "conflicting": _groups(issues.conflicting),
            }
        )

    def images(self) -> dict[str, Images]:
        """Return the readable images of each split."""
        parts = {"train": self.survey.source.train, "val": self.survey.val, "test": self.survey.source.test}
        return {name: images for name, images in parts.items() if images is not None}

    def counts(self) -> dict[str, list[int]]:
        """Return a mapping from split to the number of images of each class."""
        if self.survey.source.numeric:
            return {}
        classes = len(self.survey.source.classes)
        return {name: class_counts(images, classes).tolist() for name, images in self.images().items()}

    def ranges(self) -> dict[str, list[list[float]]]:
        """Return a mapping from split to the smallest, mean and largest value of each number."""
        return {
            name: np.stack([images.labels.min(0), images.labels.mean(0), images.labels.max(0)], axis=1).tolist()
            for name, images in self.images().items()
            if len(images)
        }

    def sizes_and_modes(self, name: str) -> dict[str, Any]:
        """Return a split's image sizes (width, height: smallest, median and largest by area) and modes."""
        survey, scan = self.survey, self.survey.scan
        unreadable = Counter(part for part, _, _ in survey.issues.unreadable)
        first = 0
        for part, images in self.images().items():
            rows = range(first, first := first + len(images) + unreadable[part])
            if part == name:
                break
        rows_read = np.setdiff1d(np.arange(rows.start, rows.stop), list(scan.problems), assume_unique=True)
        sizes = scan.sizes[rows_read]
        if not sizes.any():
            return {"sizes": None, "modes": {}}
        by_area = sizes[np.argsort(sizes.prod(axis=1, dtype=np.int64), kind="stable")]
        smallest, median, largest = (by_area[row].tolist() for row in (0, len(by_area) // 2, -1))
        modes = Counter(map(str, scan.modes[rows_read]))  # a list of them would take 50 bytes per image
        return {
            "sizes": {"smallest": smallest, "median": median, "largest": largest},
            "modes": dict(modes.most_common()),
        }


def inspect_images(config: DataConfig, *, task: str | None = None) -> Inspection:
    """Open the data as training would, and report all issues.

    Args:
        config: the recipe's `task.data`.
        task: the task to train; None: the task that fits the labels.

    Raises:
        ConfigError: a class, a column or the task is unknown, or the task does not use images with labels.
        DataError: the source cannot be opened at all.
    """
    several = None if task is None or config.numeric else _has_several_labels(task)
    survey = survey_images(config)
    source, refusals = survey.source, [*survey.refusals, *([survey.leak] if survey.leak else [])]
    if source.numeric:
        return Inspection(
            survey=survey, task=task or "regression", refusals=refusals, notes=[*source.notes, *survey.issues.notes()]
        )
    fitting = "multilabel" if source.multilabel else "classification"
    try:
        refuse_other_labels(source, task=task or fitting, multilabel=source.multilabel if several is None else several)
    except DataError as error:
        refusals.append(str(error))
    notes = [*source.notes, *survey.issues.notes()]
    if survey.val is not None:
        notes += classes_without_images(source, survey.val)
    counts = class_counts(source.train, len(source.classes))
    if len(counts) > 1 and counts.min() > 0 and counts.max() >= _SKEWED * counts.min():
        rare, common = source.classes[int(counts.argmin())], source.classes[int(counts.argmax())]
        remedy = "--set task.loss.pos_weight=balanced" if fitting == "multilabel" else "--recipe imbalanced"
        notes.append(
            f"{common} has {counts.max() / counts.min():.0f} times as many training images as {rare}; try {remedy}."
        )
    return Inspection(survey=survey, task=task or fitting, refusals=refusals, notes=notes)


def _has_several_labels(task: str) -> bool:
    """Return whether the images of a task have several labels each."""
    found: bool | None = getattr(load_task(task), "multilabel", None)
    if found is None:
        raise ConfigError(
            f"--task {task}: `attngraft data check` does not support this task; use `attngraft train --task {task}`, "
            "which checks its data before training"
        )
    return found


def _groups(groups: list[list[Duplicate]]) -> list[list[dict[str, str]]]:
    return [[{"part": image.part, "name": image.name, "class": image.label} for image in group] for group in groups]


def save_contact_sheet(inspection: Inspection, path: Path) -> Path:
    """Save a .png with a row of images for each class and for each group of duplicates across splits.

    A row has up to 8 images, evenly spaced over the training images of its class, or, in regression, from
    the lowest to the highest number. At most 40 classes and 8 groups are shown.

    Raises:
        DataError: there are no readable images.
        StorageError: the file cannot be written.
    """
    rows = [*_class_rows(inspection), *_duplicate_rows(inspection)]
    if not any(images for _, _, images, _ in rows):
        raise DataError(f"{inspection.survey.source.where}: no readable images for a contact sheet; add some")
    width = _LABEL + _COLUMNS * (_TILE + _GAP)
    sheet = Image.new("RGB", (width, len(rows) * (_TILE + _GAP) + _GAP), "white")
    pen, fonts = ImageDraw.Draw(sheet), (ImageFont.load_default(14), ImageFont.load_default(11))
    for number, (title, subtitle, images, color) in enumerate(rows):
        top = _GAP + number * (_TILE + _GAP)
        pen.text((_GAP, top + 4), _short(pen, title, fonts[0]), fill=color, font=fonts[0])
        pen.text((_GAP, top + 24), _short(pen, subtitle, fonts[1]), fill=_GRAY, font=fonts[1])
        for column, (source, index) in enumerate(images[:_COLUMNS]):
            tile = thumbnail(source, index)
            left = _LABEL + column * (_TILE + _GAP)
            sheet.paste(tile, (left + (_TILE - tile.width) // 2, top + (_TILE - tile.height) // 2))
    with atomic_file(path) as file:
        sheet.save(file, "png")
    return path


def _class_rows(inspection: Inspection) -> list[SheetRow]:
    source, train = inspection.survey.source, inspection.survey.source.train
    counts = inspection.counts()
    rows: list[SheetRow] = []
    if source.numeric:
        order = np.argsort(train.labels, axis=0, kind="stable")[np.linspace(0, len(train) - 1, _COLUMNS).astype(int)]
        lows, highs = train.labels.min(0), train.labels.max(0)
        return [
            (name, f"{lows[i]:g} to {highs[i]:g}", [(train, int(index)) for index in order[:, i]], _INK)
            for i, name in enumerate(source.classes[:_CLASSES])
        ]
    for label, name in enumerate(source.classes[:_CLASSES]):
        members = np.flatnonzero(train.labels[:, label] > 0 if source.multilabel else train.labels == label)
        chosen = members[np.linspace(0, len(members) - 1, min(_COLUMNS, len(members))).astype(int)]
        subtitle = ", ".join(f"{split} {numbers[label]}" for split, numbers in counts.items())
        rows.append((name, subtitle, [(train, int(index)) for index in chosen], _INK))
    left = len(source.classes) - _CLASSES
    if left > 0:
        rows.append((f"and {left} more classes", "", [], _GRAY))
    return rows


def _duplicate_rows(inspection: Inspection) -> list[SheetRow]:
    by_name = {
        (split, name): (images, index)
        for split, images in inspection.images().items()
        for index, name in enumerate(images.names)
    }
    rows: list[SheetRow] = []
    title = "in both splits" if len(inspection.images()) < 3 else "in several splits"
    for group in inspection.survey.issues.leaks[:_DUPLICATES]:
        shown = [by_name[image.part, image.name] for image in group if (image.part, image.name) in by_name]
        rows.append((title, ", ".join(dict.fromkeys(image.label for image in group)), shown, _RED))
    return rows


def open_thumbnails(config: DataConfig, names: Collection[str]) -> dict[str, Image.Image]:
    """Return the thumbnails of images by name, without those that are missing, unreadable or not unique.

    Raises:
        DataError: the source cannot be opened.
    """
    source = open_source(config)
    parts = [images for images in (source.train, source.val, source.test) if images is not None]
    counts = Counter(name for images in parts for name in images.names if name in names)
    found: dict[str, Image.Image] = {}
    for images in parts:
        for index, name in enumerate(images.names):
            if counts.get(name) == 1:
                with suppress(DataError):
                    found[name] = thumbnail(images, index)
    return found


def thumbnail(images: Images, index: int) -> Image.Image:
    """Return an image of at most 96 x 96 pixels; small ones are enlarged by an integer factor."""
    image = in_mode(images.open(index), "RGB")
    scale = _TILE // max(image.size)
    if scale > 1:
        return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    return ImageOps.contain(image, (_TILE, _TILE)) if max(image.size) > _TILE else image


def _short(pen: ImageDraw.ImageDraw, text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
    """Shorten `text` to the width available next to the images."""
    if pen.textlength(text, font=font) <= _LABEL - 2 * _GAP:
        return text
    while text and pen.textlength(f"{text}…", font=font) > _LABEL - 2 * _GAP:
        text = text[:-1]
    return f"{text}…"
