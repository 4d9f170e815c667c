"""The training loop.

Notable: every update starts the random generators afresh from (seed, epoch, step, process), so nothing but weights,
optimizer and counters has to be saved to go on exactly where a run stopped. The loss is known before the optimizer
moves, so a loss that is not finite leaves good weights behind. Launched by `accelerate launch` or `torchrun`, the same
loop trains on many devices: `batch_size` is shared among them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import NoReturn, TypeVar, cast

import torch
from accelerate.utils import broadcast_object_list, reduce, send_to_device

from attngraft.errors import TrainingError
from attngraft.files import remove_leftovers
from attngraft.tasks.task import Batch, Evaluation
from attngraft.training.checkpoint import model_state, restore, save, save_weights
from attngraft.training.diagnosis import raise_not_finite
from attngraft.training.evaluate import SplitEvaluator, model_inputs
from attngraft.training.freezing import train_mode
from attngraft.training.journal import Journal
from attngraft.training.loading import train_batches
from attngraft.training.lock import locked
from attngraft.training.losses import Losses, all_finite
from attngraft.training.optimizer import learning_rate
from attngraft.training.progress import LogLines, Progress, Silent
from attngraft.training.randomness import reseed, stream_seed
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import Metrics, RunFolder, RunRecord, read_run, write_json
from attngraft.training.setup import Job, create_accelerator, prepare
from attngraft.training.stopping import Interrupted, StopSignal

T = TypeVar("T")


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
        Interrupted: Ctrl-C or SIGTERM; the run was saved and can be resumed.
    """
    run = RunFolder(Path(folder))
    accelerator = create_accelerator(recipe)
    first = accelerator.is_main_process
    if first:
        run.create()
    with locked(run.path) if first else nullcontext(), _threads(recipe.train.threads):
        if first:
            remove_leftovers(run.path)
            _check_folder(run, recipe, resume=resume)
        if not _from_first(run.finished.exists()):
            job = prepare(recipe, run, accelerator)
            restore(run, job.learner)
            _fit(job, (progress or LogLines()) if first else Silent(), stop_after_epoch=stop_after_epoch)
        return cast(RunRecord, _from_first(read_run(run.path) if first else None))


def _check_folder(run: RunFolder, recipe: Recipe, *, resume: bool) -> None:
    if not run.recipe.exists():
        return
    if not resume:
        raise TrainingError(f"{run.path}: there is a run in this folder; resume it, or choose another folder")
    run.refuse_other_recipe(recipe)


def _fit(job: Job, progress: Progress, *, stop_after_epoch: int | None = None) -> None:
    """All updates and evaluations that are left, or those up to the end of an epoch."""
    counters, epochs = job.learner.counters, job.recipe.schedule.epochs
    steps = job.order.steps
    done = counters.epoch * steps + counters.step
    progress.on_start(epochs * steps, done_steps=done, epochs=epochs, steps_per_epoch=steps)
    with StopSignal(job.accelerator) as stop, _journal(job) as journal:
        trainer = Trainer(job, progress, stop)
        while counters.epoch < min(epochs, epochs if stop_after_epoch is None else stop_after_epoch):
            trainer.train_epoch()
            row = trainer.end_epoch()
            if journal is not None:
                journal.add(row)
            save(job.run, job.learner)
            progress.on_epoch(row)
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
        self._batches: Iterator[Batch] = iter(
            train_batches(
                job.order,
                epoch=counters.epoch,
                step=counters.step,
                epochs=job.recipe.schedule.epochs,
                workers=job.recipe.train.workers,
                pin=job.accelerator.device.type == "cuda",
            )
        )

    def train_epoch(self) -> None:
        """The updates that are left of this epoch."""
        job, counters = self._job, self._job.learner.counters
        save_every, steps = job.recipe.train.save_every, job.order.steps
        begun = time.perf_counter() - counters.seconds
        job.learner.stages.enter(counters.epoch)
        train_mode(job.learner.model)
        while counters.step < steps:
            losses = self.update()
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
        job.schedule.step_update(number)
        seed = stream_seed(job.recipe.seed, "step", epoch, step, job.accelerator.process_index)
        reseed(seed, job.accelerator.device)
        for micro in range(train.accumulate):
            last = micro == train.accumulate - 1
            with nullcontext() if last else job.accelerator.no_sync(learner.model):
                self._forward_and_backward(epoch, step * train.accumulate + micro, last=last)
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

    def _forward_and_backward(self, epoch: int, step: int, *, last: bool) -> None:
        """The gradients of one micro-batch; `step` counts micro-batches."""
        job, train = self._job, self._job.recipe.train
        batch = next(self._batches)
        if job.accelerator.device.type != "cpu":
            batch = send_to_device(batch, job.accelerator.device, non_blocking=True)
        batch = job.task.prepare(batch, epoch=epoch, step=step)
        args, kwargs = model_inputs(job.task, batch, channels_last=train.channels_last)
        outputs = job.learner.model(*args, **kwargs)
        with job.accelerator.autocast():
            losses = job.task.loss(outputs, batch)
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
        evaluation = self._evaluate(model, stopped=self._stop.agreed)
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
def _journal(job: Job) -> Iterator[Journal | None]:
    """The run's journal, in the first process only."""
    if not job.accelerator.is_main_process:
        yield None
        return
    with closing(Journal(job.run, job.learner.counters.rows)) as journal:
        yield journal


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
