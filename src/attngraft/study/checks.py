"""Checks of a study's variants, hosts and existing runs before training.

All hosts are trained on the same images in the same order, under the same recipe except for the fields in a variant's
`set`. Preprocessing (mean, standard deviation, interpolation, crop) is each host's default, as in timm; a note in the
report lists the differences.
"""

import dataclasses
import itertools

from torch import nn

from attngraft.counting import counted
from attngraft.errors import AttngraftError, ConfigError, FolderError, GraftSpecError, UsageError
from attngraft.evaluation.suites.catalog import parse_suites, require_suites
from attngraft.grafting.plan import plan
from attngraft.grafting.spec import parse
from attngraft.results.wording import host_label
from attngraft.study.config import StudyConfig
from attngraft.study.plan import Study, existing_run, run_folder
from attngraft.study.variants import StudyHost, Variant
from attngraft.suggest import did_you_mean
from attngraft.tasks.capabilities import require
from attngraft.tasks.task import TaskData, load_task
from attngraft.tensors import meta_device
from attngraft.training.build import (
    build_initial_model,
    build_model,
    build_task,
    check_as_is,
    check_patches,
    check_start,
    check_task_host,
    model_data_config,
)
from attngraft.training.recipe import Recipe, recipe_from_dict, recipe_to_dict
from attngraft.training.run_folder import RunFolder
from attngraft.training.sizes import with_cut
from attngraft.training.stages import stage_recipe
from attngraft.training.teacher import check_teacher
from attngraft.training.tracking import check_trackers
from attngraft.yaml_config import apply_overrides, differing_fields


def refuse_unsupported(config: StudyConfig) -> None:
    """Check the task sections and stages of all runs, and that the tasks have the capabilities that the study needs.

    Raises:
        ConfigError: a tracker or a capability is missing, a task section or a stage is invalid, or the task does not have
            the metric.
    """
    choices = parse_suites(config.suites)
    needs = [name for name in ("folds", "halving") if getattr(config, name) is not None]
    recipe_of = config.recipes()
    for variant in config.variants:
        recipe = recipe_of(variant, config.seeds[0], config.fold_numbers[0])
        check_trackers(recipe.train.track)
        kind = load_task(recipe.task["name"])
        require_suites(kind, choices)
        require(kind, *needs, *(["teacher"] if recipe.distill is not None else []))
        for stage in recipe.all_stages:
            stage_recipe(recipe, stage)
        if not variant.is_baseline:
            continue  # no variant has a metric of its own
        task = build_task(recipe)
        if task.metrics and task.primary not in (type(task).primary, *task.metrics):
            near, known = did_you_mean(task.primary, task.metrics), ", ".join(task.metrics)
            raise ConfigError(f"task {task.name}: has no metric {task.primary!r}{near}; use one of {known}")


def refuse_counted_updates(study: Study) -> None:
    """Reject halving and budgets, whose time estimates count epochs, for recipes that count updates.

    Raises:
        UsageError: the study has halving or a budget, and its recipe counts updates.
    """
    if not any(run.recipe.counts_updates for run in study.runs):
        return
    options = {
        "--halving": study.halving,
        "--time-budget": study.time_budget,
        "--budget": None if study.until is None else study.until.budget,
    }
    option = next((name for name, value in options.items() if value is not None), "")
    if option:
        raise UsageError(
            f"{option} counts epochs, but the recipe counts updates; use --set schedule.steps=null --set "
            f"train.eval_every=null and no stage with patience, or omit {option}"
        )


def check_variants(study: Study) -> None:
    """Plan every variant's graft on its host, and check the initial weights of new runs.

    Raises:
        UsageError: a variant does not fit its host, its host does not fit the study, or its recipe is invalid; the message
            names the variant.
        GraftSpecError: a graft specification is invalid.
        ConfigError: the host is unknown or does not accept its arguments.
        HostError: the initial weights or a teacher's weights cannot be found or do not fit.
    """
    host = host_on_meta(study.baseline_recipe)
    check_task_host(study.baseline_recipe, host)
    new = {run.variant.name for run in study.runs if run.state == "new"}
    if new:
        check_patches(study.baseline_recipe, host)
    for variant in counted(study.variants, "variants checked"):
        if variant.is_baseline:
            continue
        own_host = host
        if variant.host is not None or variant.overrides:
            _refuse_same_model(study, variant)
        if variant.overrides:
            own_host = _check_own_recipe(study, variant, teacher=variant.name in new)
        if variant.host is not None:
            own_host = _check_other_host(study, variant, fetch=variant.name in new)
        if variant.spec == "none":  # a host without graft needs no plan
            continue
        try:
            plan(own_host, variant.spec)
        except GraftSpecError:
            raise
        except AttngraftError as error:
            whose = "the host" if variant.host is None else "its host"
            raise UsageError(f"the variant {variant.name} does not fit {whose}: {error}") from error
    if new:  # started runs have a checkpoint, and their initial weights may have been deleted
        check_start(study.baseline_recipe)
        check_teacher(study.baseline_recipe)


