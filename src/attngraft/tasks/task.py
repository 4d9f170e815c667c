"""The interface between the engine and a task, without assumptions on the kind of inputs or labels.

The engine (`training`) moves batches to the device, steps the optimizer and writes files; a study compares runs.
Everything specific to a kind of data or labels goes through `Task`. To add a task, add a folder and an entry in `TASKS`,
or, in another package, an entry point:

    [project.entry-points."attngraft.tasks"]
    segmentation = "mine.segmentation:Segmentation"
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from attngraft.errors import ConfigError, TrainingError
from attngraft.results.sections import Metric, Section
from attngraft.suggest import did_you_mean

Batch = Any  #: nested dicts, lists and tuples of tensors, and of plain values, which stay on the CPU

#: task name -> "module:class"; imported on first use
TASKS = {
    "classification": "attngraft.tasks.classification:Classification",
    "multilabel": "attngraft.tasks.multilabel:MultiLabel",
    "token_labeling": "attngraft.tasks.token_labeling:TokenLabeling",
}
SPLIT_FILE = "split.csv"  #: file name of the random split in the folder of a run or study (`Task.save_split`)
ENTRY_POINTS = "attngraft.tasks"  #: entry point group with which installed packages add tasks

#: old -> new names of `Task`'s methods
_RENAMED = {
    "recall": "load_split",
    "follow": "use_fitted_transform",
    "keep": "save_split",
    "teaching": "distillation",
    "beliefs": "calibration_inputs",
    "probe": "suite_support",
}


class Split(ABC):
    """An indexed set of examples; an example depends only on (seed, epoch, index), never on the worker or process."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, key: tuple[int, int]) -> Any:
        """Return the example at `key = (epoch, index)`; the global generators of Python, NumPy and torch must not change."""

    @abstractmethod
    def collate(self, examples: list[Any]) -> Batch:
        """Combine examples into a batch."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the example's name for messages and predictions, such as a path or `digits/17`."""

    def order(self, *, seed: int, epoch: int) -> np.ndarray | None:
        """Return the indices of one training epoch in their order, or None for a random permutation of all examples.

        Override this for repeated augmentation or balanced sampling. The order must depend only on (seed, epoch) and have
        the same length in every epoch. Indices may exceed `len(self)` if `self[epoch, index]` and `name` accept them, for
        repeats of an example.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """The result of `Task.load`: splits and facts about the data."""

    train: Split
    val: Split
    model_args: Mapping[
        str, Any
    ]  #: arguments of the host's factory that depend on the data (num_classes, in_chans, ...)
    facts: Mapping[str, Any]  #: JSON-ready description for the run folder and the report (classes, counts, sizes)


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions with one entry per evaluated example, in the split's order, saved as `predictions.npz`.

    `score` is the example's contribution to the task's primary metric (classification: 1 where top-1 is correct), which
    allows paired statistics over examples for any task. `binary` means that scores are 0 or 1, so McNemar's test applies.
    """

    names: Sequence[str]
    score: np.ndarray
    binary: bool
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Metrics and predictions of a model on a split."""

    metrics: Mapping[str, float]
    predictions: Predictions


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Description of a trained model's inputs and outputs, for use without its task and data; JSON-ready."""

    kind: Literal["images"]  #: kind of inputs, for `attngraft predict`
    input: Mapping[str, Any]  #: images: size (C, H, W), mean, std, interpolation, crop_pct, crop_mode
    activation: Literal["softmax", "sigmoid"]  #: function that maps the outputs (B, classes) to probabilities
    classes: tuple[str, ...]
    threshold: float | None = None  #: multi-label: labels with at least this probability are predicted; None: one label


class Evaluator(ABC):
    """Base class for computing an `Evaluation` from the outputs of `Task.predict` over all batches and processes."""

    @abstractmethod
    def update(self, outputs: Mapping[str, Tensor], indices: Tensor) -> None:
        """Add a batch's outputs, gathered from all processes, for the examples at `indices`; repeats are ignored."""

    @abstractmethod
    def result(self) -> Evaluation: ...


