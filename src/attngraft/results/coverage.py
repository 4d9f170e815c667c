"""Measured coverage of the confidence intervals, shipped in coverage.json, and the sentence that reports it."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attngraft.strict import read

FILE = Path(__file__).with_name("coverage.json")


@dataclass(frozen=True, kw_only=True)
class SeedsCoverage:
    """Shares of simulated studies with this many seeds whose 95% interval contains the true difference."""

    seeds: int
    studies: int
    bootstrap: float
    t: float


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The measurement and the command that repeats it."""

    command: str
    kinds: int  #: of simulated studies, in equal numbers
    measured: tuple[SeedsCoverage, ...]


@cache
def measured_coverage() -> Coverage:
    """Read the shipped measurement.

    Raises:
        ConfigError: the file was edited and cannot be read.
    """
    return read(Coverage, json.loads(FILE.read_text(encoding="utf-8")), where=FILE.name)


def coverage_note(coverage: Coverage) -> str:
    """Return the report's footnote: the coverage of both intervals for each measured number of seeds."""

    def percent(share: float) -> str:
        return f"{int(share * 1000 + 1e-9) / 10:.1f}%"  # rounded down, so that coverage never looks better than it is

    cells = [f"{percent(row.bootstrap)} and {percent(row.t)} with {row.seeds} seeds" for row in coverage.measured]
    return (
        f"Coverage of the 95% intervals over simulated studies with a known difference ({coverage.measured[0].studies:,} "
        f"for each number of seeds, of {coverage.kinds} kinds), bootstrap interval and t-interval: {', '.join(cells)}."
    )
