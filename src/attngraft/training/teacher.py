"""A teacher that a run learns from besides its labels (the recipe's `distill`).

The teacher is no part of what is trained: it has no gradient, stands in no checkpoint, moving average, parameter list or
DDP wrapper, and every process has one. Each micro-batch goes through it as `Task.prepare` left it, mixed images included,
in evaluation mode and under the run's precision. What it says there is a function of the batch, so a run that goes on
needs nothing of it but the same weights; these are known by their hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attngraft.errors import ConfigError, TrainingError
from attngraft.tasks.task import Batch, Distillation, Task, TaskData
from attngraft.training.inputs import Arguments, in_format
from attngraft.training.recipe import DistillConfig, Recipe, TeacherConfig
from attngraft.training.run_folder import RunFolder, read_json
from attngraft.training.teacher import FIELD, FoundTeacher, find_teacher


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A teacher at work, on the run's device.

    The model stands in timm's wrapper of teachers. What it is shown is made by the task: timm's own way of normalizing
    anew knows neither other sizes nor gray images.
    """

    model: nn.Module
    distillation: Distillation
    config: DistillConfig
    channels_last: bool
    facts: Mapping[str, Any]  #: `name`, `from`, `sha256` of its weights, `input_size` at which it is asked

    def inputs(self, batch: Batch) -> Arguments:
        """What it is called with on a batch."""
        return in_format(self.distillation.to_teacher(batch), channels_last=self.channels_last)

    @torch.no_grad()  # not inference_mode: what is learned from it stands in a graph
    def __call__(self, batch: Batch) -> Any:
        """What it says of a batch, without a gradient."""
        args, kwargs = self.inputs(batch)
        return self.model(*args, **kwargs)

    def refuse_other(self, run: RunFolder) -> None:
        """Check that a run that has saved something learned from this teacher.

        Raises:
            TrainingError: its weights were others then.
        """
        if run.has_saved and run.teacher.exists():
            before = read_json(run.teacher)
            if before.get("sha256") != self.facts["sha256"]:
                raise TrainingError(
                    f"{run.path}: the teacher's weights have changed since this run began ({FIELD}: "
                    f"{before.get('from')}). Put those back, or choose another folder"
                )


def step_losses(
    task: Task, outputs: Any, batch: Batch, *, teacher: Teacher | None, taught: Any = None
) -> dict[str, Tensor]:
    """The losses of a prepared batch, `loss` among them; with a teacher, who said `taught`, also its two parts:

        loss = label_loss + alpha * teacher_loss

    Raises:
        TrainingError: the host was to have two heads and has not.
    """
    if teacher is None:
        return task.loss(outputs, batch)
    config, own, following = teacher.config, outputs, outputs
    if config.kind == "token":
        if not (isinstance(outputs, tuple | list) and len(outputs) == 2):
            raise TrainingError(
                "distill.kind: token needs a host that returns two heads in training; this one does not"
            )
        own, following = outputs
    losses = task.loss(own, batch)
    part = teacher.distillation.loss(following, taught, temperature=config.temperature, hard=config.hard)
    return {**losses, "loss": losses["loss"] + config.weight * part, "label_loss": losses["loss"], "teacher_loss": part}


def note_teacher(run: RunFolder, teacher: Teacher | None) -> None:
    """Write down who teaches; what the run's folder says of this teacher already is kept."""
    if teacher is None:
        run.teacher.unlink(missing_ok=True)  # of an attempt that saved nothing, with another recipe
    elif not run.teacher.exists() or read_json(run.teacher).get("sha256") != teacher.facts["sha256"]:
        run.write_teacher(teacher.facts)


def create_teacher(recipe: Recipe, task: Task, data: TaskData, *, device: torch.device) -> Teacher | None:
    """The recipe's teacher, fit for the data; None where it has none.

    Raises:
        ConfigError: no teacher is named, it is of other classes, or the task cannot learn from one.
        UsageError, HostError, ExportError, TrainingError: it cannot be found or read.
    """
    config = recipe.distill
    if config is None:
        return None
    found = find_teacher(config.teacher, data.model_args)
    _refuse_other_classes(found, data)
    expects = dict(found.expects) | {"input_size": _size(config.teacher, found)}
    distillation = task.distillation(model_data_config=expects)
    facts = {
        "name": found.name,
        "from": found.origin,
        "sha256": weights_hash(found.model),
        "input_size": list(expects["input_size"]),
    }
    from timm.task import DistillationTeacher  # here, as it takes a while to import

    if recipe.train.compile:
        found.model.compile()  # not the wrapper, whose own way of compiling is not that of a module, nor in every timm
    model = DistillationTeacher(found.model).requires_grad_(False).to(device)
    if recipe.train.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return Teacher(
        model=model, distillation=distillation, config=config, channels_last=recipe.train.channels_last, facts=facts
    )


def check_teacher(recipe: Recipe) -> None:
    """Find the recipe's teacher, if it has one, without data: to know early that it is there.

    Raises:
        ConfigError, UsageError, HostError, ExportError, TrainingError: as `create_teacher`.
    """
    if recipe.distill is not None:
        find_teacher(recipe.distill.teacher, None)


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over names, shapes, types and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name} {tuple(plain.shape)} {plain.dtype}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _refuse_other_classes(found: FoundTeacher, data: TaskData) -> None:
    for name, value in data.model_args.items():
        own = found.built_for.get(name)
        if own is not None and own != value:
            what = (
                f"{own} classes, and the data have {value}" if name == "num_classes" else f"{name} {own}, not {value}"
            )
            raise ConfigError(
                f"{FIELD}: {found.name} was made for {what}; take a teacher that was trained on the same classes as the "
                "student will be"
            )
    classes = data.facts.get("classes")
    if found.classes is None or not isinstance(classes, list | tuple) or tuple(classes) == found.classes:
        return
    if sorted(classes) == sorted(found.classes):
        raise ConfigError(
            f"{FIELD}: {found.name} knows the data's classes in another order; give task.data.classes in the teacher's: "
            f"{_listed(found.classes)}"
        )
    strange = [name for name in classes if name not in found.classes]
    raise ConfigError(f"{FIELD}: {found.name} was trained on other classes; it does not know {_listed(strange)}")


def _listed(names: tuple[str, ...] | list[str], shown: int = 12) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(map(str, names[:shown])) + more


def _size(config: TeacherConfig, found: FoundTeacher) -> tuple[int, int, int]:
    """Channels, height and width at which the teacher is asked: its own, as convolutional ones too know little of others,
    unless the recipe says otherwise of one that takes any."""
    channels, height, width = found.expects["input_size"]
    if config.size is None:
        return channels, height, width
    known = getattr(found.model, "pretrained_cfg", None)
    if (known is None or known.get("fixed_input_size")) and (config.size, config.size) != (height, width):
        raise ConfigError(
            f"{FIELD}.size: {found.name} takes images of {height}x{width} pixels only, not {config.size}; leave it out"
        )
    return channels, config.size, config.size
