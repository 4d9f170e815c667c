"""Results of `attngraft data check`: all findings of training on these data, including fatal ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from attngraft.errors import DataError
from attngraft.files import printable
from attngraft.tasks.images.checks import class_counts, classes_without_images, refuse_other_labels
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.issues import Duplicate
from attngraft.tasks.images.opening import Survey, split_digest, survey_images
from attngraft.tasks.images.scan import Progress
from attngraft.tasks.images.sources import Images

TaskName = Literal["classification", "multilabel"]

_SKEWED = 10  #: ratio of class sizes from which a note names remedies


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The survey of a source, and whether a task could be trained on it."""

    survey: Survey
    task: TaskName  #: the requested task, or the one that fits the labels
    refusals: list[str]  #: reasons why training would refuse the data; empty: it would start
    notes: list[str]  #: for readers of results

    def as_dict(self) -> dict[str, Any]:
        """Return everything, JSON-ready."""
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
                "classes": list(source.classes),
                "parts": {
                    name: {
                        "images": len(images),
                        "counts": dict(zip(source.classes, counts[name], strict=True)),
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
        survey = self.survey
        return {"train": survey.source.train} | ({} if survey.val is None else {"val": survey.val})

    def counts(self) -> dict[str, list[int]]:
        """Return split -> images of each class."""
        classes = len(self.survey.source.classes)
        return {name: class_counts(images, classes).tolist() for name, images in self.images().items()}

    def sizes_and_modes(self, name: str) -> dict[str, Any]:
        """Return the sizes (width, height: smallest, median, largest by area) and modes of a split's scanned images."""
        survey, scan = self.survey, self.survey.scan
        unreadable = sum(part == "val" for part, _, _ in survey.issues.unreadable)
        first_val = len(scan) - unreadable - (0 if survey.val is None else len(survey.val))
        rows = range(first_val) if name == "train" else range(first_val, len(scan))
        rows_read = [row for row in rows if row not in scan.problems]
        sizes = scan.sizes[rows_read]
        if not sizes.any():
            return {"sizes": None, "modes": {}}
        by_area = sizes[np.argsort(sizes.prod(axis=1, dtype=np.int64), kind="stable")]
        smallest, median, largest = (by_area[row].tolist() for row in (0, len(by_area) // 2, -1))
        modes = Counter(scan.modes[row] for row in rows_read)
        return {
            "sizes": {"smallest": smallest, "median": median, "largest": largest},
            "modes": dict(modes.most_common()),
        }


def inspect_images(config: DataConfig, *, task: TaskName | None = None, progress: Progress | None = None) -> Inspection:
    """Open the data as training would, and report everything.

    Args:
        config: the recipe's `task.data`.
        task: the task to train; None: the one that fits the labels.
        progress: called while images are scanned.

    Raises:
        ConfigError: an unknown class or column.
        DataError: the source cannot be opened at all.
    """
    survey = survey_images(config, progress=progress)
    source, refusals = survey.source, list(survey.refusals)
    fitting: TaskName = "multilabel" if source.multilabel else "classification"
    try:
        refuse_other_labels(source, task=task or fitting, multilabel=(task or fitting) == "multilabel")
    except DataError as error:
        refusals.append(str(error))
    notes = [*source.notes, *survey.issues.notes()]
    if survey.val is not None:
        notes += classes_without_images(source, survey.val)
    counts = class_counts(source.train, len(source.classes))
    if len(counts) > 1 and counts.min() > 0 and counts.max() >= _SKEWED * counts.min():
        rare, common = source.classes[int(counts.argmin())], source.classes[int(counts.argmax())]
        remedy = "task.loss.pos_weight" if fitting == "multilabel" else "task.sampling and task.loss.class_weights"
        notes.append(
            f"{common} has {counts.max() / counts.min():.0f} times as many training images as {rare}; see {remedy}."
        )
    return Inspection(survey=survey, task=task or fitting, refusals=refusals, notes=notes)


def _groups(groups: list[list[Duplicate]]) -> list[list[dict[str, str]]]:
    return [[{"part": image.part, "name": image.name, "class": image.label} for image in group] for group in groups]
