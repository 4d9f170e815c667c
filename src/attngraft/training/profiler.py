"""One variant set up to make real training steps and evaluation batches, apart from any run, to be timed and measured.

Everything is built as a run builds it (task, data, host, graft, optimizer), and on the device that a run would use. The
global random state is left alone, and so are run folders.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import nn

from attngraft.tasks.seeding import seeded
from attngraft.tasks.task import Batch, Task, TaskData
from attngraft.timing.storages import LiveStorages
from attngraft.training.build import build_model, build_task, model_data_config
from attngraft.training.freezing import train_mode
from attngraft.training.inputs import model_inputs
from attngraft.training.loading import EvalOrder, TrainOrder
from attngraft.training.optimizer import create_ema, create_optimizer
from attngraft.training.recipe import Recipe
from attngraft.training.teacher import Teacher, create_teacher, step_losses


@dataclass(frozen=True, kw_only=True)
class Material:
    """What all variants work on: the task, its data, a training micro-batch and an evaluation batch."""

    task: Task
    data: TaskData
    batch: Batch
    eval_batch: Batch
    steps_per_epoch: int
    eval_batches: int
    load_seconds: float  #: to load one update's examples, in one process
    teacher: Teacher | None = None  #: of all variants; part of every training step


def load_benchmark_batch(recipe: Recipe, *, split: Path | None = None) -> Material:
    """Open the data as a run would; `split` is where an earlier start kept what was drawn (`Task.save_split`).

    Raises:
        DataError, ConfigError: as a run would.
    """
    with _apart(recipe):
        task = build_task(recipe)
        if split is not None:
            task.load_split(split)
        data = task.load(model_data_config=model_data_config(recipe))
        teacher = create_teacher(recipe, task, data, device=run_device())
        order = TrainOrder(
            split=data.train,
            seed=recipe.seed,
            batch_size=recipe.train.batch_size,
            accumulate=recipe.train.accumulate,
        )
        micro = recipe.train.batch_size // recipe.train.accumulate
        evaluation = list(EvalOrder(length=len(data.val), batch_size=recipe.train.eval_batch_size or micro))
        seconds = []
        for step in range(min(3, order.steps)):  # the first also opens files and fills caches
            start = time.perf_counter()
            batches = [data.train.collate([data.train[key] for key in keys]) for keys in order.micro_batches(0, step)]
            seconds.append(time.perf_counter() - start)
        eval_batch = data.val.collate([data.val[key] for key in evaluation[0]])
    return Material(
        task=task,
        data=data,
        batch=batches[0],
        eval_batch=eval_batch,
        steps_per_epoch=order.steps,
        eval_batches=len(evaluation),
        load_seconds=min(seconds),
        teacher=teacher,
    )


class Profiler:
    """A model of `recipe` with its optimizer; `train_step` and `evaluate_batch` repeat the material's batches."""

    def __init__(self, recipe: Recipe, material: Material) -> None:
        self.recipe, self.material, self.device = recipe, material, run_device()
        with _apart(recipe):
            model = build_model(recipe, material.data.model_args, weights=False)
            layout = torch.channels_last if recipe.train.channels_last else torch.preserve_format
            self.model: nn.Module = model.to(self.device, memory_format=layout)  # type: ignore[call-overload]
            self.optimizer = create_optimizer(self.model, recipe)
        self._ema = create_ema(self.model, recipe)
        self._call: Callable[..., Any] = torch.compile(self.model) if recipe.train.compile else self.model
        self._batch, self._eval_batch = (send_to_device(b, self.device) for b in (material.batch, material.eval_batch))
        self._amp = {"no": None, "fp16": torch.float16, "bf16": torch.bfloat16}[recipe.train.amp]

    def train_step(self) -> None:
        """One update: forward (the teacher's, too), loss and backward for each micro-batch, then the optimizer."""
        task, train, teacher = self.material.task, self.recipe.train, self.material.teacher
        with _apart(self.recipe):
            train_mode(self.model)
            for _ in range(train.accumulate):
                batch = task.prepare(self._batch, epoch=0, step=0)
                with self._precision():
                    taught = None if teacher is None else teacher(batch)
                    args, kwargs = model_inputs(task, batch, channels_last=train.channels_last)
                    outputs = self._call(*args, **kwargs)
                    loss = step_losses(task, outputs, batch, teacher=teacher, taught=taught)["loss"]
                (loss / train.accumulate).backward()
            if train.clip_grad is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), train.clip_grad)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self._ema is not None:
                self._ema.update(self.model)

    @torch.inference_mode()
    def evaluate_batch(self) -> None:
        """One forward pass in evaluation mode."""
        self.model.eval()
        task, train = self.material.task, self.recipe.train
        args, kwargs = model_inputs(task, self._eval_batch, channels_last=train.channels_last)
        with self._precision():
            self._call(*args, **kwargs)

    def state_bytes(self) -> int:
        """Bytes that stay between steps: parameters, buffers, optimizer state, moving average, teacher, the batch."""
        tensors = [*self.model.parameters(), *self.model.buffers(), *_tensors(self._batch)]
        tensors += [value for state in self.optimizer.state.values() for value in _tensors(state)]
        if self._ema is not None:
            tensors += [*self._ema.parameters(), *self._ema.buffers()]
        if (teacher := self.material.teacher) is not None:
            tensors += [*teacher.model.parameters(), *teacher.model.buffers()]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
        return sum(storages.values())

    def _precision(self) -> Any:
        return nullcontext() if self._amp is None else torch.autocast(self.device.type, dtype=self._amp)


def run_device() -> torch.device:
    """The device that a run trains on: this process's accelerator, else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def synchronizer(device: torch.device) -> Callable[[], object] | None:
    """What waits for `device`, for whoever reads a clock; None on CPU."""
    return None if device.type == "cpu" else torch.accelerator.synchronize


@contextmanager
def threads_of(recipe: Recipe) -> Iterator[None]:
    """As many CPU threads as the recipe's runs use, then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(recipe.train.threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _apart(recipe: Recipe) -> Any:
    """A random stream of its own, so that what happens on a workbench changes nothing outside."""
    return seeded("workbench", recipe.seed)


def _tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in a nest."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def peak_memory(bench: Profiler) -> int:
    """Bytes at the peak of one training step: parameters, optimizer state, gradients, activations and the batch."""
    bench.train_step()  # makes the optimizer's state, which later steps have from the start
    state = bench.state_bytes()
    if bench.device.type == "cpu":
        with LiveStorages() as storages:
            bench.train_step()
        return state + storages.peak
    torch.accelerator.synchronize()
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    bench.train_step()
    torch.accelerator.synchronize()
    return state + torch.accelerator.max_memory_allocated() - before
