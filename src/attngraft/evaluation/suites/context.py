"""Evaluation contexts: a task with the split to evaluate, either a run's or the user's."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import DataError, UsageError
from attngraft.evaluation.suites.catalog import Condition, SuiteChoice
from attngraft.evaluation.suites.changes import noise_generator
from attngraft.targets.test_sets import by_top_folder, how_to_get, imagenet_order, open_test_set
from attngraft.tasks.classification import Classification
from attngraft.tasks.images.sources.base import TRAIN_NAMES, VAL_NAMES
from attngraft.tasks.images.sources.folder import FolderImages, list_folder
from attngraft.tasks.images.splits import LabelledSplit
from attngraft.tasks.task import Batch, PixelAccess, Split, SuiteSupport, Task
from attngraft.training.build import build_task
from attngraft.training.evaluate import open_split, with_data
from attngraft.training.target import Target


@dataclass(frozen=True, kw_only=True)
class EvaluationContext:
    """The examples to evaluate, and how predictions on them are scored."""

    task: Task
    support: SuiteSupport
    split: Split
    facts: Mapping[str, Any]  #: of the model's task, as `Task.measure` takes them
    indices: np.ndarray  #: indices of the examples in the full data, which determine random numbers
    source: str  #: description of the examples' source
    digest: str = ""  #: digest of the examples
    slug: str = ""  #: suffix of the folder for results; empty for the run's full validation split
    allowed: np.ndarray | None = None  #: classes that may be predicted; None: all
    accepted: Mapping[str, Sequence[int]] = field(default_factory=dict)  #: by example name, all correct classes
    notes: tuple[str, ...] = ()


class ChangedSplit(Split):
    """The examples of `split` under a condition; the epoch in the key is the condition's index."""

    def __init__(self, split: Split, indices: np.ndarray, conditions: Sequence[Condition], pixels: PixelAccess) -> None:
        self.split, self.indices, self.conditions, self.pixels = split, indices, conditions, pixels

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        which, index = key
        example, condition = self.split[(0, index)], self.conditions[which]
        if condition.example is None:
            return example
        generator = noise_generator(condition.noise_seed or 0, int(self.indices[index]))
        changed = condition.example(self.pixels.from_example(example), generator, color=self.pixels.color)
        return self.pixels.to_example(example, changed)

    def collate(self, examples: list[Any]) -> Batch:
        return self.split.collate(examples)

    def name(self, index: int) -> str:
        return self.split.name(index)


def open_context(
    target: Target,
    choice: SuiteChoice,
    *,
    data: str | None = None,
    split: str | None = None,
    limit: int | None = None,
) -> EvaluationContext:
    """Open the examples for a suite.

    Args:
        target: the model.
        choice: the suite, possibly with its own folder.
        data: other data, for suites without their own folder.
        split: name of a split of the data.
        limit: number of examples, evenly spaced.

    Raises:
        DataError: the data cannot be used, there are images outside of the class folders, or the suite's images must be
            downloaded; then the message has the instructions.
        ConfigError: the task does not support suites that change images.
        UsageError: a split of a test set is requested.
    """
    source = choice.data if choice.data is not None else data
    if choice.suite.test_set:
        if split is not None:
            raise UsageError(f"--split {split}: suite {choice.suite.name} has its own images; remove --split")
        context = _test_set(target, choice.suite.test_set, source)
    else:
        context = _of_data(target, source, split)
    slug = []
    part = context
    if limit is not None and limit < len(context.split):
        indices = np.unique(np.linspace(0, len(context.split) - 1, limit).round().astype(np.int64))
        part = replace(
            context,
            split=context.support.subset(context.split, indices),
            indices=context.indices[indices],
            notes=(
                *context.notes,
                f"{len(indices):,} of {len(context.split):,} examples, evenly spaced (--limit).",
            ),
        )
        slug = [f"limit{limit}"]
    digest = _digest(part.split)
    if source is not None or split is not None:
        words = [word for word in re.split(r"[^A-Za-z0-9.]+", context.source) if word.strip(".")]
        slug = [f"{'-'.join(words[-2:])[-40:] or 'data'}-{digest[:6]}", *slug]
    return replace(part, digest=digest, slug="-".join(slug))


