"""The training loop.

Every update re-seeds the random generators from (seed, epoch, step, process), so a run only needs to save weights,
optimizer and counters to resume exactly. Losses are read before the optimizer step, so a loss that is not finite never
reaches the weights. Under `accelerate launch` or `torchrun` the same loop trains on several devices, which share
`batch_size`.
"""

import itertools
import logging
import math
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, reduce

from attngraft.cache import DecodedCache, decoded_cache, decoded_removed
from attngraft.counting import counts_shown
from attngraft.downloads import Permitted
from attngraft.downloads import downloads as permit
from attngraft.errors import FolderError, started
from attngraft.files import created, remove_leftovers
from attngraft.models.trust import trusting
from attngraft.suggest import shortened
from attngraft.tasks.task import Evaluation, Split, to_records
from attngraft.training.checkpoint import load_best, model_state, restore, save, save_weights, unusable
from attngraft.training.evaluate import SplitEvaluator
from attngraft.training.failures import OutOfMemory, memory_explained, raise_not_finite, workers_explained
from attngraft.training.freezing import train_mode
from attngraft.training.journal import Journal, record_start, record_teacher_metrics
from attngraft.training.loading import Batches, TrainOrder, train_batches
from attngraft.training.lock import locked
from attngraft.training.optimizer import learning_rate
from attngraft.training.paths import refuse_data_folder
from attngraft.training.progress import LogLines, Progress, Silent, format_metrics
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import (
    STUDY_FILE,
    Judged,
    JudgedSplit,
    Metrics,
    RunFolder,
    RunRecord,
    read_run,
    validation_metrics,
)
from attngraft.training.setup import RunContext, cpu_threads, create_accelerator, prepare_run
from attngraft.training.stages import StagePlan
from attngraft.training.stopping import Interrupted, StoppedWaiting, StopSignal
from attngraft.training.tracking import Tracking, check_trackers, track_run
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
    downloads: Permitted = None,
    cache: DecodedCache | str = "auto",
) -> RunRecord:
    """Train the run in `folder`: start it, resume it, or return at once if it is finished.

    Args:
        recipe: settings of the run.
        folder: the run's folder; created if missing.
        resume: resume an existing run; False raises an error if the folder contains one.
        progress: callbacks; None logs plain lines.
        stop_after_epoch: stop after this epoch (from 1) without changing the schedule; to resume, repeat the call with a
            later epoch or None.
        trust_code: also import a `module:` host named in the teacher's folder; the recipe's own hosts are trusted.
        downloads: texts that contain the names that may be downloaded, from `permitted_downloads()`; None: all names in the
            recipe, but none that a teacher's folder contains.
        cache: where decoded images are kept while the run trains: `auto`, `off` or a size in the run's folder (see
            `attngraft.cache.decoded_cache`), or the cache of a study. Does not change the results.

    Raises:
        ConfigError: the recipe cannot be used; nothing was written.
        DataError: the data cannot be used; nothing was written.
        FolderError: the folder contains a run of another recipe, or cannot be written; nothing was written.
        TrainingError: another process is using the folder, or the training failed.
        UsageError: `cache` has another form.
        StorageError: a file could not be written; the last checkpoint is intact.
        Interrupted: Ctrl-C, SIGTERM or SIGHUP; the run was saved and can be resumed.
    """
    check_trackers(recipe.train.track)
    run = RunFolder(Path(folder))
    refuse_data_folder(run.path, recipe.task.get("data"))
    if (run.path / STUDY_FILE).is_file() and not run.recipe.exists():
        raise FolderError(f"{run.path}: is the folder of a study; choose another folder for the run")
    kept = decoded_cache(cache, run.path) if isinstance(cache, str) else cache
    accelerator = create_accelerator(recipe)
    main = accelerator.is_main_process
    progress = (progress or LogLines()) if main else Silent()
    with ExitStack() as stack:
        if downloads is not None:
            stack.enter_context(permit(downloads))
        stack.enter_context(trusting(*recipe.host_names, every=trust_code))
        if main:
            stack.enter_context(created(run.path))
            stack.enter_context(locked(run.path))
        stack.enter_context(cpu_threads(recipe.train.threads))
        stack.enter_context(counts_shown(progress.on_count))
        if main:
            remove_leftovers(run.path)
            recipe = _check_folder(run, recipe, resume=resume)
            run.mend()
            stack.enter_context(decoded_removed(run.path))
        recipe, kept = _from_main((recipe, kept))
        attempt: Recipe | None = None if _from_main(run.finished.exists()) else recipe
        while attempt is not None:
            attempt = _train_or_shrink(
                attempt, run, accelerator, progress, stop_after_epoch=stop_after_epoch, cache=kept
            )
        return cast(RunRecord, _from_main(read_run(run.path) if main else None))


