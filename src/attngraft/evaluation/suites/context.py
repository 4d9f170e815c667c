"""Evaluation contexts: a task with the split to evaluate, from the run's data or the user's."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attngraft.errors import DataError, UsageError
from attngraft.evaluation.suites.catalog import SuiteChoice
from attngraft.tasks.suites import (
    Condition,
    ExampleAccess,
    JudgedModel,
    Suite,
    SuiteExamples,
    SuiteSupport,
    noise_generator,
)
from attngraft.tasks.task import Batch, Split, Task
from attngraft.training.build import build_task
from attngraft.training.evaluate import open_split, with_data
from attngraft.training.target import Target


@dataclass(frozen=True, kw_only=True)
class EvaluationContext(SuiteExamples):
    """The examples to evaluate, and how predictions on them are scored."""

    task: Task
    support: SuiteSupport
    indices: np.ndarray  #: indices of the examples in the full data; they seed the examples' random numbers
    source: str  #: description of the examples' source
    digest: str = ""  #: digest of the examples
    slug: str = ""  #: suffix of the folder for results; empty for the run's full validation split


class ChangedSplit(Split):
    """The examples of `split`, changed by a condition; keys are (condition index, example index)."""

    def __init__(
        self, split: Split, indices: np.ndarray, conditions: Sequence[Condition], access: ExampleAccess
    ) -> None:
        self.split, self.indices, self.conditions, self.access = split, indices, conditions, access

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        which, index = key
        example, condition = self.split[(0, index)], self.conditions[which]
        if condition.example is None:
            return example
        generator = noise_generator(condition.noise_seed or 0, int(self.indices[index]))
        return self.access.change_example(example, condition.example, generator)

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
        limit: maximum number of examples, evenly spaced.

    Raises:
        DataError: the data cannot be used, or the suite's test set must be downloaded first (the message explains how).
        ConfigError: the task does not support suites.
        UsageError: `split` is set, but the suite has its own test set.
    """
    source = choice.data if choice.data is not None else data
    if choice.suite.test_set:
        if split is not None:
            raise UsageError(f"--split {split}: suite {choice.suite.name} has its own images; remove --split")
        context = _test_set(target, choice.suite, source)
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


def _test_set(target: Target, suite: Suite, source: str | None) -> EvaluationContext:
    section = target.recipe.task
    if source is not None and "data" not in section:  # the classes come from the test set, not from the data
        section = {**section, "data": {"source": source}}
    elif source is None and "data" not in section:
        raise suite.missing()
    task = build_task(replace(target.recipe, task=section))
    examples = _suite_examples(task, target, suite, source)
    if examples is None:
        raise DataError(
            f"{target.name}: task {task.name} cannot open the test set of suite {suite.name}; remove the suite"
        )
    return _context(task, examples, source=str(source))


def _of_data(target: Target, source: str | None, split: str | None) -> EvaluationContext:
    opened = None
    if not target.is_run and not target.facts:  # the classes come from the data
        opened = open_split(target, data=source, split=split)
        target = replace(target, facts=opened.facts)
    if source is not None and split is None:
        task = build_task(with_data(target.recipe, source, None))
        found = _suite_examples(task, target, None, source)
        if found is not None:
            return _context(task, found, source=source)
    opened = opened or open_split(target, data=source, split=split)
    named = [part for part in (source, split) if part is not None]
    description = (
        ", ".join(named) or f"the {target.kind}'s own {'test' if opened.part == 'test' else 'validation'} part"
    )
    return _context(opened.task, SuiteExamples(split=opened.split, facts=opened.facts), source=description)


def _suite_examples(task: Task, target: Target, suite: Suite | None, source: str | None) -> SuiteExamples | None:
    model = JudgedModel(name=target.name, facts=target.facts, args=target.model_args, data_config=target.host_input())
    return task.suite_examples(suite, source, model)


def _context(task: Task, examples: SuiteExamples, *, source: str) -> EvaluationContext:
    return EvaluationContext(
        **vars(examples),
        task=task,
        support=task.suite_support(),
        indices=np.arange(len(examples.split)),
        source=source,
    )


def _digest(split: Split) -> str:
    """Return the SHA-256 of the examples' names and the split's fingerprint."""
    digest = hashlib.sha256()
    for index in range(len(split)):
        digest.update(split.name(index).encode("utf-8", "surrogateescape") + b"\0")
    digest.update(split.fingerprint())
    return digest.hexdigest()
