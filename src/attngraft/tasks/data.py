"""Data of a task: splits of examples, batches, and a model's predictions and metrics on a split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attngraft.results.records import Column

Batch = Any  #: nested dicts, lists and tuples of tensors and other values; only tensors move to the device


class Split(ABC):
    """An indexed set of examples that depend only on (seed, epoch, index), not on the worker or process."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, key: tuple[int, int]) -> Any:
        """Return the example at `key = (epoch, index)`; must not change global random generators."""

    @abstractmethod
    def collate(self, examples: list[Any]) -> Batch:
        """Combine examples into a batch."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Return the example's name for messages and predictions, such as a path or `digits/17`."""

    def fingerprint(self) -> bytes:
        """Return a fingerprint of everything but the names (labels, files), to validate cached predictions."""
        return b""

    def order(self, *, seed: int, epoch: int) -> np.ndarray | None:
        """Return the order of indices in a training epoch; None for a random permutation of all examples.

        Override this for repeated augmentation or balanced sampling. The order must depend only on (seed, epoch) and have
        the same length in every epoch. Indices may exceed `len(self)` if `self[epoch, index]` and `name` accept them, for
        repeats of an example.
        """
        return None

    def batches(self, *, seed: int, epoch: int) -> Sequence[np.ndarray] | None:
        """Return the example indices of each update of an epoch; None for `train.batch_size` examples per update.

        Override this for batches with a budget of tokens, or of examples of similar lengths. Batches must depend only on
        (seed, epoch); their number may differ between epochs. Each batch is split into train.accumulate x
        processes parts, as evenly as possible. Called for every epoch before training.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """The result of `Task.load`: splits and facts about the data."""

    train: Split
    val: Split
    test: Split | None = None  #: runs are compared on it instead of `val`, which then only selects the best weights
    #: opens all examples of data without splits of their own, on which models of other data are evaluated; None: `val`
    whole: Callable[[], Split] | None = None
    #: arguments of the host's factory that depend on the data (num_classes, in_chans, ...)
    model_args: Mapping[str, Any]
    facts: Mapping[str, Any]  #: JSON-ready description for the run folder and the report (classes, counts, sizes)
    #: size in bytes of the decoded examples that can be kept (`Task.use_cache`); None: unknown
    decoded_bytes: int | None = 0
    #: why no new run should start on these data, with the remedy, or empty; existing runs resume, and are evaluated
    refusal: str = ""


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions with one entry per evaluated example, in the split's order; saved as `predictions.npz`."""

    names: Sequence[str]
    #: score of each example if the primary metric is the mean of scores (top-1 accuracy: 1 if correct, 0 if not)
    score: np.ndarray | None = None
    binary: bool = False  #: whether scores are 0 or 1, so that McNemar's test applies
    arrays: Mapping[str, Column] = field(default_factory=dict)  #: statistics and outputs of `Task.infer`
    outputs: frozenset[str] = frozenset()  #: names of the arrays that are outputs


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Metrics and predictions of a model on a split."""

    metrics: Mapping[str, float]
    predictions: Predictions
    split: str = ""  #: val, test, or the name of the requested split; empty: unknown
