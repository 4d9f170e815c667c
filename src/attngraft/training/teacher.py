"""Distillation teachers (`distill` in a recipe): models whose outputs are additional training targets.

The teacher is not trained: it has no gradients, is not part of any checkpoint, moving average, parameter list or DDP
wrapper, and every process has a copy. It receives each micro-batch as `Task.prepare` returns it, mixed images included, in
evaluation mode and under the run's precision. Its outputs are a function of the batch, so a resumed run only needs the same
teacher weights, which are identified by their hash.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attngraft.downloads import received
from attngraft.errors import ConfigError, HostError, TrainingError, UsageError
from attngraft.files import user_path
from attngraft.grafting.spec import parse
from attngraft.models.schemes import sized_for
from attngraft.models.transformers_folder import label_names, transformers_folder
from attngraft.models.weights import read_weights
from attngraft.saved.folder import load
from attngraft.saved.manifest import MANIFEST, read_manifest
from attngraft.suggest import shortened
from attngraft.tasks.capabilities import require
from attngraft.tasks.seeding import seeded
from attngraft.tasks.task import Batch, Distillation, StepTeacher, Task, TaskData
from attngraft.tensors import not_finite
from attngraft.training.build import Start, build_initial_model, build_model, model_data_config, recorded_input
from attngraft.training.checkpoint import load_weights
from attngraft.training.inputs import Arguments, in_format
from attngraft.training.recipe import DistillConfig, HostConfig, Recipe, TeacherConfig
from attngraft.training.run_folder import RunFolder, read_json, read_run

FIELD = "distill.teacher"  #: the recipe's field, for error messages
_SHOWN = 12  #: maximum number of classes in a message


@dataclass(frozen=True, kw_only=True)
class Teacher(StepTeacher):
    """A teacher on the run's device.

    The task prepares its inputs, because timm's re-normalization supports neither other sizes nor gray images.
    """

    model: nn.Module
    distillation: Distillation
    config: DistillConfig
    channels_last: bool
    facts: Mapping[str, Any]  #: `name`, `from`, `sha256` of the weights, `input_size`

    def inputs(self, batch: Batch) -> Arguments:
        """Return the teacher's forward arguments for a batch."""
        return in_format(self.distillation.to_teacher(batch), channels_last=self.channels_last)

    @torch.no_grad()  # not inference_mode: the outputs become part of the student's graph
    def __call__(self, batch: Batch) -> Any:
        """Return the teacher's outputs for a batch, computed without gradients."""
        args, kwargs = self.inputs(batch)
        return self.model(*args, **kwargs)

    def losses(self, task: Task, outputs: Any, batch: Batch, taught: Any) -> dict[str, Tensor]:
        """Return the task's losses of a prepared batch, plus `label_loss` and `teacher_loss`, where

            loss = label_loss + alpha * teacher_loss

        `taught` is the teacher's output.

        Raises:
            TrainingError: `distill.kind: token`, and the host does not return two heads.
        """
        config, labeled, distilled = self.config, outputs, outputs
        if config.kind == "token":
            if not (isinstance(outputs, tuple | list) and len(outputs) == 2):
                raise TrainingError(
                    "distill.kind: token requires a host that returns the logits of two heads in training (LeViT, distilled "
                    "DeiT); this one does not, so use --set distill.kind=logits"
                )
            labeled, distilled = outputs
        losses = task.loss(labeled, batch)
        part = self.distillation.loss(distilled, taught, temperature=config.temperature, hard=config.hard)
        loss = losses["loss"] + config.weight * part
        return {**losses, "loss": loss, "label_loss": losses["loss"], "teacher_loss": part}

    def refuse_other(self, run: RunFolder) -> None:
        """Check that the run was trained with this teacher, if the run has saved anything.

        Raises:
            TrainingError: the run's teacher had other weights.
        """
        if run.has_saved and run.teacher.exists():
            before = read_json(run.teacher)
            if before.get("sha256") != self.facts["sha256"]:
                raise TrainingError(
                    f"{run.path}: the teacher's weights have changed since this run began ({FIELD}: "
                    f"{before.get('from')}). Restore the old weights, or choose another folder"
                )


def record_teacher(run: RunFolder, teacher: Teacher | None) -> None:
    """Write teacher.json, unless it already describes this teacher."""
    if teacher is None:
        run.teacher.unlink(missing_ok=True)  # left by an attempt with another recipe that saved nothing
    elif not run.teacher.exists() or read_json(run.teacher).get("sha256") != teacher.facts["sha256"]:
        run.write_teacher(teacher.facts)


