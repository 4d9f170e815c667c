"""The interface between the engine and a task, without assumptions on the kind of inputs or labels.

The engine (`training`) moves batches to the device, steps the optimizer and writes files; a study compares runs.
Everything specific to a kind of data or labels goes through `Task`. To add a task, add a folder and an entry in `TASKS`,
or, in another package, an entry point:

    [project.entry-points."attngraft.tasks"]
    counting = "mine.counting:Counting"
"""

from __future__ import annotations

import functools
import importlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from attngraft.cache import DecodedCache
from attngraft.errors import ConfigError
from attngraft.hosts import ModelParts, model_parts
from attngraft.plugins import declared, package_of
from attngraft.results.column_rules import ColumnRules
from attngraft.results.measured import Measured
from attngraft.results.records import Records, RecordTable
from attngraft.results.sections import Metric, Section
from attngraft.results.study import Chance
from attngraft.suggest import did_you_mean
from attngraft.tasks.codec import Codec
from attngraft.tasks.codec import Serving as Serving
from attngraft.tasks.data import Batch as Batch
from attngraft.tasks.data import Evaluation as Evaluation
from attngraft.tasks.data import Predictions as Predictions
from attngraft.tasks.data import Split as Split
from attngraft.tasks.data import TaskData as TaskData
from attngraft.tasks.facts import Facts
from attngraft.tasks.memory import InferenceMemory

if TYPE_CHECKING:
    from attngraft.tasks.suites import JudgedModel, Suite, SuiteExamples, SuiteSupport

#: task name -> "module:class"; imported on first use
TASKS = {
    "captioning": "attngraft.tasks.captioning:Captioning",
    "classification": "attngraft.tasks.classification:Classification",
    "detection": "attngraft.tasks.detection:Detection",
    "multilabel": "attngraft.tasks.multilabel:MultiLabel",
    "point_parts": "attngraft.tasks.points:PointParts",
    "points": "attngraft.tasks.points:Points",
    "regression": "attngraft.tasks.regression:Regression",
    "segmentation": "attngraft.tasks.segmentation:Segmentation",
    "text_classification": "attngraft.tasks.text:TextClassification",
    "token_labeling": "attngraft.tasks.token_labeling:TokenLabeling",
    "translation": "attngraft.tasks.translation:Translation",
}
SPLIT_FILE = "split.csv"  #: file name of the random split in the folder of a run or study (`Task.save_split`)
FITTED_FOLDER = "fitted"  #: folder of `Task.save_files` in the folder of a run, a study or an exported model

#: old -> new names of `Task`'s methods
_RENAMED = {
    "recall": "load_split",
    "follow": "use_fitted_transform",
    "keep": "save_split",
    "teaching": "distillation",
    "beliefs": "calibration_inputs",
    "probe": "suite_support",
}

#: class -> module
_MOVED = {"PixelAccess": "attngraft.tasks.images.suites.pixels", "SuiteSupport": "attngraft.tasks.suites"}


@dataclass(frozen=True, kw_only=True)
class Loss:
    """One loss of a micro-batch. The engine minimizes the sum over the trained losses of factor * mean.

    Means of micro-batches and processes are weighted by `Task.weights`, so that an update equals the update of
    the whole batch: sum of factor * mean * w / W, where W is the sum of all w. A loss without a weight counts all
    micro-batches equally; use this if weights are only known after the forward pass. With weight zero, the mean must be a
    zero with a graph.
    """

    mean: Tensor  #: scalar, mean over examples, tokens, pixels or boxes
    factor: float = 1.0
    trained: bool = True  #: False: only reported


class StepTeacher(ABC):
    """Interface of a teacher in `Task.step`."""

    @abstractmethod
    def __call__(self, batch: Batch) -> Any:
        """Return the teacher's outputs for a batch, without gradient."""

    @abstractmethod
    def losses(self, task: Task, outputs: Any, batch: Batch, taught: Any) -> dict[str, Tensor]:
        """Return the `loss`, which combines labels and teacher, and its terms by name.

        Args:
            outputs: the student's outputs.
            taught: the teacher's outputs.
        """


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """Position of a training step, the model without wrappers, and the teacher."""

    seed: int
    epoch: int  #: from 0
    step: int  #: number of the micro-batch in the epoch, from 0
    model: nn.Module  #: the trained model without wrappers
    teacher: StepTeacher | None = None
    stage: str = "main"  #: name of the recipe's stage


