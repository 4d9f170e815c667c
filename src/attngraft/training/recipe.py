"""Recipe of a run: all settings that determine its result, as frozen dataclasses read from YAML.

A recipe file may extend another one (`base: deit`), and `--set optimizer.lr=1e-3` changes single fields. The packaged
recipes are in `training/recipes/`; their comments give the expected results.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from attngraft.errors import ConfigError, naming
from attngraft.strict import FieldError, require
from attngraft.suggest import did_you_mean, quoted
from attngraft.training.misplaced import refuse_misplaced
from attngraft.yaml_config import (
    apply_overrides,
    differing_values,
    dump_yaml,
    from_mapping,
    merge,
    read_yaml,
    to_plain,
)

RECIPES = Path(__file__).parent / "recipes"

#: fields that do not change the result, so that a resumed run may change them
HARMLESS = ("train.workers", "train.save_every", "train.auto_batch", "train.outputs", "train.track")

#: fields that a run with train.auto_batch chooses itself, and keeps when it resumes
CHOSEN_BY_MEMORY = ("train.accumulate", "train.eval_batch_size")
#: largest numbers of processes and threads; more fill the memory, or end the program
MOST_WORKERS, MOST_THREADS = 512, 1024
_LONGEST = 10**12  #: largest number of epochs or updates

#: trained parameters; all other parameters and the statistics of their batch norms are frozen
Parameters = Literal["all", "grafts", "grafts+head", "head"]
TRAINED: dict[str, set[str]] = {
    "all": {"host", "grafts", "head"},
    "grafts": {"grafts"},
    "grafts+head": {"grafts", "head"},
    "head": {"head"},
}


@dataclass(frozen=True, kw_only=True)
class HostConfig:
    """The model to train: its name, arguments of its factory, and initial weights."""

    #: timm model name (`name.tag` selects pretrained weights), attngraft:NAME, torchvision:NAME, hf:FOLDER_OR_NAME, or
    #: module:package.path:factory
    name: str = "vit_tiny_patch16_224"
    args: Mapping[str, Any] = field(default_factory=dict)  #: img_size, depth, embed_dim, ...
    pretrained: bool = False  #: start from the published weights, or from those in an hf: folder
    #: start from this file: .safetensors, .pth, .pt, .bin, or a run's checkpoint; for transformers_classifier also a
    #: folder written by save_pretrained of transformers, which then sets args
    weights: str | None = None

    def __post_init__(self) -> None:
        both = self.pretrained and self.weights is not None
        require(self, "weights", not both, "cannot be combined with pretrained: true; use one of them")
        require(self, "weights", self.weights != "", "must be the path of a file, or null")
        if ":" in self.name or os.path.isdir(self.name):
            from attngraft.models.create import resolve_host  # imported here because it imports torch

            name, args = resolve_host(self.name, self.args)
            object.__setattr__(self, "name", name)
            object.__setattr__(self, "args", args)
        if self.name == "transformers_classifier" and self.weights is not None:
            # imported here because it imports torch, which reading a recipe should not do
            from attngraft.models.transformers_folder import folder_arguments, transformers_folder

            folder = transformers_folder(self.weights)
            if folder is not None:  # so that rebuilding the model later does not require the folder
                object.__setattr__(self, "args", folder_arguments(folder, self.args))


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """An optimizer of timm and its settings.

    Parameters with one axis (biases, norms, the scale of CB_S) are never decayed.
    """

    name: str = "adamw"  #: as in timm
    lr: float = 1e-3  #: peak of the schedule
    lr_batch: int | None = None  #: scale lr by batch_size / lr_batch; null: do not scale it
    weight_decay: float = 0.05  #: except for biases, norms and other parameters with one axis
    layer_decay: float | None = None  #: factor on lr per layer from the head down; grafts belong to their sites' layers
    graft_lr_scale: float = 1.0  #: factor on lr for parameters of grafts
    new_lr_scale: float = 1.0  #: factor on lr for modules that the task adds to the host (neck, decoder, head)
    graft_weight_decay: float | None = None  #: for parameters of grafts; null: weight_decay
    betas: tuple[float, ...] | None = None  #: null: the optimizer's default
    eps: float | None = None  #: null: the optimizer's default
    momentum: float | None = None  #: null: the optimizer's default
    args: Mapping[str, Any] = field(default_factory=dict)  #: further arguments of the optimizer

    def __post_init__(self) -> None:
        require(self, "lr", self.lr >= 0, "must not be negative")
        require(self, "lr_batch", self.lr_batch is None or self.lr_batch > 0, "must be positive")
        require(self, "weight_decay", self.weight_decay >= 0, "must not be negative")
        require(self, "layer_decay", self.layer_decay is None or 0 < self.layer_decay <= 1, "must lie in (0, 1]")
        require(self, "graft_lr_scale", self.graft_lr_scale > 0, "must be positive")
        require(self, "new_lr_scale", self.new_lr_scale > 0, "must be positive")
        decay = self.graft_weight_decay
        require(self, "graft_weight_decay", decay is None or decay >= 0, "must not be negative")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate over `epochs` or `steps`, updated at every step, with linear warm-up from `warmup_lr`."""

    #: shape; linear: from the peak to min_lr; inverse_sqrt: peak * min(update / warm-up, sqrt(warm-up / update))
    name: Literal["cosine", "constant", "linear", "inverse_sqrt", "poly", "step", "multistep", "tanh"] = "cosine"
    epochs: int = 30  #: including warm-up and cool-down; 0: evaluate the model without training
    steps: int | None = None  #: length of the run in updates, instead of epochs; other fields still count epochs
    warmup_epochs: float | None = None  #: null: a tenth of the epochs, at most 5
    warmup_steps: int | None = None  #: updates of warm-up, instead of warmup_epochs; only with steps or inverse_sqrt
    warmup_lr: float = 1e-6  #: start of the warm-up
    min_lr: float = 1e-5  #: end of the schedule
    cooldown_epochs: int = 0  #: epochs at min_lr at the end, part of `epochs`
    decay_epochs: float | None = None  #: step: epochs between decays
    decay_milestones: tuple[int, ...] = ()  #: multistep: epochs of the decays, in increasing order
    decay_rate: float | None = None  #: step and multistep: factor (0.1); poly: the power (1.0)

    def __post_init__(self) -> None:
        require(self, "epochs", 0 <= self.epochs <= _LONGEST, f"must lie between 0 and {_LONGEST:,}")
        require(self, "warmup_lr", self.warmup_lr >= 0, "must not be negative")
        require(self, "min_lr", self.min_lr >= 0, "must not be negative")
        require(
            self, "steps", self.steps is None or 1 <= self.steps <= _LONGEST, f"must lie between 1 and {_LONGEST:,}"
        )
        if self.warmup_steps is not None and self.name == "inverse_sqrt":  # its warm-up may exceed the run
            require(self, "warmup_steps", self.warmup_steps >= 1, "must be at least 1")
        elif self.warmup_steps is not None:
            require(self, "warmup_steps", self.steps is not None, "requires schedule.steps")
            require(self, "warmup_steps", 0 <= self.warmup_steps < (self.steps or 0), "must be below steps")
        short = f"must be less than the {self.epochs} epochs"
        by_steps = self.steps is not None or not self.epochs  # then the epochs are unknown or 0
        require(self, "cooldown_epochs", by_steps or 0 <= self.cooldown_epochs < self.epochs, short)
        ramp = self.warmup_epochs
        fits = by_steps or ramp is None or 0 <= ramp < self.epochs - self.cooldown_epochs
        require(self, "warmup_epochs", fits, f"{short} without cool-down; null uses a tenth of them, at most 5")
        require(self, "decay_epochs", self.decay_epochs is None or self.decay_epochs > 0, "must be positive")
        increase = list(self.decay_milestones) == sorted(set(self.decay_milestones))
        require(self, "decay_milestones", increase, "must increase")
        require(self, "decay_rate", self.decay_rate is None or self.decay_rate > 0, "must be positive")

    @property
    def trains(self) -> bool:
        """Whether there are any updates."""
        return self.steps is not None or self.epochs > 0

    @property
    def length(self) -> str:
        """Length of a run in words: `30 epochs` or `1000 updates`."""
        count, noun = (self.epochs, "epoch") if self.steps is None else (self.steps, "update")
        return f"{count} {noun}{'' if count == 1 else 's'}"

    @property
    def warmup(self) -> float:
        """Number of warm-up epochs, for schedules that count epochs."""
        return min(5.0, self.epochs / 10) if self.warmup_epochs is None else self.warmup_epochs

    def over(self, epochs: int) -> tuple[dict[str, Any], str | None]:
        """Return the fields to change for a run of `epochs`, and a note if warm-up and cool-down leave no epochs.

        Warm-up then has its default length, and a cool-down that still does not fit is left out.
        """
        changes: dict[str, Any] = {"epochs": epochs, "steps": None, "warmup_steps": None}
        default, cooldown = min(5.0, epochs / 10), self.cooldown_epochs
        warmup = default if self.warmup_epochs is None else self.warmup_epochs
        if epochs <= 0 or warmup + cooldown < epochs:
            return changes, None
        left = cooldown if default + cooldown < epochs else 0
        length = f"{epochs} epoch{'s' * (epochs != 1)}"
        note = f"The recipe's warm-up of {warmup:g} epochs does not fit into {length}: it takes {default:g} instead."
        if cooldown:
            note = (
                f"The recipe's warm-up of {warmup:g} epochs and cool-down of {cooldown} do not fit into {length}: "
                f"they take {default:g} and {left} instead."
            )
        return {**changes, "warmup_epochs": None, "cooldown_epochs": left}, note


