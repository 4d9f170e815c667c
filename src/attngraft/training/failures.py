"""Explanations of training failures: non-finite losses, exhausted memory, dead loading processes.

If a batch does not fit into memory, smaller ones are tried, and the error (or `train.auto_batch`) names the largest that
fits. An update's batch can be cut into more micro-batches (`train.accumulate`), which does not change the update: same
examples, same learning rate; only batch norms then normalize over fewer examples. An evaluation's batch can be smaller
(`train.eval_batch_size`).
"""

import math
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from accelerate.utils import send_to_device
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from attngraft.errors import TrainingError
from attngraft.suggest import shortened
from attngraft.training.freezing import train_mode, trained_batch_norms
from attngraft.training.inputs import in_memory_format
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import write_json
from attngraft.training.setup import RunContext

_SHOWN = 8  #: maximum number of examples and parameters in the message; failure.json lists all

#: out-of-memory messages on CPUs that accelerate does not recognize (the second is oneDNN's, for any failure)
_CPU_MESSAGES = ("std::bad_alloc", "could not create a primitive")

Phase = Literal["update", "evaluation", "evaluation of the teacher"]


def raise_not_finite(run: RunContext, losses: dict[str, float]) -> NoReturn:
    """Raise an error that names the step, the examples of its batch and the gradient norms.

    Must be called before the optimizer step, so that the weights are still finite. The full report is in failure.json.
    Under FSDP the norms are computed over this process's shards.

    Raises:
        TrainingError: always.
    """
    counters, accelerator = run.state.counters, run.accelerator
    accelerator.unscale_gradients()
    norms = {
        name: float(parameter.grad.norm())
        for name, parameter in run.update.core.named_parameters()
        if parameter.grad is not None
    }
    order = run.update.order
    batches = order.micro_batches(counters.epoch, counters.step)
    examples = [order.split.name(index) for keys in batches for _, index in keys]
    suffix = "" if accelerator.is_main_process else f"-{accelerator.process_index}"
    path = run.folder.path / f"failure{suffix}.json"
    report: dict[str, Any] = {
        "epoch": counters.epoch + 1,
        "step": counters.step + 1,
        "losses": {name: str(value) for name, value in losses.items()},
        "examples": examples,
        "gradient_norms": {name: str(norm) for name, norm in norms.items()},
    }
    write_json(path, report)
    values = ", ".join(f"{name} {value}" for name, value in losses.items())
    # NaN first, then infinite, then the largest
    worst = sorted(norms.items(), key=lambda item: (item[1] == item[1], -item[1] if item[1] == item[1] else 0.0))
    raise TrainingError(
        f"the loss is not finite in epoch {counters.epoch + 1}, step {counters.step + 1} ({values}).\n"
        f"  batch: {shortened(examples, _SHOWN)}\n"
        f"  gradient norms: {shortened([f'{name} {norm:.3g}' for name, norm in worst], _SHOWN)}\n"
        f"  full report: {path}\n"
        "The last checkpoint is from before this step and intact. A lower optimizer.lr, train.clip_grad=1, a longer warm-up "
        f"or another train.amp (now {run.recipe.train.amp}) may help; if the named examples are broken, remove them."
    )


class OutOfMemory(TrainingError):
    """Error for a batch that does not fit into memory.

    `fits` maps fields of the recipe's `train` to values that fit, if any is known.
    """

    def __init__(self, message: str, fits: Mapping[str, int]) -> None:
        super().__init__(message)
        self.fits = dict(fits)

    def fitting(self, recipe: Recipe) -> Recipe:
        """Return `recipe` with the sizes that fit."""
        accumulate = self.fits.get("accumulate", recipe.train.accumulate)
        evaluated = self.fits.get("eval_batch_size", recipe.train.eval_batch_size)
        return replace(recipe, train=replace(recipe.train, accumulate=accumulate, eval_batch_size=evaluated))


