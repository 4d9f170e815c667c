"""Setup of a run before its first step: from a recipe and a folder to a `RunContext`."""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, DistributedType, KwargsHandler, gather_object
from torch import nn

from attngraft.cache import DecodedCache
from attngraft.devices import accelerator_device
from attngraft.environment import environment
from attngraft.errors import ConfigError, DataError
from attngraft.grafting.apply import unused_parts
from attngraft.suggest import one_line
from attngraft.tasks.capabilities import require
from attngraft.tasks.task import SPLIT_FILE, Task, TaskData
from attngraft.training.build import (
    Start,
    build_initial_model,
    build_task,
    check_as_is,
    check_patches,
    check_task_host,
    model_data_config,
    recorded_input,
)
from attngraft.training.checkpoint import Counters, TrainState
from attngraft.training.freezing import FreezingSchedule, batch_norm_examples
from attngraft.training.loading import TrainOrder, train_order
from attngraft.training.optimizer import create_ema, create_optimizer
from attngraft.training.paths import real_paths
from attngraft.training.recipe import Recipe, Stage, recipe_to_dict
from attngraft.training.run_folder import JudgedSplit, RunFolder, read_json, write_json
from attngraft.training.sizes import Cut, cut_between, cut_note, epoch_length, fit_batch, fit_sizes
from attngraft.training.stages import StageContext, has_same_examples, stage_recipe
from attngraft.training.teacher import Teacher, create_teacher, record_teacher
from attngraft.training.update import Update

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """A run that is ready to start."""

    recipe: Recipe
    folder: RunFolder
    accelerator: Accelerator
    task: Task
    data: TaskData
    epochs: int  #: maximum number; with schedule.steps, the last epoch may be incomplete
    updates: int  #: number of updates in these epochs
    stages: Sequence[StageContext]  #: each with its own training batches
    update: Update
    start: Start  #: initial weights; empty if the run resumes from a checkpoint

    @property
    def state(self) -> TrainState:
        return self.update.state

    @property
    def teacher(self) -> Teacher | None:
        return self.update.teacher


def create_accelerator(recipe: Recipe) -> Accelerator:
    """Return the accelerator of this process, also under `accelerate launch` or `torchrun`.

    Raises:
        ConfigError: the device does not support the precision or sharding, or the launcher's variables are incomplete.
    """
    cpu = accelerator_device() is None
    if cpu and recipe.train.amp == "fp16":
        raise ConfigError("train.amp: fp16 requires a GPU; use bf16 or no")
    sharding = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if cpu and sharding:  # accelerate would ignore it silently
        raise ConfigError(
            "FSDP was requested (ACCELERATE_USE_FSDP), but accelerate shards weights on GPUs only; launch without "
            "--use_fsdp to use DDP"
        )
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != recipe.train.amp:
        AcceleratorState._reset_state()  # one precision per process, but its runs may differ
    handlers: list[KwargsHandler] = []
    if len(recipe.all_stages) > 1:  # DDP must detect which parameters have a gradient in this stage
        handlers.append(DistributedDataParallelKwargs(find_unused_parameters=True))
    found = sorted({"RANK", "WORLD_SIZE", "LOCAL_RANK"} & os.environ.keys())  # accelerate sets more
    try:
        return Accelerator(mixed_precision=recipe.train.amp, cpu=cpu, kwargs_handlers=handlers)
    except ValueError as error:
        if not found:
            raise
        raise ConfigError(
            f"the environment has {', '.join(found)}, but not all that a launcher sets ({one_line(error)}); unset them, or "
            "use torchrun or accelerate launch"
        ) from None


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Set torch's number of CPU threads within the block; None leaves it unchanged."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def prepare_run(
    recipe: Recipe, folder: RunFolder, accelerator: Accelerator, *, cache: DecodedCache | None = None
) -> RunContext:
    """Open the data, and build the model and everything that trains it.

    Writes to the run folder only after everything succeeds. Decoded examples are kept in `cache`, if any.

    Raises:
        ConfigError: part of the recipe does not fit the data, the host or the processes.
        DataError: the data cannot be used.
    """
    task = build_task(recipe)
    if recipe.distill is not None:
        require(task, "teacher")
    check_task_host(recipe)
    for stage in recipe.all_stages:
        stage_recipe(recipe, stage)  # raises before the data are opened
    begun = folder.last.exists() or folder.previous.exists()  # the checkpoint contains the weights
    if not begun:
        check_patches(recipe)
    task.load_split(folder.split)
    task.load_files(folder.fitted)
    if cache is not None:
        task.use_cache(cache)
    expects = recorded_input(recipe, folder.facts if begun else {}, where=folder.path)
    data = task.load(model_data_config=expects)
    if data.test is not None and folder.judged_on_val:
        log.info("%s: the run began without a test split, so it is judged on the validation split", folder.path)
        data = replace(data, test=None)
    _refuse_other_data(accelerator, data)
    if data.refusal and not begun:
        raise DataError(data.refusal)
    given, recipe = recipe, fit_sizes(recipe, data.train, world=accelerator.num_processes)
    processes = accelerator.num_processes
    size = recipe.train.batch_size // (recipe.train.accumulate * processes)
    if recipe.schedule.trains and (reason := task.refuse_batch(size, processes=processes)):
        raise ConfigError(f"train.batch_size: {reason}")
    order = train_order(recipe, data.train, rank=accelerator.process_index, world=accelerator.num_processes)
    stages = [_stage_context(recipe, stage, task, data, order, cache) for stage in recipe.all_stages]
    if recipe.stages and recipe.schedule.trains:  # their batches may have been cut to their own data
        own = [context.stage.batch_size for context in stages]
        fitted = tuple(replace(stage, batch_size=size) for stage, size in zip(recipe.stages, own, strict=True))
        recipe = replace(recipe, stages=fitted)
    steps = recipe.schedule.steps
    epochs = recipe.schedule.epochs if steps is None else order.epochs_of(steps)
    updates = steps or _most_updates(stages)
    teacher = create_teacher(recipe, task, data, device=accelerator.device)
    if teacher is not None:
        teacher.refuse_other(folder)
    update, start = build_training(
        recipe, task, data, accelerator, order=order, teacher=teacher, load_weights=not begun
    )
    if not begun:
        check_as_is(recipe, start)
    if accelerator.is_main_process:
        if cache is not None and not cache.shared and (kept := cache.note(data.decoded_bytes)):
            log.info("%s: %s", folder.path, kept)
        cut = cut_between(given, recipe)
        if not begun:
            _log_start(recipe, start)
            if recipe.schedule.trains and (note := cut_note(cut)):
                log.info("%s: %s", folder.path, note)
        _write_facts(recipe, folder, update, data, cut=cut)
        drawn = not folder.split.exists()
        if task.save_split(folder.split) and drawn:  # after the recipe that it belongs to
            log.info("the validation examples were drawn at random; the split is saved in %s", folder.split)
        if not folder.fitted.exists():
            task.save_files(folder.fitted)
        record_teacher(folder, teacher)
    return RunContext(
        recipe=recipe,
        folder=folder,
        accelerator=accelerator,
        task=task,
        data=data,
        epochs=epochs,
        updates=updates,
        stages=stages,
        update=update,
        start=start,
    )


