"""Everything a run needs before its first step: recipe and folder in, a `Job` out."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, DistributedType, KwargsHandler, gather_object
from timm.scheduler.scheduler import Scheduler
from torch import nn

from attngraft.environment import environment
from attngraft.errors import ConfigError, DataError
from attngraft.grafting.apply import unused_parts
from attngraft.tasks.task import Task, TaskData
from attngraft.training.batch_norms import examples_at_once
from attngraft.training.build import Start, build_started_model, build_task, model_data_config
from attngraft.training.checkpoint import Counters, Learner
from attngraft.training.loading import TrainOrder
from attngraft.training.optimizer import create_ema, create_optimizer, create_schedule
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import RunFolder, write_json
from attngraft.training.stages import Stages
from attngraft.training.teacher import Teacher, create_teacher, note_teacher

log = logging.getLogger(__name__)

#: entries of the environment on which the last digits of an outcome may depend
_DECISIVE = ("packages", "threads", "device_name", "processes")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that is ready to start."""

    recipe: Recipe
    run: RunFolder
    accelerator: Accelerator
    task: Task
    data: TaskData
    order: TrainOrder
    learner: Learner
    schedule: Scheduler
    core: nn.Module  #: the model inside accelerate's wrappers
    start: Start  #: what it starts from; random values where the run goes on from a checkpoint
    teacher: Teacher | None = None  #: whom it learns from besides the labels


def create_accelerator(recipe: Recipe) -> Accelerator:
    """Accelerate's view of this process: one of those that `accelerate launch` or `torchrun` started, or alone.

    Raises:
        ConfigError: the precision, or sharding, does not work on this device.
    """
    cpu = not torch.accelerator.is_available()
    if cpu and recipe.train.amp == "fp16":
        raise ConfigError("train.amp: fp16 needs a GPU; use bf16, or no")
    sharding = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if cpu and sharding:  # accelerate would ignore it in silence
        raise ConfigError(
            "FSDP was asked for (ACCELERATE_USE_FSDP), and accelerate shards weights on GPUs only; launch without "
            "--use_fsdp, which is DDP"
        )
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != recipe.train.amp:
        AcceleratorState._reset_state()  # one precision per process is accelerate's rule; runs of one process may differ
    handlers: list[KwargsHandler] = []
    if recipe.train.first is not None:  # DDP then has to look which parameters have a gradient in this stage
        handlers.append(DistributedDataParallelKwargs(find_unused_parameters=True))
    return Accelerator(mixed_precision=recipe.train.amp, cpu=cpu, kwargs_handlers=handlers)


def prepare(recipe: Recipe, run: RunFolder, accelerator: Accelerator) -> Job:
    """Open the data, build the model and all that trains it. The run folder is written to once all of that went well.

    Raises:
        ConfigError: a part of the recipe that does not fit the data, the host or the processes.
        DataError: the data cannot be used.
    """
    task = build_task(recipe)
    task.recall(run.split)
    data = task.load(model_data_config=model_data_config(recipe))
    _refuse_other_data(accelerator, data)
    order = TrainOrder(
        split=data.train,
        seed=recipe.seed,
        batch_size=recipe.train.batch_size,
        accumulate=recipe.train.accumulate,
        rank=accelerator.process_index,
        world=accelerator.num_processes,
    )
    teacher = create_teacher(recipe, task, data, device=accelerator.device)
    if teacher is not None:
        teacher.refuse_other(run)
    begun = run.last.exists() or run.previous.exists()  # then the checkpoint fills the model, whatever it started from
    core, start = build_started_model(recipe, data.model_args, weights=not begun)
    if accelerator.is_main_process and not begun:
        _say_start(recipe, start)
    core = core.to(accelerator.device)
    if recipe.train.channels_last:
        core = core.to(memory_format=torch.channels_last)
    if accelerator.distributed_type == DistributedType.FSDP:
        _refuse_what_shards_cannot(recipe, core)
    ema = create_ema(core, recipe)
    optimizer = create_optimizer(core, recipe)
    schedule = create_schedule(optimizer, recipe, steps=order.steps)
    stages = Stages(core, recipe.train.first)
    if recipe.train.compile:
        core.compile()
    model, prepared = accelerator.prepare(core, optimizer)
    if accelerator.scaler is None:
        prepared = (
            prepared.optimizer
        )  # without a scaler accelerate's wrapper adds nothing but a look for packages, per step
    if accelerator.is_main_process:
        seen = examples_at_once(core, recipe, processes=accelerator.num_processes)
        if seen is not None:
            _say_what_batch_norms_see(recipe, run, seen, processes=accelerator.num_processes)
        _write_facts(recipe, run, accelerator, data, batch_norm_examples=seen)
        _keep_split(run, task)  # after the recipe, which says what it was drawn for
        note_teacher(run, teacher)
    return Job(
        recipe=recipe,
        run=run,
        accelerator=accelerator,
        task=task,
        data=data,
        order=order,
        learner=Learner(
            accelerator=accelerator, model=model, optimizer=prepared, ema=ema, counters=Counters(), stages=stages
        ),
        schedule=schedule,
        core=core,
        start=start,
        teacher=teacher,
    )