def check_untrained(study: Study, data: TaskData) -> None:
    """Check that models compared without training have trained weights for the data's classes.

    Raises:
        UsageError: a model has a new head or random weights; the message names the variant.
    """
    for variant in counted(study.variants, "variants checked"):
        recipe = study.recipe_of(variant)
        if recipe.schedule.trains or not (variant.is_baseline or variant.host is not None or variant.overrides):
            continue
        try:
            check_as_is(recipe, build_initial_model(recipe, data.model_args, facts=data.facts)[1])
        except AttngraftError as error:
            raise UsageError(f"the variant {variant.name}: {error}") from error


def host_on_meta(recipe: Recipe) -> nn.Module:
    """Build the host without graft on the meta device."""
    train = recipe.train
    if train.parameters == "grafts" or (train.first is not None and train.first.parameters == "grafts"):
        train = dataclasses.replace(train, parameters="all", first=None)
    with meta_device():
        return build_model(dataclasses.replace(recipe, graft=None, train=train, stages=()), {}, load_weights=False)


def _refuse_same_model(study: Study, variant: Variant) -> None:
    recipe = study.recipe_of(variant)
    for other in study.variants:
        if other.name != variant.name and study.recipe_of(other) == recipe:
            what = "model and recipe" if variant.overrides else "model"
            raise UsageError(f"the variants {other.name} and {variant.name} have the same {what}; remove one of them")


def _check_own_recipe(study: Study, variant: Variant, *, teacher: bool) -> nn.Module:
    """Check the recipe of a variant with `set`, and return its host on the meta device.

    With `teacher`, also check a teacher that differs from the study's.
    """
    recipe, common = study.recipe_of(variant), study.baseline_recipe
    try:
        if recipe.task != common.task:
            task = build_task(recipe)
            if task.primary == "loss" and variant.sets("task.loss.name"):
                raise UsageError("task.loss.name: variants are compared by the loss; set the same for all")
        if teacher and recipe.distill != common.distill:
            check_teacher(recipe)
        return host_on_meta(recipe)
    except AttngraftError as error:
        raise UsageError(f"{variant.where}.set (the variant {variant.name}): {error}") from error


def _check_other_host(study: Study, variant: Variant, *, fetch: bool) -> nn.Module:
    """Build a variant's host on the meta device; with `fetch`, also load and check its initial weights."""
    recipe = study.recipe_of(variant)
    try:
        host = host_on_meta(recipe)
        check_task_host(recipe, host)
        own = model_data_config(recipe)
    except AttngraftError as error:
        raise UsageError(f"the variant {variant.name}: {error}") from error
    if fetch:
        check_patches(recipe, host)
        try:
            check_start(recipe)
        except AttngraftError as error:
            raise UsageError(
                f"the variant {variant.name}: {error}. Set the initial weights of this host next to its name: "
                "{name: ..., weights: FILE}, or pretrained: false for random values"
            ) from error
    shared = model_data_config(study.baseline_recipe)
    kind, wanted = (config.get("kind", "images") for config in (own, shared))
    if kind != wanted:
        raise UsageError(
            f"the variant {variant.name} takes {kind}, but the study's host "
            f"{study.baseline_recipe.host.name} takes {wanted}, and all variants use the same data; remove it"
        )
    if kind != "images":
        return host
    size, expected = tuple(own["input_size"]), tuple(shared["input_size"])
    if size != expected:
        raise UsageError(_other_input(variant, study.baseline_recipe.host.name, size, expected))
    return host


def _other_input(variant: Variant, host: str, size: tuple[int, ...], expected: tuple[int, ...]) -> str:
    remedies = []
    if size[1:] != expected[1:]:
        side = str(expected[1]) if expected[1] == expected[2] else f"[{expected[1]}, {expected[2]}]"
        remedies.append(f"img_size: {side}")
    if size[0] != expected[0]:
        remedies.append(f"in_chans: {expected[0]}")
    return (
        f"the variant {variant.name} takes inputs of {'x'.join(map(str, size))}, but the study's host {host} takes "
        f"inputs of {'x'.join(map(str, expected))}, and all variants use the same images; give the variant the arguments "
        f"{{{', '.join(remedies)}}}, or, if it does not accept img_size, "
        f"{{pretrained_cfg_overlay: {{input_size: {list(expected)}}}}}"
    )