def _most_updates(stages: Sequence[StageContext]) -> int:
    """Return the number of updates if every stage runs for its maximum number of epochs."""
    updates = begin = 0
    for context in stages:
        end = begin + (context.stage.epochs or 0)
        updates, begin = updates + context.order.updates_before(end, begin=begin), end
    return updates


def _stage_context(
    recipe: Recipe, stage: Stage, task: Task, data: TaskData, order: TrainOrder, cache: DecodedCache | None
) -> StageContext:
    """Return a stage with its batches, from its own data if its task differs from the run's.

    The run's fitted objects and, for the same examples, its random split are reused. Its batches are cut to its data.

    Raises:
        ConfigError: the stage requires a different model, or its batches cannot be formed.
        DataError: its data cannot be used.
    """
    changed, size = stage_recipe(recipe, stage), stage.batch_size or order.batch_size
    name = order.size_field if stage.batch_size is None else f"stages.{stage.name}.batch_size"
    if not stage.task:
        order = replace(order, batch_size=size, size_field=name)
        return StageContext(stage=stage, recipe=changed, task=task, order=order)
    own = build_task(changed)
    with TemporaryDirectory() as shared:  # the run's folder has these files only when it resumes
        split = Path(shared, SPLIT_FILE)
        if has_same_examples(changed.task, recipe.task) and task.save_split(split):
            own.load_split(split)
        task.save_files(Path(shared))
        own.load_files(Path(shared))
        if cache is not None:
            own.use_cache(cache)
        found = own.load(model_data_config=model_data_config(changed))
    if dict(found.model_args) != dict(data.model_args):
        raise ConfigError(f"stages.{stage.name}.task: requires a different model; override only fields that keep it")
    if found.facts.get("classes") != data.facts.get("classes"):
        raise ConfigError(f"stages.{stage.name}.task: its classes differ from the run's; use data of the same classes")
    fitted = fit_batch(size, epoch_length(found.train, seed=recipe.seed), parts=order.accumulate * order.world)
    if fitted != size and not order.own_batches:
        size, stage = fitted, replace(stage, batch_size=fitted)
        changed = stage_recipe(recipe, stage)
    order = replace(order, split=found.train, batch_size=size, size_field=name)
    return StageContext(stage=stage, recipe=changed, task=own, order=order)


