"""How often the intervals held the truth where the truth is known, as measured and shipped in coverage.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attngraft.strict import read

FILE = Path(__file__).with_name("coverage.json")


@dataclass(frozen=True, kw_only=True)
class SeedsCoverage:
    """Shares of simulated studies with so many seeds whose 95% interval holds the truth."""

    seeds: int
    studies: int
    bootstrap: float
    t: float


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What was measured, and the command that measures it again."""

    command: str
    kinds: int  #: of studies, in equal numbers
    measured: tuple[SeedsCoverage, ...]


@cache
def measured_coverage() -> Coverage:
    """The shipped measurement.

    Raises:
        ConfigError: the file was changed by hand and cannot be read.
    """
    return read(Coverage, json.loads(FILE.read_text(encoding="utf-8")), where=FILE.name)