def _say_start(recipe: Recipe, start: Start) -> None:
    if start.origin:
        log.info("starts from %s", start.origin)
    elif recipe.train.parameters != "all":
        log.warning(
            "the host starts from random values, and with train.parameters=%s most of them stay as they are; give weights "
            "to start from (--pretrained, --weights FILE)",
            recipe.train.parameters,
        )


def _keep_split(run: RunFolder, task: Task) -> None:
    fresh = not run.split.exists()
    if task.keep(run.split) and fresh:
        log.info("which examples are for validation was drawn; %s keeps it", run.split)


def _say_what_batch_norms_see(recipe: Recipe, run: RunFolder, seen: int, *, processes: int) -> None:
    log.warning(
        "%s: batch norms take mean and variance from %d of the %d examples of an update "
        "(train.accumulate=%d, %d process%s); the outcome is not that of the whole batch at once",
        run.path,
        seen,
        recipe.train.batch_size,
        recipe.train.accumulate,
        processes,
        "" if processes == 1 else "es",
    )


def _refuse_other_data(accelerator: Accelerator, data: TaskData) -> None:
    """Every process opens the data for itself; where one of them found others, their batches would not be one batch."""
    if accelerator.num_processes > 1:
        found = gather_object([json.dumps(data.facts, sort_keys=True, default=str)])
        if len(set(found)) > 1:
            raise DataError(
                "the processes of this run found different data (perhaps one could not read what another could); look with "
                "attngraft data check on each machine, and repeat the command"
            )


def _refuse_what_shards_cannot(recipe: Recipe, core: nn.Module) -> None:
    if recipe.train.ema is not None:
        raise ConfigError("train.ema: a moving average of sharded weights is not possible; set it to null under FSDP")
    if recipe.train.first is not None:
        raise ConfigError(
            "train.first: sharded weights cannot be frozen for a while; set it to null under FSDP, or use DDP"
        )
    if recipe.optimizer.weight_decay and unused_parts(core):
        raise ConfigError(
            f"graft {recipe.graft}: leaves rows of the host's weights unused, and sharded weights cannot be kept from "
            "decaying by rows; set optimizer.weight_decay to 0 under FSDP, or use DDP"
        )


def _write_facts(
    recipe: Recipe, run: RunFolder, accelerator: Accelerator, data: TaskData, *, batch_norm_examples: int | None
) -> None:
    """Recipe, data and environment. The environment of the first start stays; those of later ones are added to it.

    `batch_norm_examples`, of `examples_at_once`, stands there as it is now.
    """
    parts = {} if batch_norm_examples is None else {"batch_norm_examples": batch_norm_examples}
    here = environment(accelerator.device, processes=accelerator.num_processes)
    if run.recipe.exists() and run.environment.exists():
        first = json.loads(run.environment.read_text(encoding="utf-8"))
        changed = [name for name in ("packages", "threads", "device_name", "processes") if first[name] != here[name]]
        if changed:
            log.warning(
                "%s: %s changed since the run began; the outcome may differ in the last digits",
                run.path,
                ", ".join(changed),
            )
        write_json(run.environment, first | {"resumed": [*first.get("resumed", []), here]} | parts)
    else:
        write_json(run.environment, here | parts)
    run.write_data(model_args=data.model_args, facts=data.facts)
    run.write_recipe(recipe)