class CollectingEvaluator(Evaluator):
    """Evaluator that stores all outputs of `Task.predict`, one row per example; `result` can call `collected()`."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._seen = np.zeros(len(split), dtype=bool)
        self._outputs: dict[str, np.ndarray] = {}

    def update(self, outputs: Mapping[str, Tensor], indices: Tensor) -> None:
        positions = indices.cpu().numpy()
        if len(positions) and not 0 <= positions.min() <= positions.max() < len(self._split):
            raise TrainingError(
                f"evaluation: got indices {positions.min()} to {positions.max()} for {len(self._split)} examples"
            )
        first, rows = np.unique(positions, return_index=True)
        rows, first = rows[~self._seen[first]], first[~self._seen[first]]
        for name, tensor in outputs.items():
            values = tensor.detach().cpu().numpy()
            if name not in self._outputs:
                self._outputs[name] = np.zeros((len(self._split), *values.shape[1:]), dtype=values.dtype)
            self._outputs[name][first] = values[rows]
        self._seen[first] = True

    def collected(self) -> Mapping[str, np.ndarray]:
        """Return a mapping from output name to array (N, ...), in the split's order.

        Raises:
            TrainingError: some examples were not evaluated.
        """
        if not self._seen.all():
            missing = np.flatnonzero(~self._seen)
            names = ", ".join(self._split.name(int(index)) for index in missing[:3])
            raise TrainingError(f"evaluation: {len(missing)} of {len(self._split)} examples are missing ({names}, ...)")
        return self._outputs


class Distillation(ABC):
    """Base class of a teacher's inputs and the loss against its outputs; returned by `Task.distillation`."""

    @abstractmethod
    def to_teacher(self, batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the positional and keyword arguments of the teacher's forward pass for a batch.

        `Task.prepare` was applied to training batches, so the teacher gets the same mixed images as the student.
        """

    @abstractmethod
    def loss(self, outputs: Any, taught: Any, *, temperature: float, hard: bool) -> Tensor:
        """Return the distillation loss, a scalar, averaged over the batch.

        Args:
            outputs: the student's outputs.
            taught: the teacher's outputs on the same batch.
            temperature: divides both models' logits.
            hard: use the teacher's predicted labels as targets instead of its probabilities.
        """


class PixelAccess(ABC):
    """Access to the images of examples and batches as values from 0 to 1; must be picklable, for loading processes."""

    color: tuple[float, ...]  #: mean color: the value of each channel that normalization maps to 0

    @abstractmethod
    def from_example(self, example: Any) -> Tensor:
        """Return the image of an evaluation example, (C, H, W) float32."""

    @abstractmethod
    def to_example(self, example: Any, pixels: Tensor) -> Any:
        """Return the example with its image replaced by `pixels`; it must collate with unchanged examples."""

    @abstractmethod
    def from_batch(self, batch: Batch) -> Tensor:
        """Return the images of an evaluation batch, (B, C, H, W) float32."""

    @abstractmethod
    def to_batch(self, batch: Batch, pixels: Tensor) -> Batch:
        """Return the batch with its images replaced by `pixels`; differentiable."""


@dataclass(frozen=True, kw_only=True)
class SuiteSupport:
    """Access to a task's examples and predictions for evaluation suites (corruptions, attacks, ...)."""

    pixels: PixelAccess
    losses: Callable[[Any, Batch], Tensor]  #: (model outputs, batch) -> evaluation loss of each example, (B,)
    columns: tuple[str, ...]  #: names of the `Predictions.arrays` to store
    subset: Callable[[Split, np.ndarray], Split]  #: (split, indices) -> split of these examples only


class Task(ABC):
    """Base class of tasks, built from the recipe's `task` section (strict keys)."""

    name: str
    primary: str  #: metric used to compare runs at the last epoch ("top1"): the mean of `Predictions.score`
    higher_is_better: bool = True  #: whether a higher primary metric is better
    metrics: ClassVar[Mapping[str, Metric]] = {}  #: labels of metrics in reports; other metrics appear under their name
    default_recipe: ClassVar[str | None] = None  #: packaged recipe, or path of a file, for `--task` without `--recipe`
    hosts: ClassVar[tuple[str, ...]] = ()  #: patterns of the names of the hosts that the task can use; empty: any

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _add_old_names(cls)

    @classmethod
    def refusal(cls, host: nn.Module, name: str) -> str:
        """Return why the task cannot use a host, or an empty text; by default, whether `hosts` lists its name.

        Args:
            host: the host, without weights and with the head of its factory.
            name: its name in the recipe.
        """
        known = not cls.hosts or any(fnmatchcase(name.rpartition(":")[2], pattern) for pattern in cls.hosts)
        return "" if known else "it is none of the task's hosts"

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any], *, seed: int) -> Task:
        """Build the task from the recipe's `task` section.

        Raises:
            ConfigError: a key is unknown or a value is wrong; the message contains the field.
        """

    @abstractmethod
    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        """Open the data and run all checks that are possible before training.

        `model_data_config` describes the host's input (timm: input_size, mean, std, interpolation, crop_pct).

        Raises:
            DataError: the data cannot be used; the message contains the file or folder and the remedy.
        """

    def load_split(self, path: Path) -> None:
        """Use the split that `save_split` wrote to `path`, if the file exists, instead of drawing a new one.

        Called before `load`. Override this in tasks with a random split.
        """
        return None

    def use_fitted_transform(self, facts: Mapping[str, Any]) -> None:
        """Use the preprocessing of a trained model's run instead of deriving it from the current data.

        Called before `load` when a trained model is evaluated; `facts` are those that `load` returned for its run. Override
        this in tasks whose preprocessing depends on the data.
        """
        return None

    def save_split(self, path: Path) -> bool:
        """Save the random split to `path`, which keeps it the same when examples are added or removed.

        Called after `load`. Return whether there is a random split.

        Raises:
            StorageError: the file cannot be written.
        """
        return False

    @abstractmethod
    def to_model(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the positional and keyword arguments of the model's forward pass for a batch."""

    @abstractmethod
    def prepare(self, batch: Batch, *, epoch: int, step: int) -> Batch:
        """Apply batch-level augmentation such as mixup, as a function of (seed, epoch, step); in training only."""

    @abstractmethod
    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return scalars by name; `loss`, averaged over the batch, is the one that is differentiated."""

    @abstractmethod
    def predict(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the evaluator's inputs; the first axis is the batch, so that they can be gathered from all processes."""

    @abstractmethod
    def evaluator(self, split: Split) -> Evaluator:
        """Return a new evaluator for `split`."""

    def sections(self, predictions: Sequence[Mapping[str, np.ndarray]], *, facts: Mapping[str, Any]) -> list[Section]:
        """Return the report's sections for one variant, in addition to its metrics; none by default.

        Args:
            predictions: the arrays of `predictions.npz` (`Predictions.arrays`), one mapping per seed; an array is read
                from the file when it is accessed.
            facts: the facts that `load` returned.
        """
        return []

    def distillation(self, *, model_data_config: Mapping[str, Any]) -> Distillation:
        """Return the inputs and loss for training with a teacher (the recipe's `distill`); called after `load`.

        Args:
            model_data_config: description of the teacher's input, as in `load`.

        Raises:
            ConfigError: the task does not support distillation, or the teacher cannot process these data.
        """
        raise ConfigError(
            f"task {self.name}: does not support training with a teacher (Task.distillation); remove the section distill "
            "from the recipe"
        )

    def serving(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> Serving:
        """Return a description of the model's inputs and outputs, for use without the data.

        Args:
            facts: the facts that `load` returned, as stored in the run folder.
            model_data_config: as in `load`.

        Raises:
            ConfigError: the task does not support it.
        """
        raise ConfigError(f"task {self.name}: does not support export and prediction (Task.serving)")

    def calibration_inputs(self, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return predicted probabilities and their outcomes (True or False), both (N, K) with K predictions per example.

        Args:
            columns: the `Predictions.arrays` that `SuiteSupport.columns` names.

        Raises:
            ConfigError: the task does not support it.
        """
        raise ConfigError(f"task {self.name}: does not support calibration (Task.calibration_inputs)")

    def suite_support(self) -> SuiteSupport:
        """Return access to pixels and predictions for evaluation suites; called after `load`.

        Raises:
            ConfigError: the task does not support suites.
        """
        raise ConfigError(
            f"task {self.name}: does not support suites that change images (Task.suite_support); remove --suite"
        )


def _add_old_names(cls: type[Task]) -> None:
    """Support the old method names in `_RENAMED`, for overriding and for calling; both warn."""

    def deprecated(method: Callable[..., Any], old: str, new: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            warnings.warn(f"Task.{old} is now Task.{new}", DeprecationWarning, stacklevel=2)
            return method(*args, **kwargs)

        return call

    for old, new in _RENAMED.items():
        own = vars(cls)
        if old in own and new not in own:
            warnings.warn(f"{cls.__name__}.{old}: Task.{old} is now Task.{new}", DeprecationWarning, stacklevel=4)
            setattr(cls, new, own[old])
        elif new in own and old not in own:
            setattr(cls, old, deprecated(own[new], old, new))


_add_old_names(Task)  # type: ignore[type-abstract]


def known_tasks() -> dict[str, str]:
    """Return a mapping from name to "module:class" of all tasks: built-in ones and those of installed packages."""
    return {each.name: each.value for each in importlib.metadata.entry_points(group=ENTRY_POINTS)} | TASKS


def load_task(name: str) -> type[Task]:
    """Return the task class with this name.

    Raises:
        ConfigError: no task has this name, or the task of an installed package cannot be imported.
    """
    known = known_tasks() if name not in TASKS else TASKS
    if name not in known:
        near = did_you_mean(name, known)
        raise ConfigError(f"task: unknown task {name!r}{near}; available: {', '.join(sorted(known))}")
    module, _, attribute = known[name].partition(":")
    try:
        task: type[Task] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if name in TASKS:
            raise
        raise ConfigError(f"task {name}: cannot import {known[name]} from an installed package: {error}") from None
    return task
