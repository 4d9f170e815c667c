"""The training loop.

Every update re-seeds the random generators from (seed, epoch, step, process), so a run only needs to save weights,
optimizer and counters to resume exactly. Losses are read before the optimizer step, so a loss that is not finite never
reaches the weights. Under `accelerate launch` or `torchrun` the same loop trains on several devices, which share
`batch_size`.
"""

import logging
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, reduce

from attngraft.errors import TrainingError
from attngraft.files import remove_leftovers
from attngraft.models.trust import trusting
from attngraft.tasks.task import Evaluation, Split, to_records
from attngraft.training.checkpoint import load_best, model_state, restore, save, save_weights
from attngraft.training.evaluate import SplitEvaluator
from attngraft.training.failures import OutOfMemory, memory_explained, raise_not_finite, workers_explained
from attngraft.training.freezing import train_mode
from attngraft.training.journal import Journal, record_start, record_teacher_metrics
from attngraft.training.loading import TrainOrder, train_batches
from attngraft.training.lock import locked
from attngraft.training.optimizer import learning_rate
from attngraft.training.progress import LogLines, Progress, Silent, format_metrics
from attngraft.training.recipe import Recipe, Stage
from attngraft.training.run_folder import Judged, JudgedSplit, Metrics, RunFolder, RunRecord, read_run, write_json
from attngraft.training.setup import RunContext, cpu_threads, create_accelerator, prepare_run
from attngraft.training.stages import StagePlan
from attngraft.training.stopping import Interrupted, StoppedWaiting, StopSignal
from attngraft.training.update import all_finite

T = TypeVar("T")

log = logging.getLogger(__name__)


def train(
    recipe: Recipe,
    folder: Path | str,
    *,
    resume: bool = True,
    progress: Progress | None = None,
    stop_after_epoch: int | None = None,
    trust_code: bool = False,
) -> RunRecord:
    """Train the run in `folder`: start it, resume it, or return at once if it is finished.

    Args:
        recipe: what to train and how.
        folder: the run's folder; created if missing.
        resume: resume an existing run; False raises an error if the folder holds one.
        progress: callbacks; None logs plain lines.
        stop_after_epoch: leave the run unfinished after this epoch (from 1), its schedule unchanged; the same call with
            a later epoch, or without one, resumes it.
        trust_code: also import a `module:` host that the teacher's folder names; the recipe's own hosts are trusted.

    Raises:
        ConfigError: the recipe cannot be used; nothing was written except an empty folder.
        DataError: the data cannot be used.
        TrainingError: the folder holds a run of another recipe, another process is using it, or the training failed.
        StorageError: a file could not be written; the last checkpoint is intact.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; the run was saved and can be resumed.
    """
    run = RunFolder(Path(folder))
    accelerator = create_accelerator(recipe)
    main = accelerator.is_main_process
    progress = (progress or LogLines()) if main else Silent()
    if main:
        run.create()
    trusted = trusting(*recipe.host_names, every=trust_code)
    with trusted, locked(run.path) if main else nullcontext(), cpu_threads(recipe.train.threads):
        if main:
            remove_leftovers(run.path)
            recipe = _check_folder(run, recipe, resume=resume)
        recipe = _from_main(recipe)
        finished = _from_main(run.finished.exists())
        while not finished:
            smaller = _train_once(recipe, run, accelerator, progress, stop_after_epoch=stop_after_epoch)
            finished, recipe = smaller is None, smaller or recipe
        return cast(RunRecord, _from_main(read_run(run.path) if main else None))


def _check_folder(run: RunFolder, recipe: Recipe, *, resume: bool) -> Recipe:
    """Check that the folder is not another run's; return `recipe` with the batch sizes that its run has chosen so far."""
    if not run.recipe.exists():
        return recipe
    if not resume:
        raise TrainingError(f"{run.path}: this folder holds a run; resume it, or choose another folder")
    run.refuse_other_recipe(recipe)
    run.drop_split_of_other(recipe)
    return run.with_chosen(recipe)


