"""What the engine knows of a task. Nothing here assumes an image, one input tensor, or one label per example.

The engine (training/) moves batches to the device, steps the optimizer and writes files; the study compares runs.
Everything that depends on what is learned goes through `Task`: a new task is a new folder and a line in `TASKS`, or, in a
package of one's own, an entry point:

    [project.entry-points."attngraft.tasks"]
    segmentation = "mine.segmentation:Segmentation"
"""

from __future__ import annotations

import importlib
import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from attngraft.errors import ConfigError
from attngraft.results.sections import Metric, Section
from attngraft.suggest import did_you_mean
from attngraft.tasks.teaching import Teaching

if TYPE_CHECKING:
    from attngraft.tasks.probe import Probe

Batch = Any  #: nested dicts, lists and tuples of tensors (and of plain values, which stay where they are)

#: task name -> "module:class"; a task is imported when first asked for
TASKS = {
    "classification": "attngraft.tasks.classification:Classification",
    "multilabel": "attngraft.tasks.multilabel:MultiLabel",
    "token_labeling": "attngraft.tasks.token_labeling:TokenLabeling",
}
SPLIT_FILE = "split.csv"  #: what a run's folder, or a study's, calls that which its task drew (`Task.keep`)
ENTRY_POINTS = "attngraft.tasks"  #: where installed packages declare theirs


class Split(ABC):
    """An indexed set of examples. An example is a function of (seed, epoch, index), never of worker or process."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, key: tuple[int, int]) -> Any:
        """The example at `key = (epoch, index)`; python, numpy and torch generators are left as they were found."""

    @abstractmethod
    def collate(self, examples: list[Any]) -> Batch:
        """A batch of examples."""

    @abstractmethod
    def name(self, index: int) -> str:
        """What a user would call this example (a path, `digits/17`), for messages and predictions."""

    def order(self, *, seed: int, epoch: int) -> np.ndarray | None:
        """The indices of one training epoch in order (repeated augmentation, balanced sampling); None: a shuffle of all.

        A function of (seed, epoch), of the same length in every epoch. An index may exceed `len(self)` where
        `self[epoch, index]` and `name` know it (the second and third repeat of an example).
        """
        return None


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """What `Task.load` found."""

    train: Split
    val: Split
    model_args: Mapping[str, Any]  #: what the data demands of the host's factory (num_classes, in_chans, ...)
    facts: Mapping[str, Any]  #: JSON-ready description for the run folder and the report (classes, counts, sizes)


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """One entry per evaluated example, in the split's order; saved as `predictions.npz`, compared across variants.

    `score` is the example's part of the task's primary metric (classification: 1 where top-1 is right), so that paired
    statistics over examples need no knowledge of the task. `binary` says that scores are 0 or 1 (then McNemar applies).
    """

    names: Sequence[str]
    score: np.ndarray
    binary: bool
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The outcome of evaluating a model on a split."""

    metrics: Mapping[str, float]
    predictions: Predictions


@dataclass(frozen=True, kw_only=True)
class Serving:
    """How a trained model is used away from its task and data: what it takes, and what its outputs mean. JSON-ready."""

    kind: Literal["images"]  #: what `attngraft predict` can feed it
    input: Mapping[str, Any]  #: images: size (C, H, W), mean, std, interpolation, crop_pct, crop_mode
    activation: Literal["softmax", "sigmoid"]  #: what turns the outputs (B, classes) into probabilities
    classes: tuple[str, ...]
    threshold: float | None = (
        None  #: several labels per image: the probability from which one is given; None: one label
    )


class Evaluator(ABC):
    """Collects what `Task.predict` gave, over batches and processes, and turns it into an `Evaluation`."""

    @abstractmethod
    def update(self, outputs: Mapping[str, Tensor], indices: Tensor) -> None:
        """Add a batch's outputs (gathered from all processes) of the examples at `indices`; repeats are ignored."""

    @abstractmethod
    def result(self) -> Evaluation: ...