def _check_folder(run: RunFolder, recipe: Recipe, *, resume: bool) -> Recipe:
    """Check that the folder contains no other run; return `recipe` with the sizes its run has chosen."""
    if not run.recipe.exists():
        return recipe
    if not resume:
        raise FolderError(f"{run.path}: this folder contains a run; resume it, or choose another folder")
    run.refuse_other_recipe(recipe)
    run.drop_split_of_other(recipe)
    return run.with_chosen(recipe)


def _train_or_shrink(
    recipe: Recipe,
    folder: RunFolder,
    accelerator: Accelerator,
    progress: Progress,
    *,
    stop_after_epoch: int | None,
    cache: DecodedCache | None,
) -> Recipe | None:
    """Start or resume the run, and return None when training ends.

    After an out-of-memory error with `train.auto_batch`, return a recipe with smaller batches, to resume the run with.
    """
    run = prepare_run(recipe, folder, accelerator, cache=cache)
    restore(folder, run.state)
    counters = run.state.counters
    if counters.epoch > run.epochs:
        raise unusable(folder, f"is of epoch {counters.epoch}, but the run has {run.epochs}")
    if recipe.train.eval_every is None and len(counters.rows) < counters.epoch:
        raise unusable(folder, f"has metrics of {len(counters.rows)} epochs, but is of epoch {counters.epoch}")
    _check_progress(run)
    try:
        with (
            started(),
            workers_explained(folder.path, workers=recipe.train.workers),
            track_run(run) as tracking,  # outside of StopSignal, so that Ctrl-C ends the wait for a tracker
            StopSignal(accelerator) as stop,
        ):
            epochs, steps = run.epochs, run.stages[0].order.steps
            trainer = Trainer(run, progress, stop, tracking)
            try:
                progress.on_start(run.updates, done_steps=trainer.done, epochs=epochs, steps_per_epoch=steps)
                trainer.train(until=epochs if stop_after_epoch is None else min(epochs, stop_after_epoch))
                finished = trainer.finished
                judged = trainer.judge() if finished else None
                if judged is not None:
                    tracking.log_result({f"judged/{name}": value for name, value in judged.metrics.items()})
            finally:
                trainer.stop_workers()
    except OutOfMemory as error:
        if not (recipe.train.auto_batch and error.fits):
            raise
        log.warning("%s\nResuming with this size", error)
        recipe = error.fitting(run.recipe)
        folder.record_choice(recipe, epoch=counters.epoch + 1, step=counters.step + 1)
    else:
        if finished and accelerator.is_main_process:
            seconds = sum(row["seconds"] for row in counters.rows)
            facts = {"epochs": epochs, "seconds": seconds, "metrics": counters.rows[-1]}
            folder.write_finished(facts | ({} if judged is None else {"judged": asdict(judged)}))
            if note := run.task.training_note(validation_metrics(counters.rows[-1]), run.data.facts):
                log.warning("%s: %s", folder.path, note)
        progress.on_end(finished=finished)
        return None
    del run, trainer
    accelerator.free_memory()
    return recipe


