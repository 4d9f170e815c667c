"""Measured coverage of the confidence intervals (coverage.json), and the report's note on it."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attngraft.opening import read_json
from attngraft.strict import read

FILE = Path(__file__).with_name("coverage.json")


@dataclass(frozen=True, kw_only=True)
class SeedsCoverage:
    """For one number of seeds, the share of simulated studies whose interval contains the difference."""

    seeds: int
    studies: int
    interval: float  #: the interval that decides the verdict
    bootstrap: float
    t: float


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The measured coverage, and the command that repeats the measurement."""

    command: str
    kinds: int  #: number of kinds of simulated studies, equally frequent
    measured: tuple[SeedsCoverage, ...]


@cache
def measured_coverage() -> Coverage:
    """Load the packaged measurement.

    Raises:
        ConfigError: the file was modified and is invalid.
    """
    return read(Coverage, read_json(FILE), where=FILE.name)


def coverage_note(coverage: Coverage) -> str:
    """Return the report's footnote: the coverage of the interval for each measured number of seeds."""

    def percent(share: float) -> str:
        return f"{int(share * 1000 + 1e-9) / 10:.1f}%"  # round down, to avoid overstating the coverage

    cells = [f"{percent(row.interval)} with {row.seeds} seeds" for row in coverage.measured]
    return (
        f"Coverage of the 95% interval over simulated studies with a known difference ({coverage.measured[0].studies:,} "
        f"for each number of seeds, of {coverage.kinds} kinds): {', '.join(cells)}."
    )
