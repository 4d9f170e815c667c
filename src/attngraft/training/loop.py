"""The training loop.

Notable: every update starts the random generators afresh from (seed, epoch, step, process), so nothing but weights,
optimizer and counters has to be saved to go on exactly where a run stopped. The loss is known before the optimizer
moves, so a loss that is not finite leaves good weights behind. Launched by `accelerate launch` or `torchrun`, the same
loop trains on many devices: `batch_size` is shared among them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, reduce

from attngraft.errors import TrainingError
from attngraft.files import remove_leftovers
from attngraft.tasks.task import Evaluation
from attngraft.training.checkpoint import model_state, restore, save, save_weights
from attngraft.training.diagnosis import raise_not_finite
from attngraft.training.evaluate import SplitEvaluator
from attngraft.training.forward import losses_of
from attngraft.training.freezing import train_mode
from attngraft.training.journal import Journal
from attngraft.training.loading import train_batches, workers_explained
from attngraft.training.lock import locked
from attngraft.training.losses import Losses, all_finite
from attngraft.training.optimizer import learning_rate
from attngraft.training.out_of_memory import OutOfMemory, memory_explained
from attngraft.training.progress import LogLines, Progress, Silent
from attngraft.training.randomness import reseed, stream_seed
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import Metrics, RunFolder, RunRecord, read_run, write_json
from attngraft.training.setup import Job, create_accelerator, prepare
from attngraft.training.start import record_start, record_teacher
from attngraft.training.stopping import Interrupted, StoppedWaiting, StopSignal

T = TypeVar("T")

log = logging.getLogger(__name__)


def train(
    recipe: Recipe,
    folder: Path | str,
    *,
    resume: bool = True,
    progress: Progress | None = None,
    stop_after_epoch: int | None = None,
) -> RunRecord:
    """Train the run in `folder`: begin it, go on with it, or return at once where it is finished.

    Args:
        recipe: what to train and how.
        folder: the run's folder; made if need be.
        resume: go on with a run that is there; False refuses such a folder.
        progress: who is told; None logs plain lines.
        stop_after_epoch: leave the run unfinished after this epoch (from 1), its schedule untouched; the same call with
            a later epoch, or without one, goes on.

    Raises:
        ConfigError: the recipe cannot be carried out; nothing was written but an empty folder.
        DataError: the data cannot be used.
        TrainingError: the folder holds a run of another recipe, a run is at work there, or the training failed.
        StorageError: a file could not be written; what was saved before is whole.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; the run was saved and can be resumed.
    """
    run = RunFolder(Path(folder))
    accelerator = create_accelerator(recipe)
    first = accelerator.is_main_process
    told = (progress or LogLines()) if first else Silent()
    if first:
        run.create()
    with locked(run.path) if first else nullcontext(), _threads(recipe.train.threads):
        if first:
            remove_leftovers(run.path)
            recipe = _check_folder(run, recipe, resume=resume)
        recipe = _from_first(recipe)
        left: Recipe | None = None if _from_first(run.finished.exists()) else recipe
        while left is not None:
            left = _carry_out(left, run, accelerator, told, stop_after_epoch=stop_after_epoch)
        return cast(RunRecord, _from_first(read_run(run.path) if first else None))


def _check_folder(run: RunFolder, recipe: Recipe, *, resume: bool) -> Recipe:
    """`recipe`, with what the run in this folder has chosen by itself so far."""
    if not run.recipe.exists():
        return recipe
    if not resume:
        raise TrainingError(f"{run.path}: there is a run in this folder; resume it, or choose another folder")
    run.refuse_other_recipe(recipe)
    run.drop_split_of_other(recipe)
    return run.with_chosen(recipe)


def _carry_out(
    recipe: Recipe, run: RunFolder, accelerator: Accelerator, progress: Progress, *, stop_after_epoch: int | None
) -> Recipe | None:
    """Begin the run or go on with it. Where memory ran short and the recipe may be changed for that: the recipe with
    which it goes on from what is saved."""
    job = prepare(recipe, run, accelerator)
    restore(run, job.learner)
    try:
        with workers_explained(run.path, workers=recipe.train.workers):
            _fit(job, progress, stop_after_epoch=stop_after_epoch)
    except OutOfMemory as error:
        if not (recipe.train.auto_batch and error.fits):
            raise
        log.warning("%s\nGoing on with that", error)
        recipe = error.fitting(recipe)
        run.note_choice(recipe, epoch=job.learner.counters.epoch + 1, step=job.learner.counters.step + 1)
    else:
        return None
    del job
    accelerator.free_memory()
    return recipe


def _fit(job: Job, progress: Progress, *, stop_after_epoch: int | None = None) -> None:
    """All updates and evaluations that are left, or those up to the end of an epoch."""
    counters, epochs = job.learner.counters, job.recipe.schedule.epochs
    steps = job.order.steps
    done = counters.epoch * steps + counters.step
    progress.on_start(epochs * steps, done_steps=done, epochs=epochs, steps_per_epoch=steps)
    journal = Journal(job.run, counters.rows) if job.accelerator.is_main_process else None
    with StopSignal(job.accelerator) as stop:
        trainer = Trainer(job, progress, stop)
        try:
            record_start(job, trainer.evaluate)
            record_teacher(job, trainer.evaluate_teacher)
            while counters.epoch < min(epochs, epochs if stop_after_epoch is None else stop_after_epoch):
                trainer.train_epoch()
                row = trainer.end_epoch()
                if journal is not None:
                    journal.add(row)
                save(job.run, job.learner)
                progress.on_epoch(row)
        finally:
            trainer.send_workers_away()
    if counters.epoch < epochs:
        progress.on_end(finished=False)
        return
    if job.accelerator.is_main_process:
        seconds = sum(row["seconds"] for row in counters.rows)
        write_json(job.run.finished, {"epochs": epochs, "seconds": seconds, "metrics": counters.rows[-1]})
    progress.on_end(finished=True)


class Trainer:
    """One run at work: updates, epochs, evaluations."""

    def __init__(self, job: Job, progress: Progress, stop: StopSignal) -> None:
        self._job, self._progress, self._stop = job, progress, stop
        self._losses = Losses(job.accelerator.device)
        self._evaluate = SplitEvaluator(job.task, job.data.val, job.recipe, job.accelerator)
        counters = job.learner.counters
        self._loader = train_batches(
            job.order,
            epoch=counters.epoch,
            step=counters.step,
            epochs=job.recipe.schedule.epochs,
            workers=job.recipe.train.workers,
            pin=job.accelerator.device.type == "cuda",
        )
        # started here, as a loader's start draws a random number, and updates count on none being drawn by others
        self._batches = stop.while_waiting(iter(self._loader))

    def send_workers_away(self) -> None:
        """End the loading processes now, whatever they are at."""
        self._loader.send_away()
        self._evaluate.send_workers_away()

    def evaluate(self) -> Evaluation | None:
        """Of the weights as they are, on the validation split; None if stopped."""
        with memory_explained(self._job, "evaluation"):
            return self._evaluate(self._job.learner.model, stop=self._stop)

    def evaluate_teacher(self) -> Evaluation | None:
        """Of the run's teacher, on the validation split; None if it has none, or stopped."""
        teacher = self._job.teacher
        if teacher is None:
            return None
        with memory_explained(self._job, "evaluation of the teacher"):
            return self._evaluate(teacher.model, stop=self._stop, inputs=teacher.inputs)

    def train_epoch(self) -> None:
        """The updates that are left of this epoch."""
        job, counters = self._job, self._job.learner.counters
        save_every, steps = job.recipe.train.save_every, job.order.steps
        begun = time.perf_counter() - counters.seconds
        job.learner.stages.enter(counters.epoch)
        train_mode(job.learner.model)
        while counters.step < steps:
            try:
                with memory_explained(job, "update"):
                    losses = self.update()
            except StoppedWaiting:  # nothing has moved since the step before
                self._save_and_stop()
            for name, value in losses.items():
                counters.sums[name] = counters.sums.get(name, 0.0) + value
            counters.step += 1
            counters.seconds = time.perf_counter() - begun
            done = counters.epoch * steps + counters.step
            lr = learning_rate(job.learner.optimizer)
            self._progress.on_step(step=done, epoch=counters.epoch + 1, loss=losses["loss"], lr=lr)
            if self._stop.agreed():
                self._save_and_stop()
            if save_every and done % save_every == 0 and counters.step < steps:
                save(job.run, job.learner)

    def update(self) -> dict[str, float]:
        """One optimizer step on the next batch; its losses."""
        job, learner, train = self._job, self._job.learner, self._job.recipe.train
        epoch, step = learner.counters.epoch, learner.counters.step
        number = epoch * job.order.steps + step
        # all of the update's, before anything moves (running statistics do with each micro-batch): a wait may be ended
        batches = [next(self._batches) for _ in range(train.accumulate)]
        job.schedule.step_update(number)
        seed = stream_seed(job.recipe.seed, "step", epoch, step, job.accelerator.process_index)
        reseed(seed, job.accelerator.device)
        for micro in range(train.accumulate):
            last = micro == train.accumulate - 1
            batch, batches[micro] = batches[micro], None  # to be freed once it is used
            with nullcontext() if last else job.accelerator.no_sync(learner.model):
                self._forward_and_backward(batch, epoch, step * train.accumulate + micro, last=last)
        losses = {name: value / train.accumulate for name, value in self._losses.read().items()}
        if not all_finite(losses):
            raise_not_finite(job, losses)
        if train.clip_grad is not None:
            job.accelerator.clip_grad_norm_(learner.model.parameters(), train.clip_grad)
        learner.optimizer.step()
        learner.optimizer.zero_grad()
        if learner.ema is not None:
            learner.ema.update(job.core, step=number + 1 if train.ema_warmup else None)
        return losses

    def _forward_and_backward(self, batch: Any, epoch: int, step: int, *, last: bool) -> None:
        """The gradients of one micro-batch; `step` counts micro-batches."""
        job, train = self._job, self._job.recipe.train
        losses = losses_of(job, batch, epoch=epoch, step=step)
        self._losses.add(losses, last=last)
        loss = losses["loss"] if train.accumulate == 1 else losses["loss"] / train.accumulate
        job.accelerator.backward(loss)

    def end_epoch(self) -> Metrics:
        """Evaluate, keep the best weights, and close the epoch's books; its row of metrics."""
        job, counters = self._job, self._job.learner.counters
        begun = time.perf_counter()
        row: Metrics = {"epoch": counters.epoch + 1}
        row |= {f"train/{name}": value for name, value in self._train_means().items()}
        evaluation = self._evaluated("val", row)
        if job.learner.ema is not None:
            self._evaluated("ema", row)
        if counters.epoch + 1 == job.recipe.schedule.epochs and job.accelerator.is_main_process:
            job.run.write_predictions(evaluation.predictions)
        row["lr"] = learning_rate(job.learner.optimizer)
        row["seconds"] = counters.seconds + time.perf_counter() - begun
        counters.rows.append(row)
        counters.epoch, counters.step, counters.seconds, counters.sums = counters.epoch + 1, 0, 0.0, {}
        return row

    def _evaluated(self, prefix: str, row: Metrics) -> Evaluation:
        """Evaluate the weights or their moving average, write the metrics into `row`, keep the weights if best."""
        learner = self._job.learner
        average = prefix == "ema" and learner.ema is not None
        model = learner.ema.module if average and learner.ema else learner.model
        with memory_explained(self._job, "evaluation"):
            evaluation = self._evaluate(model, stop=self._stop)
        if evaluation is None:
            self._save_and_stop()
        row |= {f"{prefix}/{name}": float(value) for name, value in evaluation.metrics.items()}
        self._keep_if_best(prefix, float(evaluation.metrics[self._job.task.primary]))
        return evaluation

    def _keep_if_best(self, prefix: str, value: float) -> None:
        job, counters = self._job, self._job.learner.counters
        best = counters.best.get(prefix)
        better = best is None or (value > best if job.task.higher_is_better else value < best)
        if not better:
            return
        counters.best[prefix] = value
        ema = job.learner.ema if prefix == "ema" else None
        weights = model_state(job.learner.model) if ema is None else ema.module.state_dict()
        if job.accelerator.is_main_process:
            facts = {"epoch": counters.epoch + 1, "metric": f"{prefix}/{job.task.primary}", "value": value}
            save_weights(job.run.best("ema" if prefix == "ema" else ""), weights, facts)

    def _train_means(self) -> dict[str, float]:
        """Means of the losses over the epoch and all processes."""
        job, counters = self._job, self._job.learner.counters
        names = sorted(counters.sums)
        sums = torch.tensor([counters.sums[name] for name in names], dtype=torch.float64)
        if job.accelerator.num_processes > 1:
            sums = reduce(sums.to(job.accelerator.device), reduction="mean").cpu()
        return dict(zip(names, (sums / job.order.steps).tolist(), strict=True))

    def _save_and_stop(self) -> NoReturn:
        job, counters = self._job, self._job.learner.counters
        save(job.run, job.learner)
        self._progress.on_end(finished=False)
        raise Interrupted(
            f"saved in epoch {counters.epoch + 1} after step {counters.step} of {job.order.steps}; "
            f"the same command goes on from there ({job.run.path})"
        )


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Torch's CPU threads within the block."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _from_first(value: T) -> T:
    """The first process's value, in all of them."""
    return cast(T, broadcast_object_list([value])[0])