class Distillation(ABC):
    """Base class for a teacher's inputs and the distillation loss; returned by `Task.distillation`."""

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


class Task(ABC):
    """Base class of tasks, built from the recipe's `task` section (strict keys)."""

    name: str
    primary: str  #: metric used to compare runs ("top1")
    higher_is_better: bool = True  #: whether a higher primary metric is better
    metrics: ClassVar[Mapping[str, Metric]] = {}  #: labels and directions; unlisted metrics appear by name
    default_recipe: ClassVar[str | None] = None  #: packaged recipe or recipe file, for `--task` without `--recipe`
    auto_class: ClassVar[str | None] = None  #: transformers' class of an `hf:` host; None: that of its configuration
    #: supported capabilities, by name in `capabilities.CAPABILITIES`; others are rejected in advance. None:
    #: nothing is checked in advance, and missing methods raise errors
    capabilities: ClassVar[Collection[str] | None] = None
    facts_class: ClassVar[type[Facts]] = Facts  #: dataclass of the facts that the task reads
    hosts: ClassVar[tuple[str, ...]] = ()  #: patterns of the names of supported hosts; empty: any host
    #: whether `infer(full=False)` is cheaper: curves then use it, and a finished run is evaluated once more with full=True
    has_light_inference: ClassVar[bool] = False
    column_rules: ClassVar[ColumnRules] = ColumnRules()  #: of the columns of `infer`

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _add_old_names(cls)

    def is_higher_better(self, metric: str) -> bool:
        """Return whether higher values of a metric are better."""
        if metric == self.primary:
            return self.higher_is_better
        return self.metrics[metric].higher_is_better if metric in self.metrics else True

    @classmethod
    def refusal(cls, host: nn.Module, name: str) -> str:
        """Return why the task cannot use a host, or an empty string; by default, check the name against `hosts`.

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

    def use_cache(self, cache: DecodedCache) -> None:
        """Keep decoded examples in the folder of `cache` during a run; called before `load`.

        Examples must be the same bits with and without the cache. Several processes may write to the folder at a time.
        `load` writes nothing; it returns the size of all decoded examples, of which `cache.room` bytes may be kept, as
        `TaskData.decoded_bytes`. By default, nothing is kept.
        """
        return None

    def save_split(self, path: Path) -> bool:
        """Save the random split to `path`, so that it stays the same when examples are added or removed.

        Called after `load`. Returns whether there is a random split.

        Raises:
            StorageError: the file cannot be written.
        """
        return False

    def load_files(self, folder: Path) -> None:
        """Load the files that `save_files` wrote to `folder`, if any, instead of fitting; called before `load`."""
        return None

    def save_files(self, folder: Path) -> None:
        """Write the objects fitted to the training data, such as a tokenizer, to `folder`.

        Called after `load`, or, to copy the files, after `load_files`.

        Raises:
            StorageError: a file cannot be written.
        """
        return None

    def build(self, host: nn.Module, facts: Mapping[str, Any]) -> nn.Module:
        """Return the model to train; by default, the grafted host alone.

        A task that puts a neck, a decoder or a head around the host returns a `hosts.HostedModel`. New parameters are drawn
        from a separate random stream, so that all variants of a seed share them.

        Args:
            host: the grafted host.
            facts: the facts that `load` returned; the data are not available on resume, prediction and export.
        """
        return host

    def parts(self, model: nn.Module) -> ModelParts:
        """Return which parameters of the model belong to the head and which are new; the rest belong to the host.

        This determines frozen parameters and learning rates. By default, timm or the host's adapter names the head, and
        everything around the host is new.

        Args:
            model: from `build`.
        """
        return model_parts(model)

    def needs_unwrapped(self, model: nn.Module) -> bool:
        """Return whether `step` or `infer` call `unwrapped(model)`, which FSDP does not support.

        By default, True for tasks with the capability `generation`.

        Args:
            model: from `build`.
        """
        return "generation" in (self.capabilities or ())

    def refuse_batch(self, size: int, *, processes: int) -> str:
        """Return why training on micro-batches of `size` examples per process fails, and the remedy; by default, nothing."""
        return ""

    def prepare(self, batch: Batch, *, epoch: int, step: int) -> Batch:
        """Apply batch-level augmentation (mixup), a function of (seed, epoch, step); training only."""
        return batch

    def weights(self, batch: Batch) -> Mapping[str, float]:
        """Return the weights of losses in a micro-batch by name, such as numbers of tokens or of labelled pixels.

        They are summed over the micro-batches and processes of an update before its first forward pass. The names must be
        the same for all batches. An update whose weights are all zero changes nothing.
        """
        return {}

    def step(self, model: nn.Module, batch: Batch, at: StepContext) -> Mapping[str, Loss]:
        """Return the losses of a micro-batch; calls `model` exactly once.

        By default, call the model with `to_model` and pass its outputs to `loss`, or to the teacher's `losses`.

        Args:
            model: the trained model, with the wrappers of distributed training.
            batch: from `prepare`, on the device.
            at: position in training, the model without wrappers, and the teacher.
        """
        taught = None if at.teacher is None else at.teacher(batch)  # before the student's activations occupy memory
        args, kwargs = self.to_model(batch)
        outputs = model(*args, **kwargs)
        losses = self.loss(outputs, batch) if at.teacher is None else at.teacher.losses(self, outputs, batch, taught)
        return {name: Loss(mean=value, trained=name == "loss") for name, value in losses.items()}

    def infer(self, model: nn.Module, batch: Batch, *, full: bool = True) -> Records:
        """Return the records of a batch: statistics for metrics, and outputs for users in the original size.

        By default, call the model with `to_model` and pass its outputs to `predict`, whose rows are statistics.

        Args:
            model: the model in evaluation mode, without gradients.
            batch: on the device.
            full: True: the inference for a run's final results. False: cheaper inference during training (greedy
                decoding, one scale), only with `has_light_inference`.
        """
        args, kwargs = self.to_model(batch)
        return to_records(self.predict(model(*args, **kwargs), batch))

    def inference_memory(self, model: nn.Module) -> InferenceMemory | None:
        """Estimate the memory of `infer` on the largest example of the data; by default None: unknown.

        Called after `load`, with the model on the meta device. Override this in tasks whose examples differ in size.
        """
        return None

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        """Return the metrics of an evaluation from its statistics alone, without data or model.

        Args:
            table: the records of all examples.
            facts: the facts that `load` returned.
        """
        raise NotImplementedError(f"task {self.name}: Task.measure is not implemented; override it")

    def chance(self, table: RecordTable, facts: Mapping[str, Any]) -> Chance | None:
        """Return the metrics of predictions that do not use the inputs, such as always the most frequent class.

        They are shown beside a study's results, and a study whose baseline is hardly better is too short to tell.
        By default None: unknown.

        Args:
            table: the records of a run, for the labels of the examples that a study compares on.
            facts: the facts that `load` returned, for the labels of the training data.
        """
        return None

    def training_note(self, metrics: Mapping[str, float], facts: Mapping[str, Any]) -> str:
        """Return a warning about a trained model that has not learned, as a sentence without a period, or an empty string.

        It is logged when a run is finished, and is part of a study's notes.

        Args:
            metrics: the last validation metrics.
            facts: the facts that `load` returned.
        """
        return ""

    def to_model(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the model's positional and keyword arguments for a batch."""
        raise NotImplementedError(
            f"task {self.name}: Task.to_model is not implemented; override it, or both step and infer"
        )

    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return scalars by name; gradients are computed for `loss`, the mean over the batch."""
        raise NotImplementedError(f"task {self.name}: Task.loss is not implemented; override loss or step")

    def predict(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return columns of statistics; the first axis is the batch."""
        raise NotImplementedError(f"task {self.name}: Task.predict is not implemented; override predict or infer")

    def sections(self, predictions: Sequence[Mapping[str, Any]], *, facts: Mapping[str, Any]) -> list[Section]:
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
            f"task {self.name}: does not support training with a teacher (Task.distillation); use --set distill=null"
        )

    def serving(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> Serving:
        """Return a description of the model's inputs and outputs, for use without the data.

        Args:
            facts: the facts that `load` returned, as stored in the run folder.
            model_data_config: as in `load`.

        Raises:
            ConfigError: the task does not support it.
        """
        raise ConfigError(
            f"task {self.name}: does not support export and prediction (Task.serving); give a run of another task"
        )

    def codec(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> Codec:
        """Return the codec of the model's inputs and outputs, without the data; by default from `serving`.

        Args:
            facts, model_data_config: as in `serving`.

        Raises:
            ConfigError: the task does not support it.
        """
        return self.serving(facts, model_data_config=model_data_config)

    def compatible(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        """Return whether a model that was trained on data with facts `a` can be used on data with facts `b`.

        By default, whether both have the same classes in the same order, if both have class names; plain numbers do not
        count as names. Override this for other vocabularies or inputs.
        """
        ours, theirs = a.get("classes"), b.get("classes")
        if not isinstance(ours, list) or not isinstance(theirs, list) or ours == theirs:
            return True
        return [str(number) for number in range(len(ours))] in (ours, theirs)

    @classmethod
    def from_serving(cls, serving: Serving) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the `task` section, without data, and the facts for evaluating an exported model.

        This is the inverse of `Task.serving`. The facts are for `use_fitted_transform` and `measure`.

        Raises:
            ConfigError: the task does not support it.
        """
        raise ConfigError(
            f"task {cls.name}: its exported models cannot be evaluated (Task.from_serving is missing); evaluate the run"
        )

    @classmethod
    def missing_from_host(cls, model_data_config: Mapping[str, Any]) -> str:
        """Return what a host with trained weights lacks for evaluation, such as a tokenizer, or an empty string.

        Args:
            model_data_config: as in `load`.
        """
        return ""

    def calibration_inputs(self, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return K predicted probabilities per example and their outcomes (True or False), both (N, K).

        Args:
            columns: the `Predictions.arrays` that `SuiteSupport.columns` names.

        Raises:
            ConfigError: the task does not support it.
        """
        raise ConfigError(
            f"task {self.name}: does not support calibration (Task.calibration_inputs); remove this suite"
        )

    @classmethod
    def suites(cls) -> Mapping[str, Suite]:
        """Return the suites for this kind of examples by name; a suite needs the capabilities `Suite.needs`.

        Names must differ from those of other tasks' suites. A task that returns no
        suites accepts every suite that its capabilities allow.
        """
        return {}

    def suite_examples(self, suite: Suite | None, source: str | None, model: JudgedModel) -> SuiteExamples | None:
        """Open examples that exist only for evaluation, such as test sets; None: use `load`.

        Args:
            suite: the suite, if it has a test set; None for other suites.
            source: the user's data (--data); None: not given.
            model: the model to evaluate.

        Raises:
            DataError: the examples cannot be used with this model.
        """
        return None

    def suite_support(self) -> SuiteSupport:
        """Return access to examples and predictions for suites; called after `load` or `suite_examples`.

        Raises:
            ConfigError: the task does not support suites.
        """
        raise ConfigError(
            f"task {self.name}: does not support suites that change images (Task.suite_support); remove --suite"
        )


def __getattr__(name: str) -> Any:
    if name in ("Evaluator", "CollectingEvaluator"):
        from attngraft.tasks import evaluator

        warnings.warn(f"{__name__}.{name} is deprecated; override Task.measure", DeprecationWarning, stacklevel=2)
        return getattr(evaluator, name)
    if name in _MOVED:
        warnings.warn(f"{__name__}.{name} has moved to {_MOVED[name]}", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(_MOVED[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def to_records(columns: Mapping[str, Tensor]) -> Records:
    """Return columns of tensors (B, ...) as statistics on the CPU, half precision as float32."""
    return Records(statistics={name: _to_numpy(tensor) for name, tensor in columns.items()})


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of a run, for inference that calls parts of it or generates.

    In training, only calls of the wrapped model itself are correct. Sharded weights (FSDP) cannot be unwrapped. A task
    that calls this declares the capability `generation` or overrides `needs_unwrapped`, so that FSDP is rejected.
    """
    found = model if isinstance(model, nn.Module) else model._model  # wrapper of the memory format (`training.inputs`)
    return found.module if isinstance(found, DistributedDataParallel) else found


def _to_numpy(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach()
    half = tensor.dtype in (torch.bfloat16, torch.float16)
    array: np.ndarray = (tensor.float() if half else tensor).cpu().numpy()
    return array


def _add_old_names(cls: type[Task]) -> None:
    """Let subclasses override and callers use the old method names in `_RENAMED`, with a warning."""

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
    """Return a mapping from name to "module:class" of all tasks, built-in and from installed packages."""
    return {entry.name: entry.value for entry in declared("tasks")} | TASKS


def package_of_task(name: str) -> str:
    """Return the name of the package that the task called `name` comes from."""
    plugins = {} if name in TASKS else {entry.name: package_of(entry) for entry in declared("tasks")}
    return plugins.get(name) or known_tasks()[name].partition(".")[0]


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
        raise ConfigError(
            f"task {name}: cannot import {known[name]} from an installed package: {error}; reinstall or remove it"
        ) from None
    return task
