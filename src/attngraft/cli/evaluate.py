"""`attngraft eval`: evaluate a trained run, on clean data or under suites."""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attngraft.cli.output import output_console
from attngraft.cli.values import TRUST_CODE
from attngraft.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attngraft.evaluation.suites import SuiteRun


Weights = Literal["last", "best", "ema", "best-ema"]  #: `training.evaluate.Weights`, without importing it


def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN_DIR")],
    suite: Annotated[
        list[str] | None,
        typer.Option(
            "--suite",
            metavar="NAME[,NAME]|NAME=DIR",
            help="Suite to evaluate under (attngraft list suites); repeatable. NAME=DIR: on the images in DIR.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Evaluate on other data of the same kind: on its validation part, or, with --suite, on all images of a "
            "folder of class folders. Default: the run's data.",
            metavar="DATA",
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Name of the part to use instead of validation.", metavar="NAME")
    ] = None,
    weights: Annotated[Weights, typer.Option("--weights", help="Weights of the run to use.")] = "last",
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, metavar="N", help="With --suite: use only N images, evenly spaced."),
    ] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST_CODE)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Evaluate a trained model on its own validation data or on other data, clean or under suites.

    Predictions and results of suites are written to RUN_DIR/evaluation. Finished conditions are not repeated: rerun the same
    command to resume. If a suite fails, the others are still evaluated, and the exit code is 1.

    Examples:

        attngraft eval runs/digits

        attngraft eval runs/cb_s --split test --weights best --json

        attngraft eval runs/cb_s --data ./more-flowers

        attngraft eval runs/cb_s --suite robustness --suite calibration

        attngraft eval runs/cb_s --suite corruptions,pgd --limit 500

        attngraft eval runs/imagenet --suite v2=./imagenetv2-matched-frequency-format-val --suite a=./imagenet-a
    """
    if suite:
        where = {"data": data, "split": split, "limit": limit, "trust_code": trust_code}
        _evaluate_suites(run, suite, weights=weights, as_json=as_json, **where)
        return
    if limit is not None:
        raise UsageError("--limit needs --suite; add a suite, or leave --limit out")
    _evaluate(run, as_json=as_json, weights=weights, data=data, split=split, trust_code=trust_code)


def _evaluate(run: Path, *, as_json: bool, weights: Weights, **where: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    from attngraft.training.evaluate import evaluate_run

    evaluation = evaluate_run(run, weights=weights, **where)
    examples = len(evaluation.predictions.names)
    if as_json:
        facts = {"run": str(run), "weights": weights, "examples": examples, "metrics": dict(evaluation.metrics)}
        typer.echo(json.dumps(facts, indent=2))
        return
    table = Table(title=f"{run} ({weights} weights, {examples} examples)")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in evaluation.metrics.items():
        table.add_row(name, f"{value:.4g}")
    Console().print(table)


def _evaluate_suites(run: Path, texts: list[str], *, as_json: bool, weights: Weights, **where: Any) -> None:
    from rich.console import Console

    from attngraft.evaluation.suites import SuitesFailed, evaluate_suites, parse_suites
    from attngraft.evaluation.suites.progress import SuiteBar, SuiteLog, SuiteProgress

    choices = parse_suites(texts)
    console = Console(stderr=True)
    silent = bool(int(os.environ.get("RANK", "0")))  # of several processes, only the first prints
    if silent:
        progress: Any = nullcontext(SuiteProgress())
    else:
        progress = SuiteBar(console) if console.is_terminal else nullcontext(SuiteLog())
    failed = None
    try:
        with progress as callbacks:
            found = evaluate_suites(run, choices, weights=weights, progress=callbacks, **where)
    except SuitesFailed as error:
        found, failed = error.found, error
    if not silent:
        _show(run, found, as_json=as_json)
    if failed is not None:
        raise failed


def _show(run: Path, found: Sequence[SuiteRun], *, as_json: bool) -> None:
    from attngraft.report.suites import suite_heading, suite_table

    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
        return
    out = output_console(100, highlight=True)
    for each in found:
        out.print(suite_heading(each), markup=False, highlight=False, soft_wrap=True)
        out.print(suite_table(each))
        reasons = [f"{group.label}: {group.reason}" for group in each.groups if group.reason]
        remarks = dict.fromkeys(text for group in each.groups for text in group.said)
        for note in [*each.notes, *reasons, *remarks]:
            out.print(f"Note: {note}", markup=False, highlight=False)
    if found:
        out.print(f"Predictions and results: {run / 'evaluation'}", markup=False, highlight=False, soft_wrap=True)
