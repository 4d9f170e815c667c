"""Suites: named lists of conditions for evaluating a trained model, defined by `Task.suites`."""

from __future__ import annotations

import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from attngraft.errors import AttngraftError, DataError
from attngraft.tasks.data import Batch, Evaluation, Split

#: `conditions`: examples are evaluated under each condition; `calibration`: calibration of the predictions on
#: clean examples; `throughput`: timing without predictions
Kind = Literal["conditions", "calibration", "throughput"]


class UnsupportedCondition(AttngraftError):
    """Error for a condition that cannot be applied to the model or the examples."""


def noise_generator(seed: int, index: int) -> torch.Generator:
    """Return one example's random generator, the same for all severities, so that they scale the same noise."""
    words = np.random.SeedSequence([zlib.crc32(b"noise"), seed, index]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(words[0]))


class BatchChange(Protocol):
    """Change of a batch, called by `ExampleAccess.change_batch` of the same task."""

    gradients: ClassVar[bool]  #: whether the change needs a backward pass, and therefore more memory

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A change of each example (`example`) or each batch (`batch`); no change if both are None."""

    name: str  #: file name, unique in the suite
    group: str  #: group of conditions that differ only in their noise seed and are averaged
    label: str  #: description of the group
    settings: Mapping[str, Any] = field(default_factory=dict)  #: everything that affects the predictions, JSON-ready
    noise_seed: int | None = None  #: None: the condition is not random
    example: Callable[..., Any] | None = None  #: change of one example, for `ExampleAccess.change_example`; picklable
    batch: BatchChange | None = None
    kind: str = ""  #: corruption whose severities the groups are; the report adds their mean
    severity: int | None = None


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A named list of conditions, or an alias for several suites."""

    name: str
    title: str
    summary: str  #: description in one line
    conditions: tuple[Condition, ...] = ()
    kind: Kind = "conditions"
    home: str = ""  #: name of the suite whose predictions are used; empty: this suite
    stands_for: tuple[str, ...] = ()  #: names of the suites that this alias stands for
    test_set: str = ""  #: name of the test set that the user must download
    download: str = ""  #: download instructions for the test set
    #: raises a DataError if the test set cannot be used; called with the test set's name, its folder, the classes of the
    #: model if known, and the model's name
    check: Callable[[str, str, Sequence[str] | None, str], None] | None = None

    @property
    def folder(self) -> str:
        return self.home or self.name

    @property
    def needs(self) -> tuple[str, ...]:
        """The capabilities that a task must have."""
        attacks = any(each.batch is not None and each.batch.gradients for each in self.conditions)
        extra = {"attacks": attacks, "calibration": self.kind == "calibration", "labels": bool(self.test_set)}
        return ("suites", *(name for name, needed in extra.items() if needed))

    def missing(self) -> DataError:
        """Return the error for a test set that was not provided, with download instructions."""
        return DataError(f"suite {self.name}: {self.download}")


@dataclass(frozen=True, kw_only=True)
class BatchTarget:
    """Access to a model and a batch for changes of batches, such as attacks."""

    model: nn.Module
    outputs: Callable[[Any], Any]  #: returns the model's outputs for the changed batch
    losses: Callable[[Any], Tensor]  #: returns the losses (B,) of the changed batch, in full precision
    indices: Sequence[int]  #: indices of the examples in the full data
    report: Callable[[str], None] = lambda text: (
        None
    )  #: adds a note on how the examples were changed, where that depends on the model


class ExampleAccess(ABC):
    """Applies conditions to a task's examples and batches; must be picklable, for loading processes."""

    @abstractmethod
    def change_example(self, example: Any, change: Callable[..., Any], generator: torch.Generator) -> Any:
        """Return the changed example (`Condition.example`), which must collate with unchanged examples."""

    @abstractmethod
    def change_batch(self, batch: Batch, change: BatchChange, target: BatchTarget, *, noise_seed: int) -> Batch:
        """Return the changed batch (`Condition.batch`).

        Raises:
            UnsupportedCondition: the model does not support this change.
        """


@dataclass(frozen=True, kw_only=True)
class SuiteSupport:
    """Access to a task's examples and predictions for evaluation suites (corruptions, attacks, ...)."""

    losses: Callable[[Any, Batch], Tensor]  #: (model outputs, batch) -> evaluation loss of each example, (B,)
    columns: tuple[str, ...]  #: names of the `Predictions.arrays` to store
    subset: Callable[[Split, np.ndarray], Split]  #: (split, indices) -> split of the examples at `indices`
    access: ExampleAccess = None  # type: ignore[assignment]
    pixels: InitVar[ExampleAccess | None] = None  #: deprecated name of `access`

    def __post_init__(self, pixels: ExampleAccess | None) -> None:
        if pixels is not None:
            warnings.warn("SuiteSupport(pixels=...) is deprecated; use access", DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "access", pixels)


@dataclass(frozen=True, kw_only=True)
class JudgedModel:
    """Description of the evaluated model, for `Task.suite_examples`."""

    name: str  #: for messages
    facts: Mapping[str, Any]  #: facts of the training data; empty if unknown
    args: Mapping[str, Any]  #: `TaskData.model_args` of the training data
    data_config: Mapping[str, Any]  #: `model_data_config`, as in `Task.load`


@dataclass(frozen=True, kw_only=True)
class SuiteExamples:
    """Examples for a suite, and the scoring of predictions."""

    split: Split
    facts: Mapping[str, Any]  #: `facts` for `Task.measure`
    notes: tuple[str, ...] = ()
    answers: Sequence[int] | None = None  #: sorted classes that `restrict` allows; None: all
    restrict: Callable[[nn.Module], nn.Module] | None = None  #: wraps the model; None: the model is not wrapped
    metric: str = ""  #: metric that `score` computes (higher is better); empty: the task's primary metric
    score: Callable[[Evaluation], Evaluation] | None = None  #: replaces the metrics and scores of an evaluation