def create_teacher(recipe: Recipe, task: Task, data: TaskData, *, device: torch.device) -> Teacher | None:
    """Return the recipe's teacher, checked against the data; None if the recipe has no teacher.

    Raises:
        ConfigError: the recipe names no teacher, its classes differ, or the task does not support distillation.
        UsageError, HostError, ExportError, TrainingError: the teacher cannot be found or read.
    """
    config = recipe.distill
    if config is None:
        return None
    require(task, "teacher")
    source = _find_teacher(config.teacher, data.model_args)
    if bad := not_finite(source.model.state_dict()):
        raise ConfigError(f"{FIELD}: {source.origin}: has weights that are not finite ({shortened(bad, _SHOWN)})")
    _refuse_other_classes(source, data, task)
    expects = dict(source.expects) | {"input_size": _input_size(config.teacher, source)}
    distillation = task.distillation(model_data_config=expects)
    facts = {
        "name": source.name,
        "from": source.origin,
        "sha256": weights_hash(source.model),
        "input_size": list(expects["input_size"]),
    }
    model = source.model.eval().requires_grad_(False).to(device)
    if recipe.train.compile:
        model.compile()  # in place; the names of its parameters stay
    if recipe.train.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return Teacher(
        model=model, distillation=distillation, config=config, channels_last=recipe.train.channels_last, facts=facts
    )


def check_teacher(recipe: Recipe) -> None:
    """Build the recipe's teacher, if any, without data, in order to fail early.

    Raises:
        ConfigError, UsageError, HostError, ExportError, TrainingError: see `create_teacher`.
    """
    if recipe.distill is not None:
        _find_teacher(recipe.distill.teacher, None)


def weights_hash(model: nn.Module) -> str:
    """Return the SHA-256 over names, shapes, types and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name} {tuple(plain.shape)} {plain.dtype}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A teacher's model on the CPU, with facts about it."""

    model: nn.Module
    name: str
    origin: str  #: origin of its weights, for messages
    expects: Mapping[str, Any]  #: input configuration, as returned by `model_data_config`
    built_for: Mapping[str, Any]  #: model arguments required by the teacher's data (num_classes)
    facts: Mapping[str, Any] = field(default_factory=dict)  #: facts about its data, as far as known (classes)
    labels: tuple[str, ...] = ()  #: names of its outputs, which may be written otherwise than the data's classes


def _find_teacher(teacher: TeacherConfig, model_args: Mapping[str, Any] | None) -> _Source:
    """Load the teacher of a recipe section; `model_args` is as in `TaskData`, None if no data are loaded."""
    if teacher.name is None and teacher.weights is None:
        raise ConfigError(
            f"{FIELD}: no teacher is given; use --set {FIELD}.name=NAME for timm's weights of that name, "
            f"--set {FIELD}.weights=FOLDER for one of your runs or exported models, or both for a weights file"
        )
    try:
        with seeded("teacher", 0):
            if teacher.name is not None:
                return _named(teacher, teacher.name, model_args)
            with received():
                return _trained(user_path(str(teacher.weights)))
    except ConfigError:
        raise
    except (HostError, UsageError) as error:  # without the field, the error would seem to be about the student
        raise type(error)(f"{FIELD}: {error}") from error


def _named(teacher: TeacherConfig, name: str, model_args: Mapping[str, Any] | None) -> _Source:
    """Build a timm model with timm's weights, or with the weights of a file."""
    from_file = teacher.weights is not None
    path = user_path(str(teacher.weights))
    if from_file and ((path / MANIFEST).is_file() or RunFolder(path).recipe.is_file()):
        raise ConfigError(f"{FIELD}.name: {path} has its own name and arguments; leave name and args out")
    recipe = Recipe(host=HostConfig(name=name, args=teacher.args, pretrained=not from_file, weights=teacher.weights))
    required = dict(model_args or {}) if from_file else {}  # timm's weights keep their own head
    model, start = build_initial_model(recipe, {key: required[key] for key in required if key not in teacher.args})
    if not start.whole and (model_args is not None or not from_file):
        reason = _missing_head(model, start, host=name) if from_file else start.origin
        raise ConfigError(f"{FIELD}: {reason}; use weights that were trained on the student's classes")
    folder = transformers_folder(path) if from_file else None
    return _Source(
        model=model,
        name=name,
        origin=start.origin,
        expects=model_data_config(recipe),
        built_for={"num_classes": getattr(model, "num_classes", None)},
        labels=() if folder is None else label_names(folder),
    )


