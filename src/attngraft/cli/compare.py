"""`attngraft compare`: train variants and compare them.

From the command to the first batch:

    cli.compare.compare        options and the study file -> StudyConfig, Executor
    study.runner.compare       prepare: resolve every run's recipe, check the variants, open the data, and time a few
                               steps (training.profiler.BenchmarkBatch)
    study.runner.train_runs    hand the runs to the executor's workers; each calls executors.base.run_task
    training.loop.train        lock the run's folder; training.setup.prepare_run: data, host, grafts, optimizer
    Trainer.train              epochs; training.update.Update: the batches of one update, forward, backward, step
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngraft.cli.output import command_line, echo, output_console, print_json, progress_display
from attngraft.cli.values import (
    ALLOW_DOWNLOAD,
    AUTO_BATCH,
    CACHE,
    DEVICE,
    HOST,
    HOST_ARG,
    PRETRAINED,
    START,
    TASK,
    TRACK,
    TRUST_CODE,
    choose_recipe,
    limit_downloads_of_file,
)
from attngraft.forking import worker_context
from attngraft.suggest import cut

if TYPE_CHECKING:
    from attngraft.results.study import StudyResult
    from attngraft.study.config import StudyConfig
    from attngraft.study.executors import Executor

_comparison, _training, _output, _many_runs = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Comparison", "Training", "Output", "Many runs")
)


def compare(
    host: Annotated[str | None, _comparison("--host", metavar="NAME", help=HOST)] = None,
    graft: Annotated[
        list[str] | None,
        _comparison(
            "--graft",
            metavar="SPEC",
            help='A variant: a graft specification, or "{graft: SPEC, set: {FIELD: VALUE}}"; repeatable. shortlist: grafts '
            "that suit the host; all: every graft that fits it. The plain host (none) is always included.",
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        _comparison(
            "--against",
            metavar="HOST",
            help='Another host to train with the same recipe: a name, or "NAME: {argument: value}"; repeatable.',
        ),
    ] = None,
    data: Annotated[
        str | None,
        _comparison(
            "--data",
            metavar="SOURCE",
            help="A folder, .tar, .npz, .csv, .parquet, COCO .json, shards, hf:PATH, timm:NAME, or digits.",
        ),
    ] = None,
    out: Annotated[str | None, _output("--out", metavar="FOLDER", help="Output folder for runs and results.")] = None,
    seeds: Annotated[
        str | None,
        _comparison("--seeds", metavar="N|A,B", help="Number of seeds (3: 0, 1, 2), or a list (5,7). Default: 3."),
    ] = None,
    folds: Annotated[
        int | None,
        _comparison(
            "--folds",
            metavar="K",
            help="Cross-validation: divide the images into K folds and train every variant and seed once per fold, so that "
            "every image is evaluated.",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        _training(
            "--epochs",
            metavar="E",
            help="Epochs of every run; a warm-up that does not fit is shortened. 0 compares the models without training. "
            "Default: the recipe's.",
        ),
    ] = None,
    time_budget: Annotated[
        str | None,
        _training(
            "--time-budget",
            metavar="TIME",
            help="Train as many epochs (at most --epochs) as fit into this time for the whole study: 90s, 10m, 1h30m.",
        ),
    ] = None,
    task: Annotated[str | None, _comparison("--task", metavar="NAME", help=TASK)] = None,
    recipe: Annotated[
        str | None, _training("--recipe", metavar="NAME|FILE", help="A packaged recipe or a YAML file.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        _training("--set", metavar="A.B=VALUE", help="Change a field of the recipe, for all variants; repeatable."),
    ] = None,
    host_arg: Annotated[list[str] | None, _comparison("--host-arg", metavar="NAME=VALUE", help=HOST_ARG)] = None,
    pretrained: Annotated[bool, _comparison("--pretrained", help=PRETRAINED)] = False,
    weights: Annotated[str | None, _comparison("--weights", metavar="FILE", help=START)] = None,
    parameters: Annotated[
        str | None,
        _training(
            "--train",
            metavar="WHAT",
            help="Parameters to train: all, grafts+head, or head. Except with all, the baseline trains only its head.",
        ),
    ] = None,
    device: Annotated[str | None, _training("--device", metavar="NAME", help=DEVICE)] = None,
    jobs: Annotated[
        str | None,
        _many_runs(
            "--jobs",
            metavar="N|auto",
            help="Number of concurrent runs on this machine, on separate devices or cores; does not affect results. "
            "auto (default): as many as the cores allow if this is faster; one with a GPU or --halving.",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        _many_runs(
            "--ray",
            metavar="ADDRESS",
            help="Train on a Ray cluster: its address, auto, or local to start one on this machine.",
        ),
    ] = None,
    cpus_per_run: Annotated[
        float | None,
        _many_runs(
            "--cpus-per-run", metavar="N", help="With --ray: CPUs per run. Default: the number of threads of a run."
        ),
    ] = None,
    gpus_per_run: Annotated[
        float | None,
        _many_runs(
            "--gpus-per-run",
            metavar="N",
            help="With --ray: GPUs per run, may be a fraction. Default: 1 if the cluster has GPUs, else 0.",
        ),
    ] = None,
    retries: Annotated[
        int | None,
        _many_runs(
            "--retries",
            metavar="N",
            help="How often to resume a run whose process or node died. Default: 2; with --ray 3.",
        ),
    ] = None,
    halving: Annotated[
        str | None,
        _many_runs(
            "--halving",
            metavar="N[,E]",
            help="Successive halving for many grafts: 3 continues the best third at each rung; 3,2 sets the first rung to "
            "epoch 2; off disables it and resumes the stopped variants.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        _many_runs(
            "--until",
            metavar="decided",
            help="Add one seed at a time to undecided variants, until each is better, worse, within the margin, or unlikely "
            "to be decided; at most 20 seeds. --seeds is the first round. off disables it.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        _many_runs("--budget", metavar="TIME", help="With --until: start no round that ends after this time: 90s, 2h."),
    ] = None,
    margin: Annotated[
        float | None,
        _many_runs(
            "--margin",
            metavar="X",
            help="With --until: also decide a variant whose difference lies within ±X points (or units of the metric).",
        ),
    ] = None,
    cache: Annotated[str, _many_runs("--cache", metavar="auto|off|SIZE", help=CACHE, show_default=False)] = "auto",
    auto_batch: Annotated[bool, _training("--auto-batch", help=AUTO_BATCH)] = False,
    track: Annotated[list[str] | None, _training("--track", metavar="NAME", help=TRACK)] = None,
    study: Annotated[
        Path | None,
        _comparison("--study", metavar="FILE", help="A study file (YAML); other options override its fields."),
    ] = None,
    metric: Annotated[
        str | None,
        _comparison(
            "--metric",
            metavar="NAME",
            help="Metric of the comparison, any of the task's: top1, top5, balanced_accuracy, macro_f1, loss; multilabel: "
            "image_ap, map, macro_f1, micro_f1, loss; regression: rmse, mae, r2, spearman.",
        ),
    ] = None,
    suite: Annotated[
        list[str] | None,
        _comparison(
            "--suite",
            metavar="NAME[,NAME]|NAME=DIR",
            help="Also evaluate finished runs under a suite (attngraft list suites); repeatable.",
        ),
    ] = None,
    title: Annotated[str | None, _output("--title", help="The report's title.")] = None,
    report_only: Annotated[
        bool, _output("--report-only", help="Train nothing: report on the finished runs in --out.")
    ] = False,
    trust_code: Annotated[bool, _comparison("--trust-code", help=TRUST_CODE)] = False,
    allow_download: Annotated[
        bool, _comparison("--allow-download", help=ALLOW_DOWNLOAD, callback=limit_downloads_of_file)
    ] = False,
    dry_run: Annotated[
        bool, _training("--dry-run", help="Check everything, print the estimate, train nothing.")
    ] = False,
    as_json: Annotated[bool, _output("--json", help="Print the result (or the plan) as JSON.")] = False,
) -> None:
    """Train a host and grafted variants of it under one recipe, compare them, and write a report.

    Every variant is trained with every seed; all variants of a seed share initialization, batches and augmentation.
    Rerun the same command to resume. Results go to FOLDER: results.json, results.csv, metrics.csv, plots, report.html.

    Examples:

        attngraft compare --host vit_tiny_patch16_224 --graft cb_s --graft horizontal --data ./flowers --out study

        attngraft compare --recipe finetune --host vit_tiny_patch16_224 --graft shortlist --data ./flowers --out short

        attngraft compare --host vit_tiny_patch16_224 --host-arg img_size=32 --host-arg depth=6
        --graft "cb@last:50%" --data digits --seeds 3 --time-budget 10m --out digits-study

        attngraft compare --host vit_tiny_patch16_224 --against "swin_tiny_patch4_window7_224: {depths: [2, 2, 2, 2]}"
        --data ./flowers --out hosts

        attngraft compare --host torchvision:vit_b_16 --against module:mymodels.vit:make --data ./flowers --out mine

        attngraft compare --study flowers.yaml --set optimizer.lr=5e-4 --out flowers-lr

        attngraft compare --host vit_tiny_patch16_224 --graft cb_s --data scans.csv --folds 5
        --set task.data.group_column=patient --out scans

        attngraft compare --recipe finetune --host vit_small_patch16_224 --pretrained --graft "cb_s" --data ./flowers
        --out tuned

        attngraft compare --study flowers.yaml --set train.threads=1 --jobs 8 --halving 3

        attngraft compare --study flowers.yaml --until decided --margin 0.5 --budget 2h

        attngraft compare --host vit_tiny_patch16_224 --graft "{graft: cb_s, set: {schedule.warmup_epochs: 10}}"
        --data ./flowers --out warmup

        attngraft compare --task multilabel --host vit_tiny_patch16_224 --graft cb_s --data labels.csv --out tagged

        attngraft compare --recipe imbalanced --host vit_tiny_patch16_224 --graft cb_s --data ./rare --out rare

        attngraft compare --host levit_128s --graft cb_s --data ./flowers --set distill.teacher.weights=runs/teacher
        --out taught

        attngraft compare --host vit_tiny_patch16_224 --weights runs/flowers --graft cb_s --data ./flowers
        --epochs 0 --out as-is

        attngraft compare --study flowers.yaml --suite robustness --suite calibration

        attngraft compare --report-only --out study
    """
    if jobs != "1" and not (ray or dry_run or report_only):
        _start_importing()
    from attngraft import study as studies
    from attngraft.cli.values import assignments, refuse_untyped_hosts
    from attngraft.devices import use_device
    from attngraft.errors import UsageError
    from attngraft.study.progress import LiveStudy, StudyLog, StudyProgress

    shorthands = {
        "task.metrics.primary": metric,
        "train.auto_batch": "true" if auto_batch else None,
        "train.parameters": parameters,
        "train.track": json.dumps(track) if track else None,
    }
    overrides = [f"{name}={value}" for name, value in shorthands.items() if value is not None]
    options: dict[str, Any] = {
        "title": title,
        "grafts": graft,
        "against": against,
        "data": data,
        "task": task,
        "recipe": recipe,
        "set": overrides + set_ if set_ else overrides or set_,
        "seeds": seeds,
        "folds": folds,
        "epochs": epochs,
        "time_budget": time_budget,
        "halving": halving,
        "until": until,
        "budget": budget,
        "margin": margin,
        "suites": suite,
        "out": out,
    }
    host_options = {
        "name": host,
        "args": assignments(host_arg or [], option="--host-arg"),
        "pretrained": pretrained,
        "weights": weights,
    }
    if device is not None and ray is not None:
        raise UsageError("--device: a Ray cluster assigns the devices of its runs; use --gpus-per-run (0: CPU)")
    use_device(device)
    config = _config(options, host_options, study, report_only=report_only)
    if not trust_code and not report_only:  # a report imports no host
        refuse_untyped_hosts(config.host_names(), typed=[host, *(against or []), *(set_ or [])])
    executor = _executor(jobs=jobs, ray=ray, cpus=cpus_per_run, gpus=gpus_per_run, retries=retries)
    if dry_run:
        _print_plan(config, executor, as_json=as_json, trust_code=trust_code, cache=cache)
        return
    if report_only:
        result = studies.report_only(config)
    else:
        with progress_display(LiveStudy, StudyLog, StudyProgress) as progress:
            result = studies.compare(config, executor=executor, progress=progress, trust_code=trust_code, cache=cache)
    _print_result(result, config, as_json=as_json)
    if studies.incomplete(result):  # a study with missing runs has failed, although it reports the others
        echo(f"attngraft: some runs of the study in {config.out} are missing; see the notes", err=True)
        raise typer.Exit(1)


def _config(options: dict[str, Any], host: dict[str, Any], study: Path | None, *, report_only: bool) -> StudyConfig:
    """Return the configuration of the study file, if any, with the given options applied."""
    from attngraft.errors import UsageError
    from attngraft.study.config import STUDY_FILE, read_study_file, study_from_dict

    options = {key: value for key, value in options.items() if value is not None}
    file = study
    if report_only and file is None:
        file = Path(options.get("out", ".")) / STUDY_FILE
        if not file.is_file():
            where = f"{options['out']} contains no study" if "out" in options else "no study is given"
            raise UsageError(f"--report-only: {where} ({file} does not exist); use --out FOLDER of a study")
    base = read_study_file(file) if file is not None else {}
    if file is not None and file.name == STUDY_FILE and (file.parent / ".lock").is_file():
        base["out"] = str(file.parent)  # the file in a study's folder, which may have been moved
    _merge_variants(options, base)
    task = options.pop("task", None)
    if "set" in options:
        options["set"] = [*base.get("set", []), *options["set"]]
    if not report_only and (base or "grafts" in options):
        given = {**base, **options}
        recipe = choose_recipe(task, given.get("recipe"), given.get("data"), given.get("set", []))
        options |= {} if recipe is None else {"recipe": recipe}
    if {"epochs", "time_budget"} & options.keys():
        base.pop("fitted_epochs", None)
    if options.get("until") == "off":
        base = {key: value for key, value in base.items() if key not in ("budget", "margin")}
    host = {key: value for key, value in host.items() if value not in (None, {}, False)}
    if host:
        old = {"name": base["host"]} if isinstance(base.get("host"), str) else base.get("host", {})
        if {"pretrained", "weights"} & host.keys():  # one replaces the other
            old = {key: value for key, value in old.items() if key not in ("pretrained", "weights")}
        args = {**old.get("args", {}), **host.get("args", {})}
        options["host"] = host if "name" in host else {**old, **host, "args": args}
    if not report_only:
        options["command"] = command_line()
    if not base and "grafts" not in options:
        raise UsageError("nothing to compare: give --graft SPEC or --against HOST (repeatable), or --study FILE")
    return study_from_dict({**base, **options}, source=str(file) if file is not None else "study")


def _merge_variants(options: dict[str, Any], base: dict[str, Any]) -> None:
    """Set `grafts` to the variants of the options and of the study file.

    --graft replaces the file's variants on the study's host, --against those on other hosts.
    """
    from attngraft.study.variants import entry_against, entry_graft

    against = options.pop("against", None)
    if against is None and "grafts" not in options:
        return
    kept: dict[bool, list[Any]] = {False: [], True: []}
    for entry in base.get("grafts", []):
        kept[isinstance(entry, dict) and entry.get("host") is not None].append(entry)
    others = kept[True] if against is None else [entry_against(text) for text in against]
    own = [entry_graft(text) for text in options["grafts"]] if "grafts" in options else kept[False]
    options["grafts"] = [*own, *others]


def _start_importing() -> None:
    """Import what worker processes need in the background, while this process imports the same."""
    several = "torch" not in sys.modules and (os.cpu_count() or 1) > 1
    if several and not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd")):
        worker_context()


def _executor(
    *, jobs: str | None, ray: str | None, cpus: float | None, gpus: float | None, retries: int | None
) -> Executor:
    """Return the selected executor."""
    from attngraft.errors import UsageError
    from attngraft.study.executors import Automatic, Processes, Ray

    if ray is None and (cpus, gpus) != (None, None):
        raise UsageError("--cpus-per-run and --gpus-per-run require --ray")
    if ray is not None and jobs is not None:
        raise UsageError(
            "--jobs and --ray are mutually exclusive: a Ray cluster trains as many runs at a time as fit; remove --jobs"
        )
    if retries is not None and retries < 0:
        raise UsageError(f"--retries must be 0 or more; got {retries}")
    more = {} if retries is None else {"retries": retries}
    if ray is not None:
        return Ray(address=ray, cpus=cpus, gpus=gpus, **more)
    if jobs in (None, "auto"):
        return Automatic(**more)
    if not jobs.isdecimal() or len(jobs) > 9:
        raise UsageError(f"--jobs {cut(jobs)}: expected a number of concurrent runs, or auto")
    return Processes(jobs=int(jobs), **more)


def _print_plan(config: StudyConfig, executor: Executor, *, as_json: bool, trust_code: bool, cache: str) -> None:
    from attngraft.study import prepare
    from attngraft.study.progress import describe_plan
    from attngraft.study.until import until_plan

    prepared = prepare(config, executor=executor, trust_code=trust_code, cache=cache)
    if not as_json:
        for run in prepared.planned:
            echo(f"{run.label}: {run.state}, {run.recipe.schedule.length} in {run.folder}")
        echo(describe_plan(prepared.planned, seconds=prepared.seconds, extra=until_plan(prepared)))
        return
    runs = [
        {
            "variant": run.variant.name,
            "spec": run.variant.spec,
            "set": list(run.variant.overrides),
            "host": run.recipe.host.name,
            "seed": run.seed,
            **({} if run.fold is None else {"fold": run.fold}),
            "epochs": None if run.recipe.schedule.steps else run.recipe.schedule.epochs,
            "steps": run.recipe.schedule.steps,
            "epochs_done": run.epochs_done,
            "state": run.state,
            "folder": str(run.folder),
        }
        for run in prepared.planned
    ]
    most = {"most_runs": len(prepared.runs), "most_seconds": prepared.most_seconds}  # if no variant is decided early
    print_json({"runs": runs, "seconds": prepared.seconds, **({} if prepared.until is None else most)})


def _print_result(result: StudyResult, config: StudyConfig, *, as_json: bool) -> None:
    from attngraft.report.metrics import NOT_CORRECTED, other_metrics_table
    from attngraft.report.rounds import rounds_table
    from attngraft.report.tables import study_table
    from attngraft.results.outlook import next_steps
    from attngraft.results.storage import result_to_dict
    from attngraft.tasks.task import SPLIT_FILE

    if as_json:
        print_json(result_to_dict(result))
        return
    console = output_console(100, highlight=True)
    console.print(study_table(result))
    if (rounds := rounds_table(result)) is not None:
        console.print("Rounds and spending", style="bold")
        console.print(rounds)
    if (table := other_metrics_table(result)) is not None:
        console.print("Other metrics: differences to the baseline", style="bold")
        console.print(table)
        where = "The report and metrics.csv have all metrics, with intervals."
        console.print(f"Note: {NOT_CORRECTED} {where}", highlight=False)
    _print_suites(result, console)
    for note in result.notes:
        console.print(f"Note: {note}", markup=False, highlight=False)
    if "split_file" in result.data and (split := config.out / SPLIT_FILE).is_file():
        again = f"--set task.data.split_file={split}"
        console.print(f"Split: {split} (reuse it with {again})", markup=False, highlight=False, soft_wrap=True)
    if steps := next_steps(result):
        console.print("What to do next", style="bold")
    for step in steps:
        console.print(step.text, markup=False, highlight=False)
        console.print(f"  {step.command}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"Report: {config.out / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def _print_suites(result: StudyResult, console: Any) -> None:
    from attngraft.report.suites import NOT_CORRECTED, about, suite_comparison, suite_format, summary_conditions

    for suite in result.suites:
        heading = f"{suite.title}: {about(suite, suite_format(result, suite))}"
        console.print(heading, markup=False, highlight=False, soft_wrap=True, style="bold")
        console.print(suite_comparison(result, suite))
        if len(summary_conditions(suite.conditions)) < len(suite.conditions):
            console.print("Note: results for each severity are in the report and in suites.csv.", highlight=False)
        for note in suite.notes:
            console.print(f"Note: {note}", markup=False, highlight=False)
    if result.suites:
        console.print(f"Note: {NOT_CORRECTED}", markup=False, highlight=False)
