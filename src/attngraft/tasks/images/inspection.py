"""What `attngraft data check` says of images: all that training would find, whether it would train or not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.checks import class_counts, classes_without_images, refuse_other_labels
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.findings import Twin
from attngraft.tasks.images.opening import Survey, split_digest, survey_images
from attngraft.tasks.images.printable import printable
from attngraft.tasks.images.scan import Progress, Scan
from attngraft.tasks.images.sources import Images

TaskName = Literal["classification", "multilabel"]

_SKEWED = 10  #: a class has so many times the images of another, and a note says what there is for it


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What was found."""

    survey: Survey
    task: TaskName  #: that the data fit, or that was asked for
    refusals: list[str]  #: why training would be refused; empty: it would begin
    notes: list[str]  #: what a reader of results should know

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, complete."""
        survey, found = self.survey, self.survey.found
        parts = survey.parts
        whole = {
            "source": parts.where,
            "kind": parts.kind,
            "task": self.task,
            "ready": not self.refusals,
            "refusals": self.refusals,
            "notes": self.notes,
            "split": parts.origin,
            "split_digest": None if survey.val is None else split_digest(survey.val),
            "classes": list(parts.classes),
            "parts": {name: self._part(name, images) for name, images in self.images().items()},
            "depth": found.depth,
            "unreadable": [{"part": part, "name": name, "reason": why} for part, name, why in found.unreadable],
            "leaks": _groups(found.leaks),
            "repeated": _groups(found.repeated),
            "conflicting": _groups(found.conflicting),
        }
        return printable(whole)

    def images(self) -> dict[str, Images]:
        """The readable images of each part."""
        survey = self.survey
        return {"train": survey.parts.train} | ({} if survey.val is None else {"val": survey.val})

    def counts(self) -> dict[str, list[int]]:
        """Images of each class, by part."""
        classes = len(self.survey.parts.classes)
        return {name: class_counts(images, classes).tolist() for name, images in self.images().items()}

    def _part(self, name: str, images: Images) -> dict[str, Any]:
        counts = dict(zip(self.survey.parts.classes, self.counts()[name], strict=True))
        return {"images": len(images), "counts": counts, **self.looks(name)}

    def looks(self, name: str) -> dict[str, Any]:
        """Sizes (width, height: smallest, median and largest by area) and modes of a part's images, as far as they were
        looked at."""
        train = len(self.survey.seen) - self._val_length()
        rows = range(train) if name == "train" else range(train, len(self.survey.seen))
        return _looks(self.survey.seen, [row for row in rows if row not in self.survey.seen.problems])

    def _val_length(self) -> int:
        lost = sum(part == "val" for part, _, _ in self.survey.found.unreadable)
        return lost + (0 if self.survey.val is None else len(self.survey.val))


def inspect_images(config: DataConfig, *, task: TaskName | None = None, progress: Progress | None = None) -> Inspection:
    """Open the data as training would, and say everything.

    Args:
        config: the recipe's `task.data`.
        task: that it would be; None: what the labels are made for.
        progress: called while images are looked at.

    Raises:
        ConfigError: a class or column that is not there.
        DataError: the source cannot be opened at all.
    """
    survey = survey_images(config, progress=progress)
    parts, refusals = survey.parts, list(survey.refusals)
    fits: TaskName = "multilabel" if parts.multilabel else "classification"
    try:
        refuse_other_labels(parts, task=task or fits, multilabel=(task or fits) == "multilabel")
    except DataError as error:
        refusals.append(str(error))
    notes = [*parts.notes, *survey.found.notes()]
    if survey.val is not None:
        notes += classes_without_images(parts, survey.val)
    counts = class_counts(parts.train, len(parts.classes))
    if len(counts) > 1 and counts.min() > 0 and counts.max() >= _SKEWED * counts.min():
        rare, common = parts.classes[int(counts.argmin())], parts.classes[int(counts.argmax())]
        remedy = "task.loss.pos_weight" if fits == "multilabel" else "task.sampling and task.loss.class_weights"
        notes.append(
            f"{common} has {counts.max() / counts.min():.0f} times the training images of {rare}; see {remedy}."
        )
    return Inspection(survey=survey, task=task or fits, refusals=refusals, notes=notes)


def _looks(seen: Scan, rows: list[int]) -> dict[str, Any]:
    sizes = seen.sizes[rows]
    if not sizes.any():
        return {"sizes": None, "modes": {}}
    by_area = sizes[np.argsort(sizes.prod(axis=1, dtype=np.int64), kind="stable")]
    smallest, median, largest = (by_area[place].tolist() for place in (0, len(by_area) // 2, -1))
    modes = Counter(seen.modes[row] for row in rows)
    return {
        "sizes": {"smallest": smallest, "median": median, "largest": largest},
        "modes": dict(modes.most_common()),
    }


def _groups(groups: list[list[Twin]]) -> list[list[dict[str, str]]]:
    return [[{"part": twin.part, "name": twin.name, "class": twin.label} for twin in group] for group in groups]