@contextmanager
def memory_explained(run: RunContext, phase: Phase) -> Iterator[None]:
    """Convert an out-of-memory error to an `OutOfMemory`, after searching for a size that fits.

    The search does not change weights or optimizer. Distributed runs skip it, because the other processes wait in the
    middle of an update.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # frees the tensors that the frames reference
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        run.state.optimizer.zero_grad()
        alone = run.accelerator.num_processes == 1 and not (phase == "update" and run.update.order.own_batches)
        fits = _largest_that_fits(run, phase) if alone else None
        raise _explained(run, phase, reason, fits, tried=alone) from None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` is an out-of-memory error of a device or this machine."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _CPU_MESSAGES):
        return True
    return isinstance(error, Exception) and should_reduce_batch_size(error)


def _batch_size(run: RunContext, phase: Phase) -> int:
    """Return the number of examples in one forward pass."""
    train, counters, order = run.recipe.train, run.state.counters, run.update.order
    if phase != "update":
        return train.eval_batch_size or train.batch_size // train.accumulate
    if order.own_batches:
        return max(map(len, order.micro_batches(counters.epoch, counters.step)))
    return order.batch_size // train.accumulate


def _largest_that_fits(run: RunContext, phase: Phase) -> int | None:
    """Return the largest micro-batch, or halved evaluation batch, that fits; None if none fits."""
    if phase == "update":
        batch = run.update.order.batch_size
        common = math.gcd(*(context.order.batch_size for context in run.stages))  # all stages share train.accumulate
        counts = range(run.recipe.train.accumulate + 1, common + 1)
        sizes = [batch // count for count in counts if common % count == 0]
    else:
        size = _batch_size(run, phase)
        sizes = [size >> power for power in range(1, size.bit_length())]
    for size in sizes:
        clear_device_cache(garbage_collection=True)
        try:
            _try_update(run, size) if phase == "update" else _try_evaluation(run, phase, size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)
        else:
            return size
        finally:
            run.state.optimizer.zero_grad()
    return None


def _try_update(run: RunContext, size: int) -> None:
    counters, order = run.state.counters, run.update.order
    step = min(counters.step, order.steps_of(counters.epoch) - 1)
    keys = order.micro_batches(counters.epoch, step)[0][:size]
    batch = order.split.collate([order.split[key] for key in keys])
    train_mode(run.state.model)
    for _ in range(2):  # from the second micro-batch on, gradients use memory too
        total, _ = run.update.losses(batch, epoch=counters.epoch, step=0)
        run.accelerator.backward(total)


@torch.no_grad()
def _try_evaluation(run: RunContext, phase: Phase, size: int) -> None:
    split = run.data.val
    batch = split.collate([split[0, index] for index in range(min(size, len(split)))])
    batch = send_to_device(batch, run.accelerator.device)
    with run.accelerator.autocast():
        if phase == "evaluation of the teacher" and run.teacher is not None:
            run.task.predict(run.teacher(batch), batch)
            return
        run.state.model.eval()
        run.task.infer(in_memory_format(run.state.model, channels_last=run.recipe.train.channels_last), batch)


def _explained(run: RunContext, phase: Phase, reason: str, size: int | None, *, tried: bool) -> OutOfMemory:
    train = run.recipe.train
    batch = "a micro-batch" if phase == "update" and train.accumulate > 1 else "a batch"
    examples = _batch_size(run, phase)
    plural = "" if examples == 1 else "s"
    begin = (
        f"{run.folder.path}: {batch} of {examples} example{plural} does not fit into memory in an {phase} ({reason}). "
    )
    saved = " The last checkpoint is intact"
    if not tried:
        field = f"train.accumulate={2 * train.accumulate}" if phase == "update" else "a smaller train.eval_batch_size"
        why = "With several processes" if run.accelerator.num_processes > 1 else "For a task that forms its own batches"
        return OutOfMemory(
            f"{begin}{why}, attngraft does not search for a size that fits: try {field}, or more.{saved}",
            {},
        )
    if size is None:
        smaller = "use a smaller input or host, train.amp=bf16, or another device"
        return OutOfMemory(f"{begin}Not even one example fits: {smaller}.{saved}", {})
    fits = {"accumulate": run.update.order.batch_size // size} if phase == "update" else {"eval_batch_size": size}
    field = " ".join(f"train.{name}={value}" for name, value in fits.items())
    effect = ", which does not change updates" if phase == "update" else ""
    if effect and trained_batch_norms(run.update.core):
        effect += " except for batch norms, which then normalize over fewer examples"
    remedy = f"{size} fit: use --set {field}{effect}, or --auto-batch, which finds the size by itself"
    if run.folder.has_saved:  # the recipe can no longer change, except for sizes chosen by --auto-batch
        remedy = f"{size} fit ({field}{effect}): rerun the command with --auto-batch to resume with this size"
    return OutOfMemory(f"{begin}{remedy}.{saved}", fits)


@contextmanager
def workers_explained(folder: Path, *, workers: int) -> Iterator[None]:
    """Convert the error for a dead loading process to an error with cause and remedy.

    Torch raises the error from a signal handler, so any statement of the block may raise it.

    Raises:
        TrainingError: a loading process was killed, or crashed.
    """
    try:
        yield
    except RuntimeError as error:
        found = re.search(r"DataLoader worker \(pid.*?\) (is killed by signal: [^.]*|exited unexpectedly)", str(error))
        if found is None:
            raise
        if "Bus error" in found[1]:
            cause = "shared memory is used up (df -h /dev/shm; in a container, raise --shm-size)"
        elif "exited" in found[1] or "Killed" in found[1]:
            cause = "memory ran out, and the system killed a process (see dmesg)"
        else:
            cause = "a library that reads the data crashed"
        fewer = f"{workers // 2}" if workers > 1 else "0, which loads in the training process itself"
        raise TrainingError(
            f"{folder}: a process that loads data died ({found[0]}). Likely cause: {cause}. Rerun the command to "
            f"resume from the last checkpoint; if it happens again, load with fewer processes (now {workers}): "
            f"--set train.workers={fewer}. This does not change results"
        ) from error