def _check_progress(run: RunContext) -> None:
    """Check that steps and best metrics in a checkpoint's counters agree with the recipe and the rows of metrics.

    Raises:
        TrainingError: they do not.
    """
    recipe, counters, task, metric = run.recipe, run.state.counters, run.task, f"val/{run.task.primary}"
    rows, epoch, step = counters.rows, counters.epoch, counters.step
    names = {"epoch", "seconds", metric, *(f"val/{stage.metric}" for stage in recipe.all_stages if stage.metric)}
    if not all(names <= row.keys() for row in rows):
        raise unusable(run.folder, f"has metrics without {shortened(sorted(names), 4)}")
    begins = StagePlan(recipe, task).begins(epoch, rows)
    order = run.stages[: len(begins)][-1].order
    steps = order.steps_of(epoch) if epoch < run.epochs else 0
    if recipe.schedule.steps is not None:
        steps = min(steps, run.updates - order.updates_before(epoch))
    if step > steps:
        raise unusable(run.folder, f"is after step {step} of epoch {epoch + 1}, which has {steps}")
    every = recipe.train.eval_every
    due = step == steps or (every is not None and (order.updates_before(epoch) + step) % every == 0)
    due = due and bool(counters.sums)  # which an evaluation resets
    kept = {"val": [row[metric] for row in rows]}
    if run.state.ema is not None:
        kept["ema"] = [row.get(f"ema/{task.primary}", math.nan) for row in rows]
    required = set(kept) if rows else set()
    for number, (begin, end) in enumerate(itertools.pairwise([*begins, math.inf]), 1):
        kept[f"stage{number}"] = [row[metric] for row in rows if begin < row["epoch"] <= end]
    choose = max if task.higher_is_better else min
    for key in counters.best.keys() | required:  # runs of earlier versions have no best metrics per stage
        values, value = kept.get(key, []), counters.best.get(key)
        best = choose(values) if values else None
        is_better = value is not None and (best is None or choose(best, value) == value)
        stopped = due and key in kept and is_better  # perhaps by a signal, between evaluation and row
        if str(value) != str(best) and not stopped:  # as texts, because NaN is not equal to NaN
            raise unusable(run.folder, f"has another best {key} than its metrics")


