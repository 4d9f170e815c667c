"""The resolved study: recipe, folder and state of every run, ordered to give results early."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attngraft.files import share
from attngraft.study.config import StudyConfig
from attngraft.study.folds import FoldedRecord
from attngraft.study.variants import Variant
from attngraft.tasks.task import FITTED_FOLDER, SPLIT_FILE, Task
from attngraft.training.build import model_data_config
from attngraft.training.profiler import BenchmarkBatch
from attngraft.training.recipe import Recipe, ScheduleConfig
from attngraft.training.run_folder import RunFolder, RunRecord, read_run

RunState = Literal["new", "unfinished", "finished"]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One variant with one seed and, in cross-validation, one fold."""

    variant: Variant
    seed: int
    fold: int | None = None
    recipe: Recipe
    folder: Path
    state: RunState
    epochs_done: int = 0

    @property
    def label(self) -> str:
        return f"{self.variant.name}, seed {self.seed}{'' if self.fold is None else f', fold {self.fold}'}"

    @property
    def epochs_left(self) -> int:
        return 0 if self.state == "finished" else max(self.recipe.schedule.epochs - self.epochs_done, 0)


@dataclass(frozen=True, kw_only=True)
class Study(StudyConfig):
    """A study configuration with all its runs, created by `resolve_runs`.

    Runs are ordered by seed and fold, with the baseline first, so that each finished seed is a small study.
    """

    runs: tuple[PlannedRun, ...]
    benchmark: BenchmarkBatch | None = (
        None  #: the opened data; None before `runner.prepare`, and if all runs are finished
    )
    #: `runs`, with `until` only finished ones and those of the next round; empty before `runner.prepare`
    planned: tuple[PlannedRun, ...] = ()
    seconds: float | None = None  #: estimate for the remaining ones of `planned`
    most_seconds: float | None = None  #: estimate for all runs that `until` may add

    @property
    def baseline_recipe(self) -> Recipe:
        """Recipe of the baseline's first run; other runs share its data (except the fold) and all unchanged fields."""
        return self.runs[0].recipe

    def recipe_of(self, variant: Variant, seed: int | None = None) -> Recipe:
        """Return the resolved recipe of a variant's first run with `seed` (default: the first seed)."""
        seed = self.seeds[0] if seed is None else seed
        return next(run.recipe for run in self.runs if (run.variant.name, run.seed) == (variant.name, seed))

    @property
    def schedules(self) -> list[ScheduleConfig]:
        """Schedules of the variants, the baseline's first."""
        return [self.recipe_of(variant).schedule for variant in self.variants]

    def data_folder(self) -> Path | None:
        """Return the folder of the study's split and fitted files; None if no run has saved anything yet."""
        # until a run has saved, the data settings may change
        return self.out if any(RunFolder(run.folder).has_saved for run in self.runs) else None

    def save_data_files(self, runs: Sequence[PlannedRun]) -> None:
        """Write the split and the files of the opened data, if any, for those of `runs` that have not saved anything yet.

        Raises:
            StorageError: a file cannot be written.
        """
        if self.benchmark is None:
            return
        self.save_split(self.benchmark.task, runs)
        self.save_files(self.benchmark.task, runs)
        if self.benchmark.data.test is not None:
            self.keep_judged_split(runs)

    def save_split(self, task: Task, runs: Sequence[PlannedRun]) -> None:
        """Write the random split or the folds of `task`, if any, for those of `runs` that have not saved anything yet.

        Without this, a run that starts after images were added would use a different split from earlier runs.

        Raises:
            StorageError: the file cannot be written.
        """
        path = self.out / SPLIT_FILE
        if not task.save_split(path):
            return
        for run in runs:
            folder = RunFolder(run.folder)
            if not folder.has_saved:
                share(path, folder.split)

    def keep_judged_split(self, runs: Sequence[PlannedRun]) -> None:
        """Judge new `runs` on the validation split if earlier runs were, even if there is a test split now."""
        folders = [RunFolder(run.folder) for run in self.runs]
        if any(folder.has_saved and folder.judged_on_val for folder in folders):
            for folder in (RunFolder(run.folder) for run in runs):
                if not folder.has_saved:
                    folder.write_data(model_args={}, facts={}, judged_split="val")

    def save_files(self, task: Task, runs: Sequence[PlannedRun]) -> None:
        """Write the files that `task` fitted to the training data, for those of `runs` with the baseline's input and fold.

        Raises:
            StorageError: a file cannot be written.
        """
        folder = self.out / FITTED_FOLDER
        task.save_files(folder)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()] if folder.is_dir() else []
        first = self.runs[0]
        inputs: dict[tuple[str, int | None], Mapping[str, object]] = {}  # by variant and fold
        for run in (first, *runs) if files else ():
            key = (run.variant.name, run.fold)
            if key not in inputs:
                inputs[key] = {**model_data_config(run.recipe), "task": run.recipe.task}
            fitted = RunFolder(run.folder).fitted
            if inputs[key] == inputs[first.variant.name, first.fold] and not RunFolder(run.folder).has_saved:
                for path in files:
                    share(path, fitted / path.relative_to(folder))


def resolve_runs(config: StudyConfig) -> Study:
    """Return the study with the recipe and state of every run, reading the study's recipe only once.

    Raises:
        ConfigError: an invalid recipe.
        TrainingError: a run folder is damaged.
    """
    recipe_of, runs = config.recipes(), []
    for seed, fold, variant in itertools.product(config.all_seeds, config.fold_numbers, config.variants):
        folder = run_folder(config.out, variant, seed, fold)
        record = existing_run(folder)
        runs.append(
            PlannedRun(
                variant=variant,
                seed=seed,
                fold=fold,
                recipe=recipe_of(variant, seed, fold),
                folder=folder,
                state="new" if record is None else run_state(record),
                epochs_done=0 if record is None else record.epochs_done,
            )
        )
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(StudyConfig)}
    return Study(**fields, runs=tuple(runs))


def run_folder(out: Path, variant: Variant, seed: int, fold: int | None = None) -> Path:
    folder = out / "runs" / variant.slug / f"seed{seed}"
    return folder if fold is None else folder / f"fold{fold}"


def run_state(record: RunRecord) -> RunState:
    return "finished" if record.finished else "unfinished"


def existing_run(folder: Path) -> RunRecord | None:
    """Read the run in `folder`; None if it was not started.

    Raises:
        TrainingError: the run folder is damaged.
    """
    return read_run(folder) if RunFolder(folder).recipe.is_file() else None


#: variant name -> seed -> finished run, or a `FoldedRecord` of all its folds
Records = dict[str, dict[int, RunRecord]]


def finished_runs(config: StudyConfig) -> Records:
    """Read the study's finished runs, without reading its recipe, whose file may no longer exist.

    With folds, a seed is included once all its folds are finished.

    Raises:
        TrainingError: a run folder is damaged.
    """
    records: Records = {}
    for variant in config.variants:
        records[variant.name] = of_variant = {}
        for seed in config.all_seeds:
            found = [existing_run(run_folder(config.out, variant, seed, fold)) for fold in config.fold_numbers]
            runs = [run for run in found if run and run.finished and run.epochs]
            if len(runs) == len(found):
                of_variant[seed] = runs[0] if config.folds is None else FoldedRecord.of(runs)
    return records