def build_training(
    recipe: Recipe,
    task: Task,
    data: TaskData,
    accelerator: Accelerator,
    *,
    order: TrainOrder,
    teacher: Teacher | None,
    load_weights: bool,
) -> tuple[Update, Start]:
    """Build the grafted model with everything that trains it; return its `Update` and `Start`.

    Use `load_weights=False` if the model is then filled from a checkpoint, or only profiled.

    Raises:
        ConfigError: part of the recipe does not fit the host or the processes.
    """
    core, start = build_initial_model(recipe, data.model_args, load_weights=load_weights, facts=data.facts)
    core = core.to(accelerator.device)
    if recipe.train.channels_last:
        core = core.to(memory_format=torch.channels_last)
    if accelerator.distributed_type == DistributedType.FSDP:
        _refuse_unshardable(recipe, task, core)
    ema = create_ema(core, recipe)
    parts = task.parts(core)
    optimizer = create_optimizer(core, recipe, parts)
    freezing = FreezingSchedule(core, recipe, parts)
    if recipe.train.compile:
        core.compile()
    model, prepared = accelerator.prepare(core, optimizer)
    if accelerator.scaler is None:  # without a scaler, the wrapper only slows down each step
        prepared = prepared.optimizer
    state = TrainState(
        accelerator=accelerator, model=model, optimizer=prepared, ema=ema, counters=Counters(), freezing=freezing
    )
    update = Update(recipe, task, state=state, core=core, order=order, teacher=teacher)
    return update, start


def _refuse_other_data(accelerator: Accelerator, data: TaskData) -> None:
    """Check that all processes found the same data; otherwise their batches would not form one batch."""
    if accelerator.num_processes > 1:
        found = gather_object([json.dumps(data.facts, sort_keys=True, default=str)])
        if len(set(found)) > 1:
            raise DataError(
                "the processes of this run found different data (perhaps one of them could not read some files); run "
                "attngraft data check on each machine, and rerun the command"
            )


def _log_start(recipe: Recipe, start: Start) -> None:
    if start.origin:
        log.info("starts from %s", start.origin)
    elif recipe.host.name.startswith("hf:"):
        log.warning("the host starts from random values; --pretrained loads the weights of %s", recipe.host.name)
    elif recipe.train.parameters != "all":
        log.warning(
            "the host starts from random values, and train.parameters=%s leaves most of them untrained; give initial "
            "weights (--pretrained, --weights FILE)",
            recipe.train.parameters,
        )


def _refuse_unshardable(recipe: Recipe, task: Task, core: nn.Module) -> None:
    if task.needs_unwrapped(core):
        raise ConfigError(
            f"task {task.name}: calls this model without FSDP's wrapper, which its sharded weights require; launch without "
            "--use_fsdp to use DDP"
        )
    if recipe.train.ema is not None:
        raise ConfigError(
            "train.ema: FSDP does not support moving averages of sharded weights; set it to null, or use DDP"
        )
    if recipe.train.first is not None:
        raise ConfigError("train.first: FSDP cannot freeze sharded weights temporarily; set it to null, or use DDP")
    if recipe.stages:
        raise ConfigError("stages: FSDP cannot freeze sharded weights temporarily; remove them, or use DDP")
    if recipe.optimizer.weight_decay and unused_parts(core):
        raise ConfigError(
            f"graft {recipe.graft}: leaves rows of the host's weights unused, and FSDP cannot exempt rows of sharded "
            "weights from decay; use --set optimizer.weight_decay=0, or use DDP"
        )


def _write_facts(recipe: Recipe, folder: RunFolder, update: Update, data: TaskData, *, cut: Cut) -> None:
    """Write recipe, data and environment. Environments of resumed runs are appended to the first one."""
    accelerator = update.state.accelerator
    processes = accelerator.num_processes
    current = environment(accelerator.device, processes=processes)
    if folder.recipe.exists() and folder.environment.exists():
        first = read_json(folder.environment)
        # the last digits of a result may depend on these
        compared = ("packages", "threads", "device_name", "processes")
        changed = [name for name in compared if first.get(name) != current[name]]
        if changed:
            log.warning(
                "%s: %s changed since the run began; results may differ in the last digits",
                folder.path,
                ", ".join(changed),
            )
        current = first | {"resumed": [*first.get("resumed", []), current]}
    seen = batch_norm_examples(update.core, recipe, processes=processes)
    if seen is not None:
        log.warning(
            "%s: batch norms compute mean and variance over %d of the %d examples of an update (train.accumulate=%d, "
            "%d process%s); results differ from those with accumulate=1 in one process",
            folder.path,
            seen,
            recipe.train.batch_size,
            recipe.train.accumulate,
            processes,
            "" if processes == 1 else "es",
        )
        current = current | {"batch_norm_examples": seen}
    write_json(folder.environment, current)
    judged_split: JudgedSplit = "val" if data.test is None else "test"
    folder.write_data(
        model_args=data.model_args,
        facts=data.facts,
        judged_split=judged_split,
        paths=real_paths(recipe_to_dict(recipe)),
        cut=cut,
    )
    folder.write_recipe(recipe)