def _missing_head(model: nn.Module, start: Start, *, host: str) -> str:
    """Return the reason why no head was loaded from a weights file."""
    if start.path is None:
        return start.origin
    classes = read_weights(start.path, host=host).outputs(model)
    if classes is None:
        return f"{start.path} contains no head"
    return f"{start.path} is for {classes} classes, but the data have {getattr(model, 'num_classes', '?')}"


def _trained(path: Path) -> _Source:
    """Load the model of an exported folder, of a run's folder, or of a weights file in a run's folder."""
    if (path / MANIFEST).is_file():
        manifest = read_manifest(path)
        return _Source(
            model=load(path).float(),  # exact for weights that were rounded to bfloat16
            name=_grafted_name(manifest.host.name, manifest.graft),
            origin=f"the exported model in {path}",
            expects={**manifest.serving.input, "input_size": manifest.input_size},
            built_for=manifest.host.args,
            facts={"classes": list(manifest.serving.classes)},
        )
    run = RunFolder(path if path.is_dir() else path.parent.parent)
    if not run.recipe.is_file():
        raise ConfigError(
            f"{FIELD}.weights: {path} is not the folder of a run or of an exported model"
            + (f"; for a weights file also give its model: {FIELD}.name" if path.is_file() else "")
        )
    record = read_run(run.path)
    if path.is_dir() and not record.finished:
        raise ConfigError(
            f"{FIELD}.weights: the run in {path} is not finished, and its best weights may change; finish it, or give a "
            "weights file (a copy of its checkpoints/best.safetensors, with name and args of its host)"
        )
    weights = run.best() if path.is_dir() else path
    with sized_for(weights):
        model = build_model(record.recipe, record.model_args, load_weights=False, facts=record.facts)
    facts = load_weights(weights, model)
    return _Source(
        model=model,
        name=_grafted_name(record.recipe.host.name, record.recipe.graft),
        origin=f"weights of {weights}" + (f" (epoch {facts['epoch']})" if "epoch" in facts else ""),
        expects=recorded_input(record.recipe, record.facts, where=record.folder),
        built_for=record.model_args,
        facts=record.facts,
    )


def _grafted_name(host: str, graft: str | list[Any] | None) -> str:
    return host if graft is None else f"{host} with {parse(graft)}"


def _refuse_other_classes(source: _Source, data: TaskData, task: Task) -> None:
    for name, value in data.model_args.items():
        built = source.built_for.get(name)
        if built is not None and built != value:
            what = (
                f"{built} classes, but the data have {value}"
                if name == "num_classes"
                else f"{name} {built}, not {value}"
            )
            raise ConfigError(
                f"{FIELD}: {source.name} was made for {what}; use a teacher that was trained on the student's classes"
            )
    classes, theirs = data.facts.get("classes"), source.facts.get("classes")
    if isinstance(classes, list) and sorted(classes) == sorted(source.labels):
        theirs = list(source.labels)
    if not isinstance(theirs, list) or not isinstance(classes, list) or classes == theirs:
        if source.facts and not task.compatible(source.facts, data.facts):
            raise ConfigError(
                f"{FIELD}: {source.name} was trained on data with another vocabulary or input; use a teacher for this data"
            )
        return
    if sorted(classes) == sorted(theirs):
        raise ConfigError(
            f"{FIELD}: {source.name} has the data's classes in another order; use --set task.data.classes=... with the "
            f"teacher's order: {shortened(theirs, _SHOWN)}"
        )
    unknown = [name for name in classes if name not in theirs]
    raise ConfigError(
        f"{FIELD}: {source.name} was trained without the classes {shortened(unknown, _SHOWN)}; use a teacher that includes "
        "them"
    )


def _input_size(config: TeacherConfig, source: _Source) -> tuple[int, int, int]:
    """Return the teacher's input size (C, H, W): its own, or `size` if the model accepts any."""
    channels, height, width = source.expects["input_size"]
    if config.size is None:
        return channels, height, width
    known = getattr(source.model, "pretrained_cfg", None)
    if (known is None or known.get("fixed_input_size")) and (config.size, config.size) != (height, width):
        raise ConfigError(
            f"{FIELD}.size: {source.name} takes images of {height}x{width} pixels only, not {config.size}; leave it out"
        )
    return channels, config.size, config.size