def _train_once(
    recipe: Recipe, folder: RunFolder, accelerator: Accelerator, progress: Progress, *, stop_after_epoch: int | None
) -> Recipe | None:
    """Start or resume the run and train it.

    Returns None, or after an out-of-memory error under `train.auto_batch` the recipe to resume with.
    """
    run = prepare_run(recipe, folder, accelerator)
    restore(folder, run.state)
    counters = run.state.counters
    try:
        with workers_explained(folder.path, workers=recipe.train.workers), StopSignal(accelerator) as stop:
            epochs, done = run.epochs, run.order.updates_before(counters.epoch) + counters.step
            progress.on_start(run.updates, done_steps=done, epochs=epochs, steps_per_epoch=run.order.steps)
            trainer = Trainer(run, progress, stop)
            try:
                trainer.train(until=epochs if stop_after_epoch is None else min(epochs, stop_after_epoch))
                finished = trainer.finished
                judged = trainer.judge() if finished else None
            finally:
                trainer.stop_workers()
    except OutOfMemory as error:
        if not (recipe.train.auto_batch and error.fits):
            raise
        log.warning("%s\nResuming with this size", error)
        recipe = error.fitting(recipe)
        folder.record_choice(recipe, epoch=counters.epoch + 1, step=counters.step + 1)
    else:
        if finished and accelerator.is_main_process:
            seconds = sum(row["seconds"] for row in counters.rows)
            facts = {"epochs": epochs, "seconds": seconds, "metrics": counters.rows[-1]}
            write_json(folder.finished, facts | ({} if judged is None else {"judged": asdict(judged)}))
        progress.on_end(finished=finished)
        return None
    del run, trainer
    accelerator.free_memory()
    return recipe


