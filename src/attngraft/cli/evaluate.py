"""`attngraft eval`: evaluate a model, on clean data or under suites."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from attngraft.cli.output import counts_displayed, is_first_process, output_console, print_json, progress_display
from attngraft.cli.values import ALLOW_DOWNLOAD, DEVICE, HOST_ARG, HOST_WEIGHTS, MODEL, TRUST_CODE, limit_downloads
from attngraft.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attngraft.evaluation.suites import SuiteRun
    from attngraft.training.target import Target


Weights = Literal["last", "best", "ema", "best-ema"]  #: `training.evaluate.Weights`, without importing it


def evaluate(
    model: Annotated[str, typer.Argument(help=MODEL, metavar="RUN|FOLDER|HOST|FILE")],
    suite: Annotated[
        list[str] | None,
        typer.Option(
            "--suite",
            metavar="NAME[,NAME]|NAME=DIR",
            help="Suite to evaluate (attngraft list suites); repeatable. NAME=DIR reads its images from DIR.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Other data to evaluate on: its test or validation split, or, with --suite, all images "
            "of a folder of class folders. Default: the run's data; required for other models.",
            metavar="DATA",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            help="Split of the data to use; val and test are those of the run. Default: test if there is one, else "
            "validation; for a run's own data, the split that the run is evaluated on.",
            metavar="NAME",
        ),
    ] = None,
    weights: Annotated[Weights, typer.Option("--weights", help="Weights of the run to use.")] = "last",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for predictions.npz and evaluation.json, or for results of suites. Default: RUN_DIR/evaluation for "
            "suites, none for clean data.",
            metavar="FOLDER",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="NAME",
            help="Task of a host (attngraft list tasks). Default: classification. Not for runs and exported folders.",
        ),
    ] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Load the pretrained weights of the host.")] = False,
    host_weights: Annotated[Path | None, typer.Option("--host-weights", metavar="FILE", help=HOST_WEIGHTS)] = None,
    host_arg: Annotated[list[str] | None, typer.Option("--host-arg", metavar="NAME=VALUE", help=HOST_ARG)] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="task.FIELD=VALUE", help="Change a field of the task; repeatable."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, metavar="N", help="With --suite: use only N images, evenly spaced."),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", metavar="NAME", help=DEVICE)] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST_CODE)] = False,
    allow_download: Annotated[
        bool, typer.Option("--allow-download", help=ALLOW_DOWNLOAD, callback=limit_downloads)
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Evaluate a model on its own test or validation data or on other data, clean or under suites.

    The model is a run, a folder written by attngraft export, a host with weights, or a weights file that names its host. The
    outputs of a host or a weights file are taken to be the classes of the data, in order, and must be as many.

    Results of suites are written to RUN_DIR/evaluation or --out; predictions on clean data only to --out. Finished
    conditions are not repeated: rerun the same command to resume. If a suite fails, the others are still evaluated, and the
    exit code is 1.

    Examples:

        attngraft eval runs/digits

        attngraft eval runs/cb_s --split test --weights best --json

        attngraft eval runs/cb_s --data ./more-flowers

        attngraft eval runs/cb_s --suite robustness --suite calibration

        attngraft eval runs/cb_s --suite corruptions,pgd --limit 500

        attngraft eval runs/imagenet --suite v2=./imagenetv2-matched-frequency-format-val --suite a=./imagenet-a

        attngraft eval ./flowers-model --data ./more-flowers --out judged

        attngraft eval vit_tiny_patch16_224 --pretrained --suite v2=./imagenetv2 --out judged-tiny

        attngraft eval bixt.safetensors --data ./imagenet --split val --out judged-bixt

        attngraft eval hf:./my-bert --pretrained --task text_classification --data reviews.csv

        attngraft eval hf:./opus-mt-en-de --pretrained --task translation --data ./newstest2014
        --set task.source=en --set task.target=de
    """
    from attngraft.cli.models import host_options
    from attngraft.devices import use_device
    from attngraft.files import check_output
    from attngraft.targets.judged import open_target, with_settings

    if limit is not None and not suite:
        raise UsageError("--limit requires --suite; add a suite, or remove --limit")
    host = host_options(pretrained, host_weights, host_arg)
    use_device(device)
    check_output(out, folder=True)
    opened = open_target(model, weights=weights, host=host, task=task, out=out, trust_code=trust_code)
    opened = with_settings(opened, set_ or [])
    if suite:
        if out is None and not opened.is_run:
            raise UsageError(f"{model}: not a run, so suites require an output folder; add --out FOLDER")
        where = {"data": data, "split": split, "limit": limit, "trust_code": trust_code}
        _evaluate_suites(opened, suite, as_json=as_json, **where)
        return
    _evaluate(opened, out, as_json=as_json, data=data, split=split, trust_code=trust_code)


def _evaluate(
    target: Target, out: Path | None, *, as_json: bool, data: str | None, split: str | None, trust_code: bool
) -> None:
    from attngraft.targets.judged import save_evaluation
    from attngraft.training.evaluate import evaluate_target

    with counts_displayed():
        evaluation = evaluate_target(target, data=data, split=split, trust_code=trust_code)
    if out is not None and is_first_process():
        save_evaluation(evaluation, target, out, data=data)
    examples = len(evaluation.predictions.names)
    if as_json:
        name = {"run": target.name} if target.is_run else {"model": target.name}
        where = {"split": evaluation.split, "examples": examples}
        print_json({**name, "weights": target.weights, **where, "metrics": dict(evaluation.metrics)})
        return
    where_text = {"val": "validation", "test": "test"}.get(evaluation.split, evaluation.split)
    table = Table(title=f"{target.name} ({target.weights} weights, {examples} {where_text} examples)")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for metric, value in evaluation.metrics.items():
        table.add_row(metric, f"{value:.4g}")
    output_console().print(table)


def _evaluate_suites(target: Target, texts: list[str], *, as_json: bool, **where: Any) -> None:
    from attngraft.evaluation.suites import SuitesFailed, evaluate_suites, parse_suites
    from attngraft.evaluation.suites.progress import SuiteBar, SuiteLog, SuiteProgress

    choices = parse_suites(texts)
    failed = None
    try:
        with progress_display(SuiteBar, SuiteLog, SuiteProgress) as callbacks:
            found = evaluate_suites(target, choices, progress=callbacks, **where)
    except SuitesFailed as error:
        found, failed = error.found, error
    if is_first_process():
        _show(target, found, as_json=as_json)
    if failed is not None:
        raise failed


def _show(target: Target, found: Sequence[SuiteRun], *, as_json: bool) -> None:
    from attngraft.report.suites import suite_heading, suite_table, summary_conditions
    from attngraft.tasks.task import load_task

    if as_json:
        print_json([dataclasses.asdict(each) for each in found])
        return
    out, metrics = output_console(100, highlight=True), load_task(target.recipe.task["name"]).metrics
    for each in found:
        out.print(suite_heading(each), markup=False, highlight=False, soft_wrap=True)
        out.print(suite_table(each, metrics))
        reasons = [f"{group.label}: {group.reason}" for group in each.groups if group.reason]
        remarks = dict.fromkeys(text for group in each.groups for text in group.said)
        more = []
        if len(summary_conditions(each.groups)) < len(each.groups):
            more = [
                "the table has means over severities; results for each severity are in results.csv and results.json."
            ]
        for note in [*each.notes, *more, *reasons, *remarks]:
            out.print(f"Note: {note}", markup=False, highlight=False)
    if found:
        out.print(f"Predictions and results: {target.results}", markup=False, highlight=False, soft_wrap=True)
