"""The runs of a study, in the order that gives answers early, and what has become of each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attngraft.errors import AttngraftError, GraftSpecError, TrainingError, UsageError
from attngraft.results.wording import host_label
from attngraft.study.config import StudyConfig
from attngraft.study.host import StudyHost
from attngraft.study.variants import Variant

if TYPE_CHECKING:
    from attngraft.training.recipe import Recipe
    from attngraft.training.run_folder import RunRecord

RunState = Literal["new", "unfinished", "finished"]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One variant with one seed."""

    variant: Variant
    seed: int
    recipe: Recipe
    folder: Path
    state: RunState
    epochs_done: int = 0

    @property
    def label(self) -> str:
        return f"{self.variant.name}, seed {self.seed}"

    @property
    def epochs_left(self) -> int:
        return 0 if self.state == "finished" else max(self.recipe.schedule.epochs - self.epochs_done, 0)


def run_folder(out: Path, variant: Variant, seed: int) -> Path:
    return out / "runs" / variant.slug / f"seed{seed}"


def state_of(record: RunRecord) -> RunState:
    """What has become of a run that was begun."""
    return "finished" if record.finished else "unfinished"


def plan_runs(config: StudyConfig) -> list[PlannedRun]:
    """Every run: seed by seed, and within a seed the baseline first, so that each finished seed is a small study.

    Raises:
        ConfigError: a recipe that cannot be.
        TrainingError: a run folder is damaged.
    """
    from attngraft.training.run_folder import read_run

    runs = []
    for seed in config.seeds:
        for variant in config.variants:
            folder = run_folder(config.out, variant, seed)
            state: RunState = "new"
            done = 0
            if (folder / "recipe.yaml").is_file():
                record = read_run(folder)
                state, done = state_of(record), len(record.epochs)
            runs.append(
                PlannedRun(
                    variant=variant,
                    seed=seed,
                    recipe=config.recipe_of(variant, seed),
                    folder=folder,
                    state=state,
                    epochs_done=done,
                )
            )
    return runs


def refuse_other_recipes(runs: Sequence[PlannedRun]) -> None:
    """Check that every run that was begun is a run of this study.

    Raises:
        TrainingError: names the fields that differ and the remedies.
    """
    from attngraft.training.run_folder import RunFolder

    problems = []
    for run in runs:
        if run.state == "new":
            continue
        try:
            RunFolder(run.folder).refuse_other_recipe(run.recipe)
        except TrainingError as error:
            problems.append(str(error))
    if problems:
        others = f"\n({len(problems) - 1} more runs of this study differ as well)" if len(problems) > 1 else ""
        raise TrainingError(
            f"{problems[0]}{others}\nFor a study: use another --out, repeat the settings that stand in study.yaml, "
            "or delete the runs that are to be made anew"
        )


def refuse_other_variants(config: StudyConfig) -> None:
    """Check that finished runs have the graft and the host of the variant whose name they bear. Unlike
    `refuse_other_recipes` it needs no recipe, which may be gone by the time of a report.

    Raises:
        TrainingError: names the run and what it is one of.
    """
    from attngraft.grafting.spec import parse
    from attngraft.training.run_folder import read_run

    for variant in config.variants:
        for seed in config.seeds:
            folder = run_folder(config.out, variant, seed)
            if not (folder / "recipe.yaml").is_file():
                continue
            recipe = read_run(folder).recipe
            if str(parse(recipe.graft)) != variant.spec or not _is_of(recipe, variant.host):
                raise TrainingError(
                    f"{folder}: this run is of {_what(recipe)}, and the variant {variant.name} is {variant.key}: report "
                    f"with the study as it was run (--report-only --out {config.out}), give the variant a name of its own, "
                    "or delete the run"
                )


def _is_of(recipe: Recipe, host: StudyHost | None) -> bool:
    """Whether a run's host is this one; what the study's own host is (None), only its recipe knows."""
    if host is None:
        return True
    kept, given = dict(recipe.host.args), dict(host.args)
    if host.weights is not None:  # a folder of transformers says arguments, too
        kept = {name: value for name, value in kept.items() if name in given}
    return (recipe.host.name, kept) == (host.name, given)


def _what(recipe: Recipe) -> str:
    host = host_label({"name": recipe.host.name, "args": dict(recipe.host.args)})
    return f"{host} with the graft {recipe.graft}" if recipe.graft else host


def check_variants(config: StudyConfig) -> None:
    """Plan every variant on the host, and look at the weights that it starts from, before anything trains.

    Raises:
        UsageError: a variant does not fit the host (a GraftSpecError where its text is wrong), or another host does not fit
            the study; names the variant.
        ConfigError: the host is unknown or does not take its arguments.
        HostError: the weights that it starts from cannot be had, or do not fit; or those of a teacher.
    """
    import torch

    from attngraft.grafting.plan import plan
    from attngraft.study.against import check_other_hosts
    from attngraft.training.build import build_model, check_start
    from attngraft.training.teacher import check_teacher

    recipe = config.recipe_of(config.baseline, config.seeds[0])
    with torch.device("meta"):
        host = build_model(recipe, {}, weights=False)
    new = {run.variant.name for run in plan_runs(config) if run.state == "new"}
    others = check_other_hosts(config, new=new)
    for variant in config.variants[1:]:
        try:
            plan(others.get(variant.name, host), variant.spec)
        except GraftSpecError:
            raise
        except AttngraftError as error:
            whose = "the host" if variant.host is None else "its host"
            raise UsageError(f"the variant {variant.name} does not fit {whose}: {error}") from error
    if new:  # others have a checkpoint, and the weights may be gone
        check_start(recipe)
        check_teacher(recipe)