class Trainer:
    """Updates, epochs and evaluations of one run."""

    def __init__(self, run: RunContext, progress: Progress, stop: StopSignal) -> None:
        self._run, self._progress, self._stop = run, progress, stop
        self._state, self._counters = run.state, run.state.counters
        self._evaluate = self._evaluator(run.data.val)
        self._judging = self._evaluate if run.data.test is None else self._evaluator(run.data.test)
        self._plan = StagePlan(run.recipe, run.task)
        self._stage: tuple[int, int] | None = None  # number and first epoch of the stage that was entered
        self._starting: Stage | None = None  # stage whose first update is next
        context = run.stages[(self._plan.at(self._counters.epoch, self._counters.rows) or (-1, 0))[0]]
        self._open_loader(context.order)

    def _open_loader(self, order: TrainOrder) -> None:
        run = self._run
        self._order = order
        self._loader = train_batches(
            order,
            epoch=self._counters.epoch,
            step=self._counters.step,
            epochs=run.epochs,
            updates=run.updates,
            workers=run.recipe.train.workers,
            pin=run.accelerator.device.type == "cuda",
        )
        # started here, because starting a loader draws a random number, which must not happen during updates
        self._batches = self._stop.while_waiting(iter(self._loader))

    def _evaluator(self, split: Split) -> SplitEvaluator:
        run = self._run
        return SplitEvaluator(run.task, split, run.recipe, run.accelerator, facts=run.data.facts)

    @property
    def _judged_apart(self) -> bool:
        """Whether the run is judged by another evaluation than that of the last epoch."""
        run = self._run
        return run.recipe.train.judge == "best" or run.data.test is not None or run.task.has_light_inference

    def judge(self) -> Judged | None:
        """Evaluate the finished run as a study compares it; return None if that is the last epoch's evaluation.

        The weights of `train.judge` are evaluated with full inference, on the test split if there is one, and their records
        become the run's predictions.
        """
        run, weights = self._run, self._run.recipe.train.judge
        if not self._judged_apart:
            return None
        epoch = load_best(run.folder, self._state) if weights == "best" else self._counters.epoch
        with memory_explained(run, "evaluation"):
            evaluation = self._judging(self._state.model, stop=self._stop)
        if evaluation is None:
            self._stop_before_judging()
        split: JudgedSplit = "val" if run.data.test is None else "test"
        if run.accelerator.is_main_process:
            run.folder.write_predictions(evaluation.predictions)
        metrics = {f"{split}/{name}": float(value) for name, value in evaluation.metrics.items()}
        log.info("judged by the %s weights (epoch %d): %s", weights, epoch, format_metrics(metrics))
        return Judged(weights=weights, epoch=epoch, split=split, metrics=metrics)

    def stop_workers(self) -> None:
        """End the loading processes now, whatever they are doing."""
        self._loader.stop_workers()
        self._evaluate.stop_workers()
        self._judging.stop_workers()

    def train(self, *, until: int) -> None:
        """Train and evaluate the remaining epochs up to epoch `until`, each with a checkpoint."""
        run, teacher = self._run, self._run.teacher
        journal = Journal(run.folder, self._counters.rows) if run.accelerator.is_main_process else None
        record_start(run, self._evaluate_weights)
        if teacher is not None:
            record_teacher_metrics(run, self._evaluate_teacher)
        as_is = not run.recipe.schedule.trains and not self._counters.rows
        while as_is or (not self.finished and self._counters.epoch < until):
            if not as_is:
                self._train_to_evaluation()
            as_is = False
            row = self._end_period()
            if journal is not None:
                journal.add(row)
            save(run.folder, self._state)
            self._progress.on_epoch(row)

    @property
    def _done(self) -> int:
        """Number of updates made."""
        return self._run.order.updates_before(self._counters.epoch) + self._counters.step

    @property
    def finished(self) -> bool:
        """Return whether all updates are made and evaluated, or the last stage has ended."""
        if self._plan.at(self._counters.epoch, self._counters.rows) is None:
            return True
        return self._done >= self._run.updates and not self._is_evaluation_due()

    def _is_evaluation_due(self) -> bool:
        """Return whether the weights must be evaluated before the next update."""
        done, every = self._done, self._run.recipe.train.eval_every
        due = self._is_epoch_over if every is None else done % every == 0
        return done > self._evaluated and (due or done == self._run.updates)

    @property
    def _is_epoch_over(self) -> bool:
        return self._counters.step == self._run.order.steps_of(self._counters.epoch)

    @property
    def _evaluated(self) -> int:
        """Number of updates made before the last evaluation."""
        last = self._counters.rows[-1] if self._counters.rows else {"epoch": 0.0}
        return int(last["step"] if "step" in last else self._run.order.updates_before(int(last["epoch"])))

    def _train_to_evaluation(self) -> None:
        """Perform the updates before the next evaluation: by default, the remaining ones of this epoch."""
        run, counters = self._run, self._counters
        save_every = run.recipe.train.save_every
        begun = time.perf_counter() - counters.seconds
        self._enter_stage()
        while not self._is_evaluation_due():
            if self._is_epoch_over:
                counters.epoch, counters.step = counters.epoch + 1, 0
                self._enter_stage()
            try:
                with memory_explained(run, "update"):
                    losses = self._update_weights()
            except StoppedWaiting:  # nothing has changed since the previous step
                self._save_and_stop()
            for name, value in losses.items():
                counters.sums[name] = counters.sums.get(name, 0.0) + value
            counters.step += 1
            counters.seconds = time.perf_counter() - begun
            done = self._done
            lr = learning_rate(self._state.optimizer)
            self._progress.on_step(step=done, epoch=counters.epoch + 1, loss=losses["loss"], lr=lr)
            if self._stop.agreed():
                self._save_and_stop()
            if save_every and done % save_every == 0 and not self._is_evaluation_due():
                save(run.folder, self._state)

    def _enter_stage(self) -> None:
        """Enter the stage of this epoch, and set the model's modules to training."""
        run, counters = self._run, self._counters
        stage = self._plan.at(counters.epoch, counters.rows)
        if stage is not None and stage != self._stage:
            (number, begin), self._stage = stage, stage
            context = run.stages[number]
            self._state.freezing.enter(number)
            run.update.enter(context, begin=begin)
            if context.order is not self._order:
                self._loader.stop_workers()
                self._open_loader(context.order)
            if number and (counters.epoch, counters.step) == (begin, 0):
                self._starting = context.stage
        train_mode(self._state.model)

    def _start_stage(self, stage: Stage) -> None:
        """Load the weights that a stage starts from, and clear the optimizer if it begins afresh."""
        if stage.start == "best":
            load_best(self._run.folder, self._state)
            if self._state.ema is not None:
                self._state.ema.set(self._run.update.core)
        if stage.optimizer == "fresh":
            self._state.optimizer.state.clear()

    def _update_weights(self) -> dict[str, float]:
        """Make one update with the next batch and return its losses."""
        update, epoch, step = self._run.update, self._counters.epoch, self._counters.step
        # load all micro-batches before running statistics change, because a stop signal may end the wait for data
        batches = [next(self._batches) for _ in range(self._run.recipe.train.accumulate)]
        if self._starting is not None:  # only now, so that a checkpoint before the first update is of the stage before
            self._start_stage(self._starting)
            self._starting = None
        losses = update.accumulate_gradients(batches, epoch=epoch, step=step)
        if not all_finite(losses):
            raise_not_finite(self._run, losses)
        update.apply(epoch=epoch, step=step)
        return losses

    def _end_period(self) -> Metrics:
        """Evaluate, keep the best weights, and return the row of metrics since the last evaluation."""
        run, counters = self._run, self._counters
        begun = time.perf_counter()
        row: Metrics = {"epoch": counters.epoch + 1 if run.recipe.schedule.trains else 0}
        if run.recipe.counts_updates:
            row["step"] = self._done
        row |= {f"train/{name}": value for name, value in self._train_means().items()}
        evaluation = self._evaluate_and_keep_best("val", row)
        if self._state.ema is not None:
            self._evaluate_and_keep_best("ema", row)
        row["lr"] = learning_rate(self._state.optimizer)
        row["seconds"] = counters.seconds + time.perf_counter() - begun
        counters.rows.append(row)
        counters.seconds, counters.sums = 0.0, {}
        if self._is_epoch_over:
            counters.epoch, counters.step = counters.epoch + 1, 0
        if self.finished and not self._judged_apart and run.accelerator.is_main_process:
            run.folder.write_predictions(evaluation.predictions)
        return row

    def _evaluate_weights(self, *, average: bool = False) -> Evaluation | None:
        """Evaluate the weights, or their moving average, on the validation split; None if stopped."""
        model = self._state.ema.module if average and self._state.ema else self._state.model
        with memory_explained(self._run, "evaluation"):
            return self._evaluate(model, stop=self._stop, full=not self._run.task.has_light_inference)

    def _evaluate_teacher(self) -> Evaluation | None:
        teacher, task = self._run.teacher, self._run.task
        if teacher is None:
            return None
        with memory_explained(self._run, "evaluation of the teacher"):
            return self._evaluate(
                teacher.model, stop=self._stop, infer=lambda _, batch: to_records(task.predict(teacher(batch), batch))
            )

    def _evaluate_and_keep_best(self, prefix: str, row: Metrics) -> Evaluation:
        """Add the metrics of the weights ("val") or their average ("ema") to `row`; save the weights if best so far."""
        run, best = self._run, self._counters.best
        evaluation = self._evaluate_weights(average=prefix == "ema")
        if evaluation is None:
            self._save_and_stop()
        row |= {f"{prefix}/{name}": float(value) for name, value in evaluation.metrics.items()}
        self._plan.refuse_unknown_metrics(list(evaluation.metrics))
        value = float(evaluation.metrics[run.task.primary])
        if prefix in best and not (value > best[prefix] if run.task.higher_is_better else value < best[prefix]):
            return evaluation
        best[prefix] = value
        ema = self._state.ema if prefix == "ema" else None
        weights = model_state(self._state.model) if ema is None else ema.module.state_dict()
        if run.accelerator.is_main_process:
            at: dict[str, Any] = {"epoch": row["epoch"]} | ({"step": row["step"]} if "step" in row else {})
            facts: dict[str, Any] = {**at, "metric": f"{prefix}/{run.task.primary}", "value": value}
            save_weights(run.folder.best("ema" if prefix == "ema" else ""), weights, facts)
        return evaluation

    def _train_means(self) -> dict[str, float]:
        """Return the means of the losses over the updates since the last evaluation, and over all processes."""
        run, sums_by_name = self._run, self._counters.sums
        names = sorted(sums_by_name)
        sums = torch.tensor([sums_by_name[name] for name in names], dtype=torch.float64)
        if run.accelerator.num_processes > 1:
            sums = reduce(sums.to(run.accelerator.device), reduction="mean").cpu()
        return dict(zip(names, (sums / (self._done - self._evaluated)).tolist(), strict=True))

    def _stop_before_judging(self) -> NoReturn:
        self._progress.on_end(finished=False)
        raise Interrupted(
            "all epochs are trained and saved, but the evaluation that the run is judged by is not complete; rerun the same "
            f"command to finish it ({self._run.folder.path})"
        )

    def _save_and_stop(self) -> NoReturn:
        counters, folder = self._counters, self._run.folder
        save(folder, self._state)
        self._progress.on_end(finished=False)
        raise Interrupted(
            f"saved in epoch {counters.epoch + 1} after step {counters.step} of {self._run.order.steps_of(counters.epoch)}; "
            f"rerun the same command to resume ({folder.path})"
        )


def _from_main(value: T) -> T:
    """Return the main process's value in all processes."""
    return cast(T, broadcast_object_list([value])[0])