def refuse_other_recipes(study: Study) -> None:
    """Check that every started run has the recipe that this study assigns to it.

    Raises:
        FolderError: a run has a different recipe; the message lists the differing fields and the remedies.
    """
    refuse_other_folds(study)
    problems = []
    for run in study.runs:
        if run.state != "new":
            try:
                RunFolder(run.folder).refuse_other_recipe(run.recipe)
            except FolderError as error:
                problems.append(str(error))
    if problems:
        others = f"\n({len(problems) - 1} more runs of this study differ as well)" if len(problems) > 1 else ""
        raise FolderError(
            f"{problems[0]}{others}\nFor a study: use another --out, restore the settings in study.yaml, or delete the "
            "runs to retrain them"
        )


def refuse_other_folds(config: StudyConfig) -> None:
    """Check that the study's folder does not contain runs with other folds.

    Raises:
        FolderError: it contains runs without folds, but the study has folds, or vice versa, or folds that the study lacks.
    """
    for variant, seed in itertools.product(config.variants, config.seeds):
        folder = run_folder(config.out, variant, seed)
        single, folds = RunFolder(folder).recipe.is_file(), len(list(folder.glob("fold*/recipe.yaml")))
        if (single and config.folds is not None) or folds > (config.folds or 0):
            found = "without folds" if single else f"of {folds} folds"
            given = "has no folds" if config.folds is None else f"has {config.folds} folds"
            raise FolderError(
                f"{folder}: contains a run {found}, but the study {given}; use another --out, or delete the runs"
            )


def with_first_round(config: StudyConfig, before: StudyConfig) -> StudyConfig:
    """Check that rounds start with the seeds of the study `before` in the same folder, and return `config` with them.

    Raises:
        FolderError: `config` has `until` and other seeds, and runs exist.
    """
    first = before.first_round or (None if before.until is None else before.seeds)
    runs = itertools.product(before.variants, before.all_seeds, before.fold_numbers)
    if not any(RunFolder(run_folder(config.out, *run)).recipe.is_file() for run in runs):
        first = None
    elif config.until is not None and config.seeds != (first or before.seeds):
        started = "this study ran" if first is None else "the rounds of this study started"
        raise FolderError(
            f"{config.out}: {started} with seeds {', '.join(map(str, first or before.seeds))}, and starting with others "
            "would repeat tests that were already made; use the same --seeds, or another --out"
        )
    return dataclasses.replace(config, first_round=None if config.until is not None else first)


def refuse_other_variants(config: StudyConfig) -> None:
    """Check that existing runs match the seed of their folder, and the graft, host and `set` of their variant.

    Unlike `refuse_other_recipes`, this does not read the study's recipe, whose file may no longer exist.

    Raises:
        FolderError: a run has a different seed, graft, host or recipe field; the message names the run and the difference.
    """
    refuse_other_folds(config)
    for variant, seed, fold in itertools.product(config.variants, config.all_seeds, config.fold_numbers):
        folder = run_folder(config.out, variant, seed, fold)
        record = existing_run(folder)
        if record is None:
            continue
        recipe = record.recipe
        if recipe.seed != seed:
            raise FolderError(
                f"{folder}: this run has seed {recipe.seed}, so it would be counted twice or compared with other seeds; "
                "move it to the folder of its seed, or delete it"
            )
        plain = recipe_to_dict(recipe)
        changed = recipe_to_dict(with_cut(recipe_from_dict(apply_overrides(plain, variant.overrides)), record.cut))
        if different := differing_fields(plain, changed):
            raise FolderError(
                f"{folder}: this run's recipe differs from {variant.where}.set: {'; '.join(different)}; report on the "
                f"study as it was run (--report-only --out {config.out}), rename the variant, or delete the run"
            )
        if str(parse(recipe.graft)) != variant.spec or not _has_host(recipe, variant.host):
            host = host_label({"name": recipe.host.name, "args": dict(recipe.host.args)})
            graft = f" with the graft {recipe.graft}" if recipe.graft else ""
            raise FolderError(
                f"{folder}: this run trained {host}{graft}, but the variant {variant.name} is {variant.key}; report on "
                f"the study as it was run (--report-only --out {config.out}), rename the variant, or delete the run"
            )


def _has_host(recipe: Recipe, host: StudyHost | None) -> bool:
    """Return whether a run's host is `host`; always True for None, the study's host."""
    if host is None:
        return True
    kept, given = dict(recipe.host.args), dict(host.args)
    if host.weights is not None or recipe.host.name.startswith("hf:"):  # a transformers folder adds arguments
        kept = {name: value for name, value in kept.items() if name in given}
    return recipe.host.name in (host.name, f"hf:{host.name}") and kept == given
