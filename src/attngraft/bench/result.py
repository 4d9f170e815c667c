"""What a benchmark found, with everything needed to judge it: machine, versions, load, command. Committed as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attngraft.errors import ConfigError
from attngraft.files import write_atomically
from attngraft.strict import read
from attngraft.timing.paired import Bar, Duration, PairedRatio

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One line: a ratio or a duration with its 95% interval, and the bar that it must keep."""

    name: str
    unit: Literal["ratio", "seconds"]
    value: float  #: median
    low: float
    high: float
    bar: float | None
    passed: bool  #: fails only if the whole interval lies beyond the bar
    samples: int
    baseline_seconds: float | None = None
    candidate_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """One run of one benchmark."""

    title: str
    command: str
    environment: Mapping[str, Any]  #: versions, commit, device, threads, start
    load: list[float]  #: load averages over 1, 5 and 15 minutes at the start; near 0 on a quiet machine
    settings: Mapping[str, Any]  #: what the command was told
    measurements: tuple[Measurement, ...]
    format: int = field(default=FORMAT)

    @property
    def passed(self) -> bool:
        return all(measurement.passed for measurement in self.measurements)


def measurement(name: str, measured: PairedRatio | Duration, *, bar: float | None) -> Measurement:
    """A line of the result from what the harness measured."""
    passed = bar is None or Bar(bar).passes(measured)
    if isinstance(measured, Duration):
        return Measurement(
            name=name,
            unit="seconds",
            value=measured.seconds,
            low=measured.low,
            high=measured.high,
            bar=bar,
            passed=passed,
            samples=measured.samples,
        )
    return Measurement(
        name=name,
        unit="ratio",
        value=measured.ratio,
        low=measured.low,
        high=measured.high,
        bar=bar,
        passed=passed,
        samples=measured.pairs,
        baseline_seconds=measured.baseline_seconds,
        candidate_seconds=measured.candidate_seconds,
    )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where and how a benchmark runs; made before the first sample, since measuring makes load."""

    environment: Mapping[str, Any]
    load: list[float]
    command: str


def measured_once(name: str, value: float, *, bar: float) -> Measurement:
    """A line for a ratio that is the same every time."""
    return Measurement(
        name=name, unit="ratio", value=value, low=value, high=value, bar=bar, passed=value <= bar, samples=1
    )


def here(device: str = "cpu") -> Setting:
    """This machine, now."""
    import torch

    from attngraft.environment import environment

    found = environment(torch.device(device))
    command = _said(found.pop("command", sys.argv))
    load = [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else []
    return Setting(environment=found, load=load, command=command)


def _said(arguments: Sequence[str]) -> str:
    """The command as somebody else would type it: a script by its path, an installed program by its name."""
    program = Path(arguments[0])
    return shlex.join(["python", *arguments] if program.suffix == ".py" else [program.name, *arguments[1:]])


def write_result(result: BenchResult, path: Path) -> None:
    """Write `result` as JSON, atomically."""
    write_atomically(path, json.dumps(dataclasses.asdict(result), indent=2, ensure_ascii=False) + "\n")


def read_result(path: Path) -> BenchResult:
    """Read what `write_result` wrote.

    Raises:
        ConfigError: not JSON, unknown or missing fields, or a format that this version does not know.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: not a benchmark's result: {error}") from None
    result = read(BenchResult, content, where=path.name)
    if result.format != FORMAT:
        raise ConfigError(f"{path}: format {result.format} is not {FORMAT}; measure again with this version")
    return result
