"""Shared parts of the scripts in `bench/`: options, table, result file, exit status."""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attngraft.bench.result import BenchResult, Measurement, to_json, write_result


def options(description: str, *, pairs: int) -> argparse.ArgumentParser:
    """Return a parser with the options common to all benchmarks; scripts may add others."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--pairs", type=int, default=pairs, help="interleaved pairs (30 or more for published results)")
    parser.add_argument("--out", type=Path, default=None, help="write the result as JSON (benchmarks/NAME.json)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def finish(result: BenchResult, *, out: Path | None, as_json: bool) -> int:
    """Print `result`, write it to `out`, and return the exit status: 1 if a bar was missed."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    if as_json:
        console.out(to_json(result), highlight=False)
    else:
        console.print(render(result))
    if out is not None:
        write_result(result, out)
    return 0 if result.passed else 1


def render(result: BenchResult) -> Table:
    """Render `result` as a table: value, interval, bar, pass or fail."""
    environment = result.environment
    facts = (
        f"{environment.get('device_name')}, {environment.get('threads')} threads",
        f"load {result.load[0]}" if result.load else "",
        f"torch {environment.get('packages', {}).get('torch')}",
    )
    caption = Text(", ".join(filter(None, facts)))
    drawn = Table(title=Text(result.title), caption=caption, title_justify="left", caption_justify="left")
    drawn.add_column("measurement")
    for heading in ("median", "95% interval", "bar"):
        drawn.add_column(heading, justify="right")
    drawn.add_column("")
    for line in result.measurements:
        verdict = Text("") if line.bar is None else Text("pass", "green") if line.passed else Text("FAIL", "bold red")
        bar = "" if line.bar is None else _number(line, line.bar)
        interval = f"{_number(line, line.low)} to {_number(line, line.high)}"
        drawn.add_row(Text(line.name), _number(line, line.value), interval, bar, verdict)
    return drawn


def _number(line: Measurement, value: float) -> str:
    return f"{value:.3f}" + {"ratio": "x", "seconds": " s", "points": ""}[line.unit]