@dataclass(frozen=True, kw_only=True)
class FirstStage:
    """First stage of a run, in which fewer parameters are trained, under the schedule of the whole run."""

    parameters: Literal["grafts", "grafts+head", "head"] = "grafts+head"  #: parameters trained in the first stage
    epochs: int = 1  #: included in schedule.epochs

    def __post_init__(self) -> None:
        require(self, "epochs", self.epochs >= 1, "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Part of a run with its own settings, followed by the next stage."""

    name: str  #: for the report
    epochs: int | None = None  #: maximum number; null (last stage only): the rest of schedule.epochs
    parameters: Parameters | None = None  #: trained parameters; null: train.parameters
    start: Literal["last", "best"] = "last"  #: weights to start from: the previous stage's last or best
    optimizer: Literal["keep", "fresh"] = "keep"  #: fresh: reset the optimizer's moments
    lr: float | None = None  #: peak learning rate of a separate schedule over the stage's epochs
    schedule: Mapping[str, Any] | None = None  #: fields of a separate schedule; null: the run's, unless lr is set
    patience: int | None = None  #: end the stage after this many epochs without a better metric
    metric: str | None = None  #: validation metric for patience; null: the task's primary metric
    batch_size: int | None = None  #: examples per update; null: train.batch_size
    task: Mapping[str, Any] = field(default_factory=dict)  #: task fields to override, such as loss or data

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch_size"):
            value = getattr(self, name)
            require(self, name, value is None or value >= 1, "must be at least 1")
        require(self, "lr", self.lr is None or self.lr >= 0, "must not be negative")
        require(self, "metric", self.metric is None or self.patience is not None, "requires a patience")
        require(self, "task", "name" not in self.task, "cannot be another task")
        fixed = {"epochs", "steps", "warmup_steps"} & (self.schedule or {}).keys()
        require(self, "schedule", not fixed, "counts the stage's epochs: leave out epochs and steps")

    @property
    def own_schedule(self) -> bool:
        """Return whether the stage has its own schedule instead of the run's."""
        return self.lr is not None or self.schedule is not None


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Trained parameters, batches, and updates."""

    parameters: Parameters = "all"  #: trained parameters; `head` is linear probing
    first: FirstStage | None = None  #: train fewer parameters first: {parameters: grafts+head, epochs: 2}
    batch_size: int = 128  #: examples per update, over all processes and micro-batches; cut to smaller training data
    eval_batch_size: int | None = None  #: examples per evaluation batch; null: batch_size / accumulate
    accumulate: int = 1  #: micro-batches per update (less memory; same result except for batch norms)
    auto_batch: bool = False  #: after an out-of-memory error, raise accumulate (or lower eval_batch_size) until it fits
    clip_grad: float | None = None  #: maximum total norm of the gradients
    ema: float | None = None  #: decay of an exponential moving average of the weights, which is also evaluated
    ema_warmup: bool = False  #: raise the decay gradually to `ema`, for short runs
    amp: Literal["no", "fp16", "bf16"] = "no"  #: automatic mixed precision
    compile: bool = False  #: torch.compile
    channels_last: bool = False  #: memory format of the weights and of 4-D inputs
    drop_path: float | None = None  #: stochastic depth, passed to the host's factory; null: the host's default
    threads: int | None = None  #: CPU threads of torch; null: torch's default
    workers: int = 0  #: loading processes per training process
    save_every: int | None = None  #: save a checkpoint every this many updates, besides those after evaluations
    eval_every: int | None = None  #: evaluate and save every this many updates, and at the end; null: every epoch
    #: weights that a study compares: the last epoch's, or the best epoch's by the primary validation metric
    judge: Literal["last", "best"] = "last"
    #: keep the outputs of the evaluated examples (captions, boxes, masks), compressed, in predictions.npz; statistics,
    #: from which metrics are computed, are always kept
    outputs: bool = False
    #: trackers that also receive settings and metrics, besides TensorBoard's files: wandb, mlflow, trackio, comet_ml, or
    #: others of accelerate
    track: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("batch_size", "eval_batch_size", "accumulate", "threads", "save_every", "eval_every"):
            value = getattr(self, name)
            require(self, name, value is None or value >= 1, "must be at least 1")
        whole = self.batch_size % self.accumulate == 0
        require(self, "accumulate", whole, f"must divide train.batch_size ({self.batch_size})")
        require(self, "clip_grad", self.clip_grad is None or self.clip_grad > 0, "must be positive or null")
        require(self, "ema", self.ema is None or 0 < self.ema < 1, "must lie between 0 and 1, or be null")
        require(self, "drop_path", self.drop_path is None or 0 <= self.drop_path < 1, "must lie in [0, 1)")
        require(self, "workers", 0 <= self.workers <= MOST_WORKERS, f"must lie between 0 and {MOST_WORKERS}")
        fits = self.threads is None or self.threads <= MOST_THREADS
        require(self, "threads", fits, f"must be at most {MOST_THREADS}; null uses torch's default")
        fewer = self.first is None or TRAINED[self.first.parameters] < TRAINED[self.parameters]
        if not fewer and self.first is not None:
            rule = f"must be fewer than train.parameters ({self.parameters}); got {self.first.parameters}"
            raise FieldError("first.parameters", rule)


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """Distillation teacher: a timm model (`name`), a run or exported model (`weights`), or a file (both)."""

    name: str | None = None  #: timm model name; name.tag selects pretrained weights, unless `weights` is set
    args: Mapping[str, Any] = field(default_factory=dict)  #: arguments of its factory: img_size, ...; only with `name`
    #: folder of a run (its best weights) or of an exported model, or, with `name`, a weights file as in host.weights
    weights: str | None = None
    size: int | None = None  #: height and width in pixels of the teacher's inputs; null: its own size

    def __post_init__(self) -> None:
        require(self, "args", not self.args or self.name is not None, "require a teacher name (distill.teacher.name)")
        require(self, "weights", self.weights != "", "must be a path, or null")
        require(self, "size", self.size is None or self.size > 0, "must be positive")


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Distillation: loss = label loss + alpha * teacher loss, on the same mixed images."""

    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    #: logits: distill into all outputs of the student; token: only into the second head of a distilled host, whose first
    #: head is trained on the labels
    kind: Literal["logits", "token"] = "logits"
    hard: bool = False  #: use the teacher's best class (DeiT) instead of its probabilities
    alpha: float | None = None  #: weight of the teacher loss; null: 5 for logits (USI), 1 for token
    temperature: float = 1.0  #: divides the student's and teacher's logits; the teacher loss is scaled by its square

    def __post_init__(self) -> None:
        require(self, "alpha", self.alpha is None or self.alpha > 0, "must be positive")
        require(self, "temperature", self.temperature > 0, "must be positive")
        require(
            self, "temperature", self.temperature == 1 or not self.hard, "has no effect with hard: true; leave it out"
        )

    @property
    def weight(self) -> float:
        """Return `alpha`, or the default for `kind` if it is null."""
        return self.alpha if self.alpha is not None else {"logits": 5.0, "token": 1.0}[self.kind]


_NO_GRAFT = (
    "is grafts, but the recipe has no graft to train. Set a graft, or use grafts+head: the plain host (a study's "
    "baseline) then trains only its head"
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of host, graft, task and training. `task.name` determines the other fields of `task`."""

    host: HostConfig = field(default_factory=HostConfig)
    graft: str | list[Any] | None = None  #: a graft specification, or a list of mappings
    #: `name` of the task, and its fields
    task: Mapping[str, Any] = field(default_factory=lambda: {"name": "classification"})
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    stages: tuple[Stage, ...] = ()  #: parts of the run with different settings; their epochs add up to schedule.epochs
    distill: DistillConfig | None = None  #: also train on the outputs of a teacher: {teacher: {name: ...}}
    seed: int = 0  #: seed of initialization, order and augmentation

    def __post_init__(self) -> None:
        if not isinstance(self.task.get("name"), str):
            raise FieldError("task.name", f"must be the name of a task; got {self.task.get('name')!r}")
        if not isinstance(self.task.get("data", {}), Mapping):
            raise FieldError("task.data", f"must be a section; got {quoted(self.task['data'])}")
        if self.graft in ("none", "", []):
            object.__setattr__(self, "graft", None)  # so that equal recipes compare equal
        first = self.train.first
        trains = self.schedule.trains
        if first is not None and trains and self.schedule.steps is None and first.epochs >= self.schedule.epochs:
            rule = f"must be less than schedule.epochs ({self.schedule.epochs}); got {first.epochs}"
            raise FieldError("train.first.epochs", rule)
        for name, trained in (("parameters", self.train.parameters), ("first.parameters", first and first.parameters)):
            if trained == "grafts" and self.graft is None:
                raise FieldError(f"train.{name}", _NO_GRAFT)

        if self.stages and trains:
            self._check_stages()

    def _check_stages(self) -> None:
        if self.train.first is not None:
            raise FieldError("stages", "cannot be combined with train.first; set it to null")
        if self.schedule.steps is not None or self.train.eval_every is not None:
            raise FieldError("stages", "count epochs, so schedule.steps and train.eval_every must be null")
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names) or not all(names):
            raise FieldError("stages", f"must have different names; got {', '.join(names)}")
        for stage in self.stages:
            chosen = stage.parameters
            if chosen is not None and not TRAINED[chosen] <= TRAINED[self.train.parameters]:
                rule = f"must not be more than train.parameters ({self.train.parameters}); got {chosen}"
                raise FieldError(f"stages.{stage.name}.parameters", rule)
            if chosen == "grafts" and self.graft is None:
                raise FieldError(f"stages.{stage.name}.parameters", _NO_GRAFT)
            if stage.batch_size is not None and stage.batch_size % self.train.accumulate:
                rule = f"must be a multiple of train.accumulate ({self.train.accumulate}); got {stage.batch_size}"
                raise FieldError(f"stages.{stage.name}.batch_size", rule)
            if stage.epochs is None and stage is not self.stages[-1]:
                raise FieldError(f"stages.{stage.name}.epochs", "is missing; only the last stage may leave it out")
        if self.stages[0].start == "best":
            raise FieldError(f"stages.{names[0]}.start", "is best, but no stage comes before it; use host.weights")
        given = sum(stage.epochs or 0 for stage in self.stages)
        rest, total = self.stages[-1].epochs is None, self.schedule.epochs
        if given != total and not (rest and given < total):
            rule = f"together have {given} epochs and schedule.epochs is {total}; leave out the last stage's epochs"
            raise FieldError("stages", f"{rule} for the rest, or change one of them")

    @property
    def all_stages(self) -> tuple[Stage, ...]:
        """The stages with their epochs: from `train.first` or `stages`, otherwise a single stage."""
        total, first = self.schedule.epochs, self.train.first
        if not self.schedule.trains:
            return (Stage(name="main"),)
        left = None if self.schedule.steps is not None else total  # schedule.steps ends the last stage
        if first is not None:
            early = Stage(name="first", epochs=first.epochs, parameters=first.parameters)
            return early, Stage(name="main", epochs=None if left is None else left - first.epochs)
        if not self.stages:
            return (Stage(name="main", epochs=left),)
        *before, last = self.stages
        rest = total - sum(stage.epochs or 0 for stage in before)
        return *before, replace(last, epochs=rest)

    @property
    def counts_updates(self) -> bool:
        """Whether rows of metrics have a `step`: with schedule.steps, train.eval_every or a patience."""
        if not self.schedule.trains:
            return False
        if self.schedule.steps is not None or self.train.eval_every is not None:
            return True
        return any(stage.patience is not None for stage in self.stages)

    @property
    def host_names(self) -> tuple[str, ...]:
        """Names of the host and, if the recipe has a named teacher, of the teacher."""
        teacher = None if self.distill is None else self.distill.teacher.name
        return (self.host.name, *([teacher] if teacher else []))

    @property
    def lr(self) -> float:
        """Peak learning rate, scaled to the batch size."""
        scale = 1.0 if self.optimizer.lr_batch is None else self.train.batch_size / self.optimizer.lr_batch
        return self.optimizer.lr * scale


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe from a packaged name or a file, with overrides `a.b=value` applied.

    Raises:
        ConfigError: unknown recipe (the message lists the known ones), unknown key or invalid value (with file and field).
    """
    mapping = _with_bases(name_or_path, ())
    source = f"recipe {name_or_path}"
    if overrides:
        mapping = apply_overrides(mapping, overrides)
        source += f" with --set {' --set '.join(overrides)}"
    with naming(source):  # errors of its host
        return recipe_from_dict(mapping, source=source)


def load_schedule(name_or_path: str | Path) -> ScheduleConfig:
    """Return the schedule of a packaged recipe or a file.

    Raises:
        ConfigError: as `load_recipe`.
    """
    mapping = _with_bases(name_or_path, ()).get("schedule") or {}
    return from_mapping(ScheduleConfig, mapping, source=f"recipe {name_or_path}: schedule")


def host_name(name_or_path: str | Path) -> str:
    """Return the name of the host of a packaged recipe or a file.

    Raises:
        ConfigError: as `load_recipe`.
    """
    return str((_with_bases(name_or_path, ()).get("host") or {}).get("name", HostConfig.name))


def recipe_from_dict(mapping: Mapping[str, Any], *, source: str = "recipe") -> Recipe:
    """Return the recipe for a mapping of plain values; missing fields are set to their defaults.

    Raises:
        ConfigError: unknown key or invalid value; the message names `source` and the field.
    """
    task = mapping.get("task") if isinstance(mapping, Mapping) else None
    name = task.get("name") if isinstance(task, Mapping) else None
    known = name if isinstance(name, str) else "classification"
    refuse_misplaced(mapping, Recipe, known=lambda: sections(known), source=source)
    return from_mapping(Recipe, mapping, source=source)


def sections(task: str) -> dict[str, type]:
    """Return the dataclasses of a recipe with this task: of the whole recipe (""), and of its task, if it has one."""
    from attngraft.tasks.task import load_task  # imported here because it imports torch

    try:
        own = getattr(load_task(task), "config_class", None)
    except ConfigError:
        own = None
    return {"": Recipe} if own is None else {"": Recipe, "task": own}


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return the whole recipe as plain values; `recipe_from_dict` reads it back."""
    plain: dict[str, Any] = to_plain(recipe)
    return plain


def changed_settings(recipe: Recipe, baseline: Recipe) -> dict[str, Any]:
    """Return the training settings of `recipe` that differ from those of `baseline`, by dotted field.

    Omits host, graft, seed, fields that do not change the result, and sizes chosen by `train.auto_batch`.
    """
    chosen = recipe.train.auto_batch and baseline.train.auto_batch
    ignored = {"host", "graft", "seed", *HARMLESS, *(CHOSEN_BY_MEMORY if chosen else ())}
    found = differing_values(recipe_to_dict(recipe), recipe_to_dict(baseline))
    return {name: value for name, (value, _) in found.items() if not {name, name.partition(".")[0]} & ignored}


def recipe_to_yaml(recipe: Recipe) -> str:
    """Return the whole recipe as YAML text."""
    return dump_yaml(recipe_to_dict(recipe))


def packaged_recipes() -> list[str]:
    """Return the names of the packaged recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def recipe_summary(name: str) -> str:
    """Return the summary of a packaged recipe: the first line of its comments, up to a colon or a period."""
    first = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
    return re.split(r"[:.](?:\s|$)", first.lstrip("# "), maxsplit=1)[0]


def _with_bases(name_or_path: str | Path, below: tuple[Path, ...]) -> dict[str, Any]:
    """Return the file's mapping merged over that of its `base`, recursively."""
    path = _find(name_or_path, beside=below[-1].parent if below else Path())
    if path in below:
        raise ConfigError(f"{below[-1]}: base: {name_or_path} extends itself; remove or change `base`")
    mapping = read_yaml(path)
    base = mapping.pop("base", None)
    if base is None:
        return mapping
    if not isinstance(base, str):
        raise ConfigError(f"{path}: base must be the name or the path of a recipe; got {base!r}")
    return merge(_with_bases(base, (*below, path)), mapping)


def _find(name_or_path: str | Path, *, beside: Path) -> Path:
    text = str(name_or_path)
    if text in packaged_recipes():
        return RECIPES / f"{text}.yaml"
    path = beside / text
    if path.exists() and not path.is_dir():
        return path.resolve()
    if (path / "recipe.yaml").is_file():
        raise ConfigError(f"recipe {text}: is the folder of a run; use {Path(text, 'recipe.yaml')}")
    if text.endswith((".yaml", ".yml")) or "/" in text or "\\" in text:
        raise ConfigError(
            f"recipe {text}: no such file; give the path of a YAML file, or one of {', '.join(packaged_recipes())}"
        )
    names = packaged_recipes()
    raise ConfigError(
        f"unknown recipe {text!r}{did_you_mean(text, names)}; recipes: {', '.join(names)}, or the path of a YAML file"
    )
