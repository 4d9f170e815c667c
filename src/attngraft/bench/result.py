"""Benchmark results as JSON files, and the check of outputs before timing."""

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from attngraft.environment import environment
from attngraft.errors import AttngraftError, ConfigError
from attngraft.files import write_atomically
from attngraft.opening import read_json
from attngraft.strict import read
from attngraft.timing.paired import Bar, Duration, PairedRatio

FORMAT = 1
ResultT = TypeVar("ResultT")


class WrongOutputsError(AttngraftError):
    """A candidate's outputs differ from the reference's, so it was not timed."""


def check_outputs(candidate: Any, reference: Any, *, what: str, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Compare two (nested) outputs before timing; with both tolerances 0 they must be equal bit for bit.

    Raises:
        WrongOutputsError: they differ in structure, shape, type or value; the message reports where and by how much.
    """
    try:
        torch.testing.assert_close(candidate, reference, rtol=rtol, atol=atol)
    except AssertionError as error:
        raise WrongOutputsError(
            f"{what}: not timed, because its outputs differ from the reference's. {error}"
        ) from None


Unit = Literal["ratio", "seconds", "points"]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One line of a result: a ratio, a duration or percentage points, with a 95% interval and a bar (upper limit)."""

    name: str
    unit: Unit
    value: float  #: median
    low: float
    high: float
    bar: float | None
    passed: bool  #: false only if the whole interval lies above the bar
    samples: int
    baseline_seconds: float | None = None
    candidate_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Result of one run of a benchmark."""

    title: str
    command: str
    environment: Mapping[str, Any]  #: versions, commit, device, threads, start time
    load: list[float]  #: load averages over 1, 5 and 15 minutes at the start; near 0 on a quiet machine
    settings: Mapping[str, Any]  #: options of the command
    measurements: tuple[Measurement, ...]
    format: int = field(default=FORMAT)

    @property
    def passed(self) -> bool:
        return all(measurement.passed for measurement in self.measurements)


def measurement(name: str, measured: PairedRatio | Duration, *, bar: float | None) -> Measurement:
    """Return a line of the result for a measured ratio or duration."""
    passed = bar is None or Bar(bar).passes(measured)
    shared: dict[str, Any] = {"low": measured.low, "high": measured.high, "bar": bar, "passed": passed}
    if isinstance(measured, Duration):
        return Measurement(name=name, unit="seconds", value=measured.seconds, samples=measured.samples, **shared)
    return Measurement(
        name=name,
        unit="ratio",
        value=measured.ratio,
        samples=measured.pairs,
        baseline_seconds=measured.baseline_seconds,
        candidate_seconds=measured.candidate_seconds,
        **shared,
    )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Machine, load and command of a benchmark.

    It is created before the first sample, since measuring causes load.
    """

    environment: Mapping[str, Any]
    load: list[float]
    command: str

    def result(self, title: str, *, settings: Mapping[str, Any], measurements: Iterable[Measurement]) -> BenchResult:
        """Return the result of the benchmark; `settings` are options of the command."""
        return BenchResult(
            title=title,
            command=self.command,
            environment=self.environment,
            load=self.load,
            settings=settings,
            measurements=tuple(measurements),
        )


def measured_once(name: str, value: float, *, bar: float | None, unit: Unit = "ratio") -> Measurement:
    """Return a line of the result for a value measured once, such as a deterministic ratio."""
    return Measurement(
        name=name,
        unit=unit,
        value=value,
        low=value,
        high=value,
        bar=bar,
        passed=bar is None or value <= bar,
        samples=1,
    )


def current_setting(device: str = "cpu") -> Setting:
    """Return the machine, its load and the command of this process."""
    facts = environment(torch.device(device))
    arguments: list[str] = facts.pop("command", sys.argv)
    program = Path(arguments[0])  # a script by its path, an installed program by its name
    command = ["python", *arguments] if program.suffix == ".py" else [program.name, *arguments[1:]]
    load = [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else []
    return Setting(environment=facts, load=load, command=shlex.join(command))


def to_json(result: Any) -> str:
    """Return a result dataclass as JSON."""
    return json.dumps(dataclasses.asdict(result), indent=2, ensure_ascii=False)


def write_result(result: Any, path: Path) -> None:
    """Write a result dataclass as JSON, atomically."""
    write_atomically(path, to_json(result) + "\n")


def read_benchmark(path: Path, kind: type[ResultT], *, remedy: str = "measure again with this version") -> ResultT:
    """Read a result of the dataclass `kind` that `write_result` wrote.

    Raises:
        ConfigError: the file is not JSON, has unknown or missing fields, or an unknown format.
    """
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a benchmark result: {error}; {remedy}") from None
    result = read(kind, content, where=path.name)
    if (found := getattr(result, "format", None)) != FORMAT:
        raise ConfigError(f"{path}: format {found} is not {FORMAT}; {remedy}")
    return result
