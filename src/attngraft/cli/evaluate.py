"""`attngraft eval`: a trained run on data."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Weights(StrEnum):
    """Which weights of a run."""

    last = "last"
    best = "best"
    ema = "ema"
    best_ema = "best-ema"


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN_DIR")],
    data: Annotated[
        str | None,
        typer.Option("--data", help="Other data of the same kind; the run's own if left out.", metavar="DATA"),
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="A part of the data by name, instead of validation.", metavar="NAME")
    ] = None,
    weights: Annotated[Weights, typer.Option("--weights", help="Which weights of the run.")] = Weights.last,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Evaluate a trained model, on its own validation data or on other data.

    Examples:

        attngraft eval runs/digits

        attngraft eval runs/cb_s --split test --weights best --json

        attngraft eval runs/cb_s --data ./more-flowers
    """
    import json

    from rich.console import Console
    from rich.table import Table

    from attngraft.training.evaluate import evaluate_run

    evaluation = evaluate_run(run, data=data, split=split, weights=weights.value)
    examples = len(evaluation.predictions.names)
    if as_json:
        facts = {"run": str(run), "weights": weights.value, "examples": examples, "metrics": dict(evaluation.metrics)}
        typer.echo(json.dumps(facts, indent=2))
        return
    table = Table(title=f"{run} ({weights.value} weights, {examples} examples)")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in evaluation.metrics.items():
        table.add_row(name, f"{value:.4g}")
    Console().print(table)
