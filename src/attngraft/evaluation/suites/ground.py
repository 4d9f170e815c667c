"""What a suite is evaluated on: a task with a split of it, the run's own or one that the user names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import DataError, UsageError
from attngraft.evaluation.suites.catalog import SuiteChoice
from attngraft.evaluation.suites.condition import Condition
from attngraft.targets.test_sets import (
    TestImages,
    by_top_folder,
    how_to_get,
    imagenet_order,
    open_test_set,
)
from attngraft.tasks.classification import Classification
from attngraft.tasks.images.sources.base import TRAIN_NAMES, VAL_NAMES
from attngraft.tasks.images.sources.folder import FolderImages, list_folder
from attngraft.tasks.images.splits import LabelledSplit
from attngraft.tasks.task import Batch, PixelAccess, Split, SuiteSupport, Task
from attngraft.training.build import build_task, model_data_config
from attngraft.training.evaluate import open_split
from attngraft.training.run_folder import RunRecord


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Examples, and how they are judged."""

    task: Task
    support: SuiteSupport
    split: Split
    numbers: np.ndarray  #: of the examples, in the whole data: what is random depends on them
    where: str  #: in words
    digest: str = ""  #: changes when the examples do
    slug: str = ""  #: of the folder for results; empty for all of the run's own validation part
    answers: np.ndarray | None = None  #: the classes that may be answered; None: all
    accepted: Mapping[str, Sequence[int]] = field(default_factory=dict)  #: by name, the classes that count as right
    notes: tuple[str, ...] = ()


class ChangedSplit(Split):
    """The examples of `split`, changed by the condition whose place is the key's epoch."""

    def __init__(self, split: Split, numbers: np.ndarray, conditions: Sequence[Condition], pixels: PixelAccess) -> None:
        self.split, self.numbers, self.conditions, self.pixels = split, numbers, conditions, pixels

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        from attngraft.evaluation.suites.changes import noise_of

        place, index = key
        example, condition = self.split[(0, index)], self.conditions[place]
        if condition.example is None:
            return example
        generator = noise_of(condition.noise_seed or 0, int(self.numbers[index]))
        changed = condition.example(self.pixels.from_example(example), generator, color=self.pixels.color)
        return self.pixels.to_example(example, changed)

    def collate(self, examples: list[Any]) -> Batch:
        return self.split.collate(examples)

    def name(self, index: int) -> str:
        return self.split.name(index)


def open_ground(
    record: RunRecord,
    choice: SuiteChoice,
    *,
    data: str | None = None,
    split: str | None = None,
    limit: int | None = None,
) -> Ground:
    """The examples for a suite.

    Args:
        record: the run.
        choice: the suite, maybe with a folder of its own.
        data: other data for suites that have none of their own.
        split: a part of the data by name.
        limit: so many of the examples, spread evenly over all.

    Raises:
        DataError: the data cannot be used, or images lie outside of its class folders; of a suite whose images must be
            downloaded, what to download and from where.
        ConfigError: the task does not say how its examples are pixels.
        UsageError: a part of a test set is asked for.
    """
    source = choice.data if choice.data is not None else data
    if choice.suite.test_set:
        if split is not None:
            raise UsageError(f"--split {split}: suite {choice.suite.name} has images of its own; leave --split out")
        ground = _test_set(record, choice.suite.test_set, source)
    elif source is not None and split is None and (found := _class_folders(record, source)) is not None:
        ground = found
    else:
        _, task, examples = open_split(record, data=source, split=split)
        named = [part for part in (source, split) if part is not None]
        ground = _ground(task, examples, where=", ".join(named) or "the run's own validation part")
    part = ground if limit is None else _part(ground, limit)
    digest = _digest(part.split)
    other = f"{_plain(ground.where)}-{digest[:6]}" if source is not None or split is not None else ""
    limited = "" if part is ground else f"limit{limit}"
    return replace(part, digest=digest, slug="-".join(each for each in (other, limited) if each))