class Trainer:
    """Updates, epochs and evaluations of one run."""

    def __init__(self, run: RunContext, progress: Progress, stop: StopSignal, tracking: Tracking) -> None:
        self._run, self._progress, self._stop, self._tracking = run, progress, stop, tracking
        self._state, self._counters = run.state, run.state.counters
        self._evaluate = self._evaluator(run.data.val)
        self._judging = self._evaluate if run.data.test is None else self._evaluator(run.data.test)
        self._plan = StagePlan(run.recipe, run.task)
        self._end = math.inf if run.recipe.stages and run.recipe.schedule.trains else run.updates  # stages count epochs
        self._number = -1  # index of the current stage
        self._begin = self._before = 0  # the stage's first epoch, and the number of updates before it
        self._loader: Batches | None = None
        self._starting = False  # whether the first update of a later stage is next
        self._enter_stage()
        rows = self._counters.rows
        before = self.done - self._counters.step
        self._evaluated = int(rows[-1].get("step", before)) if rows else 0  # number of updates at the last evaluation
        self._summed = set(self._counters.sums)  # names of the losses in a checkpoint

    def _open_loader(self, order: TrainOrder) -> None:
        run = self._run
        if self._loader is not None:
            self._loader.stop_workers()
        self._order = order
        self._loader = train_batches(
            order,
            epoch=self._counters.epoch,
            step=self._counters.step,
            epochs=run.epochs,
            updates=run.recipe.schedule.steps,
            workers=run.recipe.train.workers,
            pin=run.accelerator.device.type == "cuda",
        )
        # started here, because starting a loader draws a random number, which must not happen during updates
        self._batches = self._stop.interruptible(iter(self._loader))

    def _evaluator(self, split: Split) -> SplitEvaluator:
        run = self._run
        facts, folder = run.data.facts, run.folder.path
        return SplitEvaluator(run.task, split, run.recipe, run.accelerator, facts=facts, folder=folder)

    @property
    def _judged_apart(self) -> bool:
        """Whether a study compares a separate evaluation instead of the last epoch's."""
        run = self._run
        return run.recipe.train.judge == "best" or run.data.test is not None or run.task.has_light_inference

    def judge(self) -> Judged | None:
        """Evaluate the finished run for a study; None if the study compares the last epoch's evaluation.

        The weights of `train.judge` are evaluated with full inference, on the test split if there is one, and the records
        are saved as the run's predictions.
        """
        run, weights = self._run, self._run.recipe.train.judge
        if not self._judged_apart:
            if not _from_main(run.folder.predictions.is_file()):  # of a finished run, and damaged
                again = self._evaluate_weights()
                if again is None:
                    self._stop_before_judging()
                if run.accelerator.is_main_process:
                    run.folder.write_predictions(again.predictions)
            return None
        epoch = load_best(run.folder.best(), self._state) if weights == "best" else self._counters.epoch
        with memory_explained(run, "evaluation"):
            evaluation = self._judging(self._state.model, stop=self._stop)
        if evaluation is None:
            self._stop_before_judging()
        split: JudgedSplit = "val" if run.data.test is None else "test"
        if run.accelerator.is_main_process:
            run.folder.write_predictions(evaluation.predictions)
        metrics = {f"{split}/{name}": float(value) for name, value in evaluation.metrics.items()}
        log.info("scores of the %s weights (epoch %d): %s", weights, epoch, format_metrics(metrics))
        return Judged(weights=weights, epoch=epoch, split=split, metrics=metrics)

    def stop_workers(self) -> None:
        """End the loading processes now, without waiting for their batches."""
        if self._loader is not None:
            self._loader.stop_workers()
        self._evaluate.stop_workers()
        self._judging.stop_workers()

    def train(self, *, until: int) -> None:
        """Train to the end of epoch `until`, with a checkpoint after each evaluation."""
        run, teacher = self._run, self._run.teacher
        journal = Journal(run.folder, self._counters.rows) if run.accelerator.is_main_process else None
        self._tracking.log_rows(self._counters.rows)
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
            self._tracking.log_rows(self._counters.rows)
            self._progress.on_epoch(row)

    @property
    def done(self) -> int:
        """Number of updates made."""
        return self._before + self._order.updates_before(self._counters.epoch, begin=self._begin) + self._counters.step

    @property
    def finished(self) -> bool:
        """Return whether all updates are made and evaluated, or the last stage has ended."""
        if self._plan.at(self._counters.epoch, self._counters.rows) is None:
            return True
        return self.done >= self._end and not self._is_evaluation_due()

    def _is_evaluation_due(self) -> bool:
        """Return whether the weights must be evaluated before the next update."""
        done, every = self.done, self._run.recipe.train.eval_every
        due = self._is_epoch_over if every is None else done % every == 0
        return done > self._evaluated and (due or done == self._end)

    @property
    def _is_epoch_over(self) -> bool:
        return self._counters.step == self._order.steps_of(self._counters.epoch)

    def _train_to_evaluation(self) -> None:
        """Perform the updates up to the next evaluation, by default at the end of this epoch."""
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
            if self._summed - losses.keys():
                raise unusable(run.folder, f"has sums of other losses ({shortened(sorted(self._summed), 4)})")
            self._summed = set()
            for name, value in losses.items():
                counters.sums[name] = counters.sums.get(name, 0.0) + value
            counters.step += 1
            counters.seconds = time.perf_counter() - begun
            done = self.done
            lr = learning_rate(self._state.optimizer)
            self._progress.on_step(step=done, epoch=counters.epoch + 1, loss=losses["loss"], lr=lr)
            if self._stop.agreed():
                self._save_and_stop()
            if save_every and done % save_every == 0 and not self._is_evaluation_due():
                save(run.folder, self._state)

    def _enter_stage(self) -> None:
        """Enter the stage of this epoch, and put the model into training mode."""
        run, counters = self._run, self._counters
        begins = self._plan.begins(counters.epoch, counters.rows)[: len(run.stages)]
        number, begin = len(begins) - 1, begins[-1]
        if number != self._number:
            context, orders = run.stages[number], [stage.order for stage in run.stages[:number]]
            self._before = sum(
                order.updates_before(end, begin=start)
                for order, (start, end) in zip(orders, itertools.pairwise(begins), strict=True)
            )
            self._number, self._begin = number, begin
            self._state.freezing.enter(number)
            run.update.enter(context, begin=begin, before=self._before)
            if self._loader is None or context.order is not self._order:
                self._open_loader(context.order)
            self._starting = number > 0 and (counters.epoch, counters.step) == (begin, 0)
        train_mode(self._state.model)

    def _start_stage(self) -> None:
        """Load the initial weights of the stage, and reset the optimizer if the stage requires it."""
        stage, folder = self._run.stages[self._number].stage, self._run.folder
        if stage.start == "best":
            before = folder.best(f"stage{self._number}")
            # runs of earlier versions have no best weights per stage
            load_best(before if before.exists() else folder.best(), self._state)
            if self._state.ema is not None:
                self._state.ema.set(self._run.update.core)
        if stage.optimizer == "fresh":
            self._state.optimizer.state.clear()

    def _update_weights(self) -> dict[str, float]:
        """Make one update with the next batch and return its losses."""
        update, epoch, step = self._run.update, self._counters.epoch, self._counters.step
        # load all micro-batches before running statistics change, because a stop signal may end the wait for data
        batches = [next(self._batches) for _ in range(self._run.recipe.train.accumulate)]
        if self._starting:  # only now, so that a checkpoint saved while waiting contains the previous stage
            self._start_stage()
            self._starting = False
        losses = update.accumulate_gradients(batches, epoch=epoch, step=step)
        if not all_finite(losses):
            raise_not_finite(self._run, losses)
        update.apply(epoch=epoch, step=step)
        return losses

    def _end_period(self) -> Metrics:
        """Evaluate, save the weights if they are the best, and return the row of metrics."""
        run, counters = self._run, self._counters
        begun = time.perf_counter()
        row: Metrics = {"epoch": counters.epoch + 1 if run.recipe.schedule.trains else 0}
        if run.recipe.counts_updates:
            row["step"] = self.done
        row |= {f"train/{name}": value for name, value in self._train_means().items()}
        evaluation = self._evaluate_and_keep_best("val", row)
        if self._state.ema is not None:
            self._evaluate_and_keep_best("ema", row)
        row["lr"] = learning_rate(self._state.optimizer)
        row["seconds"] = counters.seconds + time.perf_counter() - begun
        counters.rows.append(row)
        counters.seconds, counters.sums = 0.0, {}
        self._evaluated = self.done
        if self._is_epoch_over:
            counters.epoch, counters.step = counters.epoch + 1, 0
        if self.finished and not self._judged_apart and run.accelerator.is_main_process:
            run.folder.write_predictions(evaluation.predictions)
        return row

    def _evaluate_weights(self, *, average: bool = False) -> Evaluation | None:
        """Evaluate the weights, or their moving average, on the validation split; return None if stopped."""
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
        """Add the metrics of the weights ("val") or their average ("ema") to `row`; save the best weights."""
        run, best = self._run, self._counters.best
        evaluation = self._evaluate_weights(average=prefix == "ema")
        if evaluation is None:
            self._save_and_stop()
        row |= {f"{prefix}/{name}": float(value) for name, value in evaluation.metrics.items()}
        self._plan.refuse_unknown_metrics(list(evaluation.metrics))
        value = float(evaluation.metrics[run.task.primary])
        kinds = {prefix: "ema" if prefix == "ema" else ""}  # by key in `best`
        later = run.stages[self._number + 1 :]
        if prefix == "val" and later and later[0].stage.start == "best":
            stage = f"stage{self._number + 1}"
            kinds[stage] = stage
        higher = run.task.higher_is_better
        kept = [key for key in kinds if key not in best or (value > best[key] if higher else value < best[key])]
        if not kept:
            return evaluation
        best |= dict.fromkeys(kept, value)
        ema = self._state.ema if prefix == "ema" else None
        weights = model_state(self._state.model) if ema is None else ema.module.state_dict()
        if run.accelerator.is_main_process:
            at: dict[str, Any] = {"epoch": row["epoch"]} | ({"step": row["step"]} if "step" in row else {})
            facts: dict[str, Any] = {**at, "metric": f"{prefix}/{run.task.primary}", "value": value}
            for key in kept:
                save_weights(run.folder.best(kinds[key]), weights, facts)
        return evaluation

    def _train_means(self) -> dict[str, float]:
        """Return the mean losses over all processes and all updates since the last evaluation."""
        run, sums_by_name = self._run, self._counters.sums
        names = sorted(sums_by_name)
        sums = torch.tensor([sums_by_name[name] for name in names], dtype=torch.float64)
        if run.accelerator.num_processes > 1:
            sums = reduce(sums.to(run.accelerator.device), reduction="mean").cpu()
        return dict(zip(names, (sums / (self.done - self._evaluated)).tolist(), strict=True))

    def _stop_before_judging(self) -> NoReturn:
        self._progress.on_end(finished=False)
        raise Interrupted(
            "all epochs are trained and saved, but the final evaluation is not complete; rerun the same "
            f"command to finish it ({self._run.folder.path})"
        )

    def _save_and_stop(self) -> NoReturn:
        counters, folder = self._counters, self._run.folder
        save(folder, self._state)
        self._progress.on_end(finished=False)
        raise Interrupted(
            f"saved in epoch {counters.epoch + 1} after step {counters.step} of {self._order.steps_of(counters.epoch)}; "
            f"rerun the same command to resume ({folder.path})"
        )


def _from_main(value: T) -> T:
    """Return the main process's value in all processes."""
    return cast(T, broadcast_object_list([value])[0])
