"""One micro-batch through the model: what an update repeats, and what is tried out where memory ran short."""

from __future__ import annotations

from accelerate.utils import send_to_device
from torch import Tensor

from attngraft.tasks.task import Batch
from attngraft.training.inputs import model_inputs
from attngraft.training.setup import Job
from attngraft.training.teacher import step_losses


def losses_of(job: Job, batch: Batch, *, epoch: int, step: int) -> dict[str, Tensor]:
    """The losses of a training micro-batch, ready for the backward pass; `step` counts micro-batches."""
    if job.accelerator.device.type != "cpu":
        batch = send_to_device(batch, job.accelerator.device, non_blocking=True)
    batch = job.task.prepare(batch, epoch=epoch, step=step)
    taught = None
    if job.teacher is not None:  # first, while nothing of the student's pass takes memory
        with job.accelerator.autocast():
            taught = job.teacher(batch)
    args, kwargs = model_inputs(job.task, batch, channels_last=job.recipe.train.channels_last)
    outputs = job.learner.model(*args, **kwargs)
    with job.accelerator.autocast():
        return step_losses(job.task, outputs, batch, teacher=job.teacher, taught=taught)