def _test_set(target: Target, name: str, source: str | None) -> EvaluationContext:
    section = target.recipe.task
    if source is not None and "data" not in section:  # the classes are ImageNet's, whatever the images
        section = {**section, "data": {"source": source}}
    elif source is None and "data" not in section:
        raise missing_images(name)
    task = build_task(replace(target.recipe, task=section))
    if not isinstance(task, Classification):
        raise DataError(
            f"{target.name}: suite {name} has one label per image, but the task is {task.name}; remove the suite"
        )
    facts = target.facts if target.is_run or target.facts else _imagenet_facts(target)
    order = imagenet_order(list(facts.get("classes", ())), run=target.name)
    if source is None:
        raise missing_images(name)
    test_set = open_test_set(name, Path(source))
    images = test_set.images.take(np.arange(len(test_set.images)), order[test_set.images.labels])
    return replace(
        _of_images(target, task, images, facts=facts, source=source),
        allowed=None if test_set.classes is None else order[list(test_set.classes)],
        accepted={image: [int(order[label]) for label in labels] for image, labels in test_set.accepted.items()},
        notes=test_set.notes,
    )


def _imagenet_facts(target: Target) -> Mapping[str, Any]:
    """Return the facts of a model that is known by its host and weights alone: classes in timm's order, for 1000 of them."""
    classes = target.model_args.get("num_classes", 0)
    return {
        "classes": [str(number) for number in range(classes)],
        "input": {"eval_crop_pct": target.host_input().get("crop_pct")},
    }


def missing_images(name: str) -> DataError:
    """Return the error for a suite whose images were not provided, with download instructions."""
    return DataError(f"suite {name}: {how_to_get(name)}")


def _of_data(target: Target, source: str | None, split: str | None) -> EvaluationContext:
    facts, opened = target.facts, None
    if not target.is_run and not facts:
        opened = open_split(target, data=source, split=split)  # the classes are those of the data
        facts = opened.facts
    if source is not None and split is None and (found := _class_folders(target, source, facts)) is not None:
        return found
    opened = opened or open_split(target, data=source, split=split)
    named = [part for part in (source, split) if part is not None]
    description = (
        ", ".join(named) or f"the {target.kind}'s own {'test' if opened.part == 'test' else 'validation'} part"
    )
    return _context(opened.task, opened.split, facts=opened.facts, source=description)


def _class_folders(target: Target, source: str, facts: Mapping[str, Any]) -> EvaluationContext | None:
    """Return the context for a folder with one folder per class of the model; None for any other source.

    Raises:
        DataError: there are images outside of the class folders.
    """
    task, folder = build_task(with_data(target.recipe, source, None)), Path(source)
    classes = {name: index for index, name in enumerate(facts.get("classes", ()))}
    if not isinstance(task, Classification) or not folder.is_dir():
        return None
    by_folder = by_top_folder(list_folder(folder).files)
    if by_folder.keys().isdisjoint(classes):
        return None
    outside = sorted(file for name, files in by_folder.items() if name not in classes for file in files)
    parts = {name.lower() for name in by_folder} & {*TRAIN_NAMES, *VAL_NAMES} if outside else set()
    training = not parts.isdisjoint(TRAIN_NAMES)
    if training and not parts.isdisjoint(VAL_NAMES):  # a data set with splits, one of which is named like a class
        return None
    if outside:
        raise DataError(
            f"{folder}: contains folders of the run's classes, but also {len(outside):,} image{'s' * (len(outside) > 1)} "
            f"outside of them ({outside[0]}); move images without a class elsewhere"
            + (", or select a split with --split" if training else "")
        )
    files = sorted(file for each in by_folder.values() for file in each)
    labels = np.array([classes[file.split("/")[0]] for file in files], dtype=np.int64)
    images = FolderImages(folder, names=files, labels=labels)
    return _of_images(target, task, images, facts=facts, source=source)


def _of_images(
    target: Target, task: Classification, images: FolderImages, *, facts: Mapping[str, Any], source: str
) -> EvaluationContext:
    split = task.open_test(images, facts=facts, model_data_config=target.host_input())
    return _context(task, split, facts=facts, source=source)


def _context(task: Task, split: Split, *, facts: Mapping[str, Any], source: str) -> EvaluationContext:
    return EvaluationContext(
        task=task,
        support=task.suite_support(),
        split=split,
        facts=facts,
        indices=np.arange(len(split)),
        source=source,
    )


def _digest(split: Split) -> str:
    """Return a SHA-256 of the examples' names; for labeled images, also of labels and files."""
    digest = hashlib.sha256()
    for index in range(len(split)):
        digest.update(split.name(index).encode("utf-8", "surrogateescape") + b"\0")
    if isinstance(split, LabelledSplit):
        digest.update(np.ascontiguousarray(split.labels).tobytes())
        digest.update(split.images.digest().encode())
    return digest.hexdigest()