def _test_set(record: RunRecord, name: str, source: str | None) -> Ground:
    task = build_task(record.recipe)
    if not isinstance(task, Classification):
        raise DataError(
            f"{record.folder}: its task is {task.name}, and suite {name} has one label per image: leave it out"
        )
    order = imagenet_order(list(record.facts.get("classes", ())), run=record.folder)
    if source is None:
        raise missing_images(name)
    found = open_test_set(name, Path(source))
    images = found.images.take(np.arange(len(found.images)), order[found.images.labels])
    ground = _of_images(record, task, images, where=source)
    return replace(
        ground,
        answers=None if found.classes is None else order[list(found.classes)],
        accepted=_in_order(found, order),
        notes=found.notes,
    )


def missing_images(name: str) -> DataError:
    """What is to be said where a suite's images were not given."""
    return DataError(f"suite {name}: {how_to_get(name)}")


def _in_order(found: TestImages, order: np.ndarray) -> dict[str, list[int]]:
    return {name: [int(order[label]) for label in labels] for name, labels in found.accepted.items()}


def _class_folders(record: RunRecord, source: str) -> Ground | None:
    """All images of a folder of class folders, named as the run's classes are; None: it is something else.

    Raises:
        DataError: images lie outside of the class folders: which of them to count would be a guess.
    """
    task, folder = build_task(record.recipe), Path(source)
    classes = {name: place for place, name in enumerate(record.facts.get("classes", ()))}
    if not isinstance(task, Classification) or not folder.is_dir():
        return None
    by_folder = by_top_folder(list_folder(folder).files)
    if by_folder.keys().isdisjoint(classes):
        return None
    outside = sorted(file for name, files in by_folder.items() if name not in classes for file in files)
    parts = {name.lower() for name in by_folder} & {*TRAIN_NAMES, *VAL_NAMES} if outside else set()
    training = not parts.isdisjoint(TRAIN_NAMES)
    if training and not parts.isdisjoint(VAL_NAMES):  # parts, of which one is called like a class
        return None
    if outside:
        raise DataError(
            f"{folder}: has folders of the run's classes, and {len(outside):,} image{'s' * (len(outside) > 1)} outside of "
            f"them ({outside[0]}): move what is of no class away"
            + (", or name a part of the data with --split" if training else "")
        )
    files = sorted(file for each in by_folder.values() for file in each)
    labels = np.array([classes[file.split("/")[0]] for file in files], dtype=np.int64)
    return _of_images(record, task, FolderImages(folder, names=files, labels=labels), where=source)


def _of_images(record: RunRecord, task: Classification, images: FolderImages, *, where: str) -> Ground:
    split = task.open_test(images, facts=record.facts, model_data_config=model_data_config(record.recipe))
    return _ground(task, split, where=where)


def _ground(task: Task, split: Split, *, where: str) -> Ground:
    return Ground(task=task, support=task.suite_support(), split=split, numbers=np.arange(len(split)), where=where)


def _part(ground: Ground, limit: int) -> Ground:
    if limit >= len(ground.split):
        return ground
    indices = np.unique(np.linspace(0, len(ground.split) - 1, limit).round().astype(np.int64))
    split = ground.support.subset(ground.split, indices)
    return replace(
        ground,
        split=split,
        numbers=ground.numbers[indices],
        notes=(*ground.notes, f"{len(indices):,} of {len(ground.split):,} examples, spread evenly over all (--limit)."),
    )


def _digest(split: Split) -> str:
    """SHA-256 of names, and of images their labels and what changes when they do."""
    seen = hashlib.sha256()
    for index in range(len(split)):
        seen.update(split.name(index).encode("utf-8", "surrogateescape") + b"\0")
    if isinstance(split, LabelledSplit):
        seen.update(np.ascontiguousarray(split.labels).tobytes())
        seen.update(split.images.digest().encode())
    return seen.hexdigest()


def _plain(text: str) -> str:
    """The end of a path or name, as a part of a folder's name."""
    words = [word for word in re.split(r"[^A-Za-z0-9.]+", text) if word.strip(".")]
    return "-".join(words[-2:])[-40:] or "data"