class Task(ABC):
    """One kind of work. Built from the recipe's `task` section (strict keys)."""

    name: str
    primary: str  #: the metric by which runs are compared, at the last epoch ("top1"): the mean of `Predictions.score`
    higher_is_better: bool = True  #: of the primary metric
    metrics: ClassVar[
        Mapping[str, Metric]
    ] = {}  #: what reports call the metrics; one that is not here goes by its name

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any], *, seed: int) -> Task:
        """Read the `task` section.

        Raises:
            ConfigError: an unknown key or a wrong value; names the field.
        """

    @abstractmethod
    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        """Open the data and check all that can be checked before training starts.

        `model_data_config` is what the host expects of its input (timm: input_size, mean, std, interpolation, crop_pct).

        Raises:
            DataError: names the file or folder and the remedy.
        """

    def recall(self, path: Path) -> None:
        """Asked for before `load`: what `keep` wrote to `path`, if it did, stands in place of what would be drawn. A task
        that draws nothing leaves both out."""
        return None

    def follow(self, facts: Mapping[str, Any]) -> None:
        """Asked for before `load`, where a trained model is evaluated: examples are to be prepared as its run's were, of
        which `load` said `facts`, whatever these data are like. A task that decides nothing by its data leaves it out."""
        return None

    def keep(self, path: Path) -> bool:
        """Asked for after `load`: write to `path` what was drawn at random (which examples are for validation), so that it
        stays as it is when examples come or go; whether there was anything to write.

        Raises:
            StorageError: it cannot be written.
        """
        return False

    @abstractmethod
    def to_model(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The positional and keyword arguments with which a model is called on this batch."""

    @abstractmethod
    def prepare(self, batch: Batch, *, epoch: int, step: int) -> Batch:
        """Batch-level augmentation (mixup), a function of (seed, epoch, step); training only."""

    @abstractmethod
    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Scalars, among them `loss`, the mean over the batch that is differentiated."""

    @abstractmethod
    def predict(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """What the evaluator needs of each example, first axis the batch, so that processes can gather it."""

    @abstractmethod
    def evaluator(self, split: Split) -> Evaluator:
        """A fresh evaluator for `split`."""

    def sections(self, predictions: Sequence[Mapping[str, np.ndarray]], *, facts: Mapping[str, Any]) -> list[Section]:
        """What a report should say of one variant beside its metrics; nothing where a task does not say.

        Args:
            predictions: the arrays of `predictions.npz` (`Predictions.arrays`), one mapping per seed, each array read from
                the file when it is asked for.
            facts: what `load` said of the data.
        """
        return []

    def teaching(self, *, model_data_config: Mapping[str, Any]) -> Teaching:
        """How a model of this task learns from a teacher (the recipe's `distill`); asked for after `load`.

        Args:
            model_data_config: what the teacher expects of its input, as in `load`.

        Raises:
            ConfigError: the task does not say, or the teacher cannot be shown this data.
        """
        raise ConfigError(
            f"task {self.name}: does not say how its models learn from a teacher (Task.teaching); leave the "
            "recipe's section distill out"
        )

    def serving(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> Serving:
        """How a model of this task is used without its data.

        Args:
            facts: what `load` found, as the run folder keeps it.
            model_data_config: as in `load`.

        Raises:
            ConfigError: the task does not say.
        """
        raise ConfigError(f"task {self.name}: does not say how its models are used outside of it (Task.serving)")

    def beliefs(self, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Stated probabilities and whether each came true, both (N, K): K statements about each example.

        Args:
            columns: those of `Predictions.arrays` that `Probe.columns` names.

        Raises:
            ConfigError: the task does not say.
        """
        raise ConfigError(f"task {self.name}: does not say what its predictions state (Task.beliefs)")

    def probe(self) -> Probe:
        """How evaluations beyond clean accuracy change this task's examples; asked for after `load`.

        Raises:
            ConfigError: the task does not say.
        """
        raise ConfigError(
            f"task {self.name}: does not say how its examples are pixels (Task.probe), so that no suite can change them; "
            "evaluate without --suite"
        )


def known_tasks() -> dict[str, str]:
    """Name to "module:class" of all tasks there are: ours, and those of installed packages."""
    return {each.name: each.value for each in importlib.metadata.entry_points(group=ENTRY_POINTS)} | TASKS


def load_task(name: str) -> type[Task]:
    """The task class called `name`.

    Raises:
        ConfigError: no such task (lists the tasks there are), or one of another package that cannot be imported.
    """
    known = known_tasks() if name not in TASKS else TASKS
    if name not in known:
        near = did_you_mean(name, known)
        raise ConfigError(f"task: there is no task {name!r}{near}; there are {', '.join(sorted(known))}")
    module, _, attribute = known[name].partition(":")
    try:
        found: type[Task] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if name in TASKS:
            raise
        raise ConfigError(f"task {name}: the installed package's {known[name]} cannot be imported: {error}") from None
    return found
