"""What is done where a batch does not fit into memory: find out what would fit, and say it or use it.

An update's batch can be cut into more micro-batches (`train.accumulate`), which leaves the update as it is: same
examples, same learning rate. Only batch norms then see fewer examples at a time. An evaluation's batch can be made
smaller (`train.eval_batch_size`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import torch
from accelerate.utils import send_to_device
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size

from attngraft.errors import TrainingError
from attngraft.tasks.task import Batch
from attngraft.training.batch_norms import trained_batch_norms
from attngraft.training.forward import losses_of
from attngraft.training.inputs import model_inputs
from attngraft.training.recipe import Recipe
from attngraft.training.setup import Job

#: how libraries that compute on a CPU say it besides what Accelerate knows; oneDNN says no more than that
_ON_A_CPU = ("std::bad_alloc", "could not create a primitive")

Phase = Literal["update", "evaluation", "evaluation of the teacher"]


class OutOfMemory(TrainingError):
    """A batch does not fit; `fits` are the fields of the recipe's `train` with which it does, empty if none do."""

    def __init__(self, message: str, fits: Mapping[str, int]) -> None:
        super().__init__(message)
        self.fits = dict(fits)

    def fitting(self, recipe: Recipe) -> Recipe:
        """`recipe` with what fits."""
        accumulate = self.fits.get("accumulate", recipe.train.accumulate)
        evaluated = self.fits.get("eval_batch_size", recipe.train.eval_batch_size)
        return replace(recipe, train=replace(recipe.train, accumulate=accumulate, eval_batch_size=evaluated))


@contextmanager
def memory_explained(job: Job, phase: Phase) -> Iterator[None]:
    """Turn a lack of memory in the block into an `OutOfMemory`, after trying what would fit.

    Trying leaves weights and optimizer as they are. Processes of a distributed run do not try: the others wait in the
    middle of an update.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold the tensors that fill the memory
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        job.learner.optimizer.zero_grad()
        alone = job.accelerator.num_processes == 1
        sizes = _micro_batches(job) if phase == "update" else _halves(_evaluation_batch(job))
        tries = {"update": _update_fits, "evaluation": _evaluation_fits}.get(phase, _evaluation_of_the_teacher_fits)
        found = _first_that_fits(job, sizes, tries) if alone else None
        raise _in_words(job, phase, said, found, tried=alone) from None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that a device's or this machine's memory is used up."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _ON_A_CPU):
        return True
    return isinstance(error, Exception) and should_reduce_batch_size(error)


def _micro_batches(job: Job) -> list[int]:
    """Sizes of micro-batches smaller than the present one into which the batch can be cut, the largest first."""
    train = job.recipe.train
    parts = range(train.accumulate + 1, train.batch_size + 1)
    return [train.batch_size // count for count in parts if train.batch_size % count == 0]


def _evaluation_batch(job: Job) -> int:
    train = job.recipe.train
    return train.eval_batch_size or train.batch_size // train.accumulate


def _halves(size: int) -> list[int]:
    sizes = []
    while size > 1:
        size //= 2
        sizes.append(size)
    return sizes


def _first_that_fits(job: Job, sizes: list[int], tries: Callable[[Job, int], None]) -> int | None:
    for size in sizes:
        clear_device_cache(garbage_collection=True)
        try:
            tries(job, size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            traceback.clear_frames(error.__traceback__)
        else:
            return size
        finally:
            job.learner.optimizer.zero_grad()
    return None


def _update_fits(job: Job, size: int) -> None:
    counters, split = job.learner.counters, job.data.train
    parts = job.order.micro_batches(counters.epoch, min(counters.step, job.order.steps - 1))
    batch = split.collate([split[key] for key in parts[0][:size]])
    job.learner.model.train()
    for _ in range(2):  # all but the first micro-batch have the gradients of those before beside them
        job.accelerator.backward(losses_of(job, batch, epoch=counters.epoch, step=0)["loss"])


@torch.no_grad()
def _evaluation_fits(job: Job, size: int) -> None:
    job.learner.model.eval()
    batch = _evaluated(job, size)
    args, kwargs = model_inputs(job.task, batch, channels_last=job.recipe.train.channels_last)
    with job.accelerator.autocast():
        job.task.predict(job.learner.model(*args, **kwargs), batch)


def _evaluation_of_the_teacher_fits(job: Job, size: int) -> None:
    batch = _evaluated(job, size)
    if job.teacher is not None:
        with job.accelerator.autocast():
            job.task.predict(job.teacher(batch), batch)


def _evaluated(job: Job, size: int) -> Batch:
    split = job.data.val
    batch: Batch = split.collate([split[0, index] for index in range(min(size, len(split)))])
    return send_to_device(batch, job.accelerator.device)


def _in_words(job: Job, phase: Phase, said: str, size: int | None, *, tried: bool) -> OutOfMemory:
    train = job.recipe.train
    now = train.batch_size // train.accumulate if phase == "update" else _evaluation_batch(job)
    what = "a micro-batch" if phase == "update" and train.accumulate > 1 else "a batch"
    examples = f"{now} example{'' if now == 1 else 's'}"
    begin = f"{job.run.path}: {what} of {examples} does not fit into memory in an {phase} ({said}). "
    saved = " What was saved is whole"
    if not tried:
        field = f"train.accumulate={2 * train.accumulate}" if phase == "update" else "a smaller train.eval_batch_size"
        return OutOfMemory(f"{begin}Several processes do not try out what fits: use {field}, or more.{saved}", {})
    if size is None:
        smaller = "use a smaller input or host, train.amp=bf16, or another device"
        return OutOfMemory(f"{begin}Not even one example fits: {smaller}.{saved}", {})
    fits = {"accumulate": train.batch_size // size} if phase == "update" else {"eval_batch_size": size}
    field = " ".join(f"train.{name}={value}" for name, value in fits.items())
    same = ", which leaves updates as they are" if phase == "update" else ""
    if same and trained_batch_norms(job.core):
        same += " but for batch norms, which then see fewer examples at a time"
    remedy = f"{size} fit: use --set {field}{same}, or --auto-batch, which finds it"
    if job.run.has_saved:  # and keeps its recipe but for what it chooses by itself
        remedy = f"{size} fit ({field}{same}): repeat the command with --auto-batch, which goes on with that"
    return OutOfMemory(f"{begin}{remedy}.{saved}", fits)
