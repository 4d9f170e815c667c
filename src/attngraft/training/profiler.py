"""Profiling of one variant: time and memory of real updates and evaluation batches outside of any run.

Task, data, model and update are built as in a run, on the device that a run would use. The CPU's random state and run
folders are not changed.
"""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from torch import nn

from attngraft.devices import accelerator_device
from attngraft.errors import DataError
from attngraft.results.records import Records, RecordTable
from attngraft.tasks.seeding import seeded
from attngraft.tasks.task import FITTED_FOLDER, SPLIT_FILE, Task
from attngraft.timing.memory import peak_bytes
from attngraft.training.build import build_task, model_data_config
from attngraft.training.freezing import train_mode
from attngraft.training.inputs import in_memory_format
from attngraft.training.loading import EvalOrder, train_order
from attngraft.training.recipe import Recipe
from attngraft.training.setup import build_training, create_accelerator
from attngraft.training.sizes import fit_sizes
from attngraft.training.teacher import create_teacher


class BenchmarkBatch:
    """Task, data, teacher, a training micro-batch and an evaluation batch, shared by all variants.

    The data are opened as in a run. `folder` is a run or study whose random split (`Task.save_split`) and, if `fitted`,
    fitted objects (`Task.save_files`) are used. Without `folder`, data that no new run accepts are refused.

    Raises:
        DataError, ConfigError: as in a run.
    """

    def __init__(self, recipe: Recipe, *, folder: Path | None = None, fitted: bool = True) -> None:
        self.recipe, self._folder = recipe, folder
        with _separate_stream(recipe):
            self.task = build_task(recipe)
            if folder is not None:
                self.task.load_split(folder / SPLIT_FILE)
                if fitted:
                    self.task.load_files(folder / FITTED_FOLDER)
            self.input = model_data_config(recipe)
            self.data = self.task.load(model_data_config=self.input)
            if self.data.refusal and folder is None:
                raise DataError(self.data.refusal)
            self.teacher = create_teacher(recipe, self.task, self.data, device=run_device())
            examples, validation = self.data.train, self.data.val
            fitted_recipe = fit_sizes(recipe, examples)
            train, order = fitted_recipe.train, train_order(fitted_recipe, examples)
            size = train.eval_batch_size or train.batch_size // train.accumulate
            evaluation = list(EvalOrder(length=len(validation), batch_size=size))
            seconds = []
            for step in range(min(3, order.steps)):  # the first step also opens files and fills caches
                start = time.perf_counter()
                batches = [examples.collate([examples[key] for key in keys]) for keys in order.micro_batches(0, step)]
                seconds.append(time.perf_counter() - start)
            self.batch = batches[0]
            self.eval_batch = validation.collate([validation[key] for key in evaluation[0]])
        self.eval_names = np.array([validation.name(index) for _, index in evaluation[0]])
        self.order, self.steps_per_epoch, self.eval_batches = order, order.steps, len(evaluation)
        self.load_seconds = min(seconds)  # seconds to load one update's examples in one process

    def for_recipe(self, recipe: Recipe) -> "BenchmarkBatch":
        """Return self, or a new benchmark if the task, teacher, batch size or text input of `recipe` differs."""
        sizes = [(r.train.batch_size, r.train.accumulate, r.train.eval_batch_size) for r in (recipe, self.recipe)]
        same_input = True
        if self.input.get("kind", "images") != "images" and recipe.host != self.recipe.host:
            with _separate_stream(recipe):
                same_input = model_data_config(recipe) == self.input
        same = (recipe.task, recipe.distill, sizes[0]) == (self.recipe.task, self.recipe.distill, sizes[1])
        return self if same and same_input else BenchmarkBatch(recipe, folder=self._folder, fitted=same_input)


class Profiler:
    """A model with its optimizer; `train_step` and `evaluate_batch` repeat the benchmark's batches."""

    def __init__(self, recipe: Recipe, benchmark: BenchmarkBatch) -> None:
        recipe = fit_sizes(recipe, benchmark.data.train)
        self.recipe, self.benchmark = recipe, benchmark
        accelerator = create_accelerator(recipe)
        self.device = accelerator.device
        with _separate_stream(recipe):
            self._update, _ = build_training(
                recipe,
                benchmark.task,
                benchmark.data,
                accelerator,
                order=benchmark.order,
                teacher=benchmark.teacher,
                load_weights=False,
            )
        self.model = self._update.core
        self._batch = send_to_device(benchmark.batch, self.device)
        self._eval_batch = send_to_device(benchmark.eval_batch, self.device)

    def train_step(self) -> None:
        """Perform one update, as the training loop does."""
        with _separate_stream(self.recipe):
            train_mode(self._update.state.model)
            batches = [self._batch] * self.recipe.train.accumulate
            self._update.accumulate_gradients(batches, epoch=0, step=0)
            self._update.apply(epoch=0, step=0)

    @torch.inference_mode()
    def evaluate_batch(self) -> None:
        """Run inference on a batch: one forward pass, unless the task infers differently (generation, tiling)."""
        task = self.benchmark.task
        if type(task).infer is not Task.infer:
            self._infer()
            return
        args, kwargs = task.to_model(self._eval_batch)
        model = self._eval_model()
        with self._update.state.accelerator.autocast():
            model(*args, **kwargs)

    @torch.inference_mode()
    def units(self) -> str:
        """Return the `Measured.comparable` of the primary metric, from the evaluation batch; empty without an entry."""
        benchmark, task = self.benchmark, self.benchmark.task
        if type(task).measure is Task.measure:
            return ""
        with _separate_stream(self.recipe), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some metrics are undefined if a class is missing in the batch
            table = RecordTable(names=benchmark.eval_names, columns=self._infer().statistics)
            return task.measure(table, benchmark.data.facts).comparable.get(task.primary, "")

    def _infer(self) -> Records:
        model = self._eval_model()
        with self._update.state.accelerator.autocast():
            return self.benchmark.task.infer(model, self._eval_batch, full=False)

    def _eval_model(self) -> nn.Module:
        model = self._update.state.model.eval()
        return in_memory_format(model, channels_last=self.recipe.train.channels_last)

    def _state(self) -> list[torch.Tensor]:
        """Return what is kept between steps: model, optimizer state, moving average, teacher, batch."""
        state, teacher = self._update.state, self.benchmark.teacher
        tensors = [*self.model.parameters(), *self.model.buffers(), *_tensors(self._batch)]
        tensors += [value for values in state.optimizer.state.values() for value in _tensors(values)]
        if state.ema is not None:
            tensors += [*state.ema.parameters(), *state.ema.buffers()]
        if teacher is not None:
            tensors += [*teacher.model.parameters(), *teacher.model.buffers()]
        return tensors

    def peak_memory(self) -> int:
        """Return the peak memory of an update in bytes, including model, optimizer state and batch."""
        if not self._update.state.optimizer.state:
            self.train_step()  # creates the optimizer's state, which exists in all later steps
        return peak_bytes(self.train_step, self.device, kept=self._state())


def run_device() -> torch.device:
    """Return the device that a run trains on: this process's accelerator, else the CPU."""
    return accelerator_device() or torch.device("cpu")


def synchronizer(device: torch.device) -> Callable[[], object] | None:
    """Return a function that waits for `device`, for timing; None on CPU."""
    return None if device.type == "cpu" else torch.accelerator.synchronize


def _separate_stream(recipe: Recipe) -> Any:
    """Return a separate random stream, so that profiling does not affect other random draws."""
    return seeded("workbench", recipe.seed)


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return all tensors in a nested structure."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []
