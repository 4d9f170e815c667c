"""How time and memory grow with the number of tokens: a curve per kind of layer, each size in a process of its own.

    time ~ N^a,  memory ~ N^b         fitted over sizes of `FIT_FROM` tokens and more, on logarithms

A curve ends where memory runs out or one size takes too long; larger sizes of it are not tried. What was measured before is
kept, so that an interrupted sweep goes on where it was.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attngraft.bench.layers import LAYERS
from attngraft.bench.one_size import Job, Reading, measure_size
from attngraft.bench.result import Setting
from attngraft.errors import ConfigError, UsageError
from attngraft.files import write_atomically
from attngraft.strict import read
from attngraft.timing.memory import free_memory
from attngraft.timing.paired import median_interval

FORMAT = 1
#: grids of 14, 28, 56, 112, 224, 448 and 1,024 tokens a side
SIZES = (196, 784, 3136, 12544, 50176, 200704, 1048576)
FIT_FROM = 3136  #: below, what a call costs whatever its size is too much of it
FREE_SHARE = 0.8  #: of free memory is the limit where none is given
TOLERANCE = 0.1  #: how far an exponent may be from its bar


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size: seconds per call, median and 95% bootstrap interval, and bytes at the peak of a call."""

    tokens: int
    seconds: float
    low: float
    high: float
    samples: int
    memory: int | None


@dataclass(frozen=True, kw_only=True)
class End:
    """Where a curve ends, and why."""

    tokens: int  #: the size that did not work
    reason: str


@dataclass(frozen=True, kw_only=True)
class Exponent:
    """The power of the number of tokens, by least squares on logarithms, with its 95% t-interval."""

    value: float
    low: float
    high: float
    points: int
    bar: float | None  #: what it should be

    @property
    def passed(self) -> bool:
        """Whether the exponent itself, not only its interval, is within `TOLERANCE` of its bar."""
        return self.bar is None or abs(self.value - self.bar) <= TOLERANCE


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One kind of layer."""

    layer: str
    title: str
    points: tuple[Point, ...] = ()
    end: End | None = None
    time: Exponent | None = None
    memory: Exponent | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a size is given up."""

    seconds: float
    memory: int | None  #: bytes; None: `FREE_SHARE` of what is free when a size begins


@dataclass(frozen=True, kw_only=True)
class Call:
    """What is measured: two results can be joined only if this is the same."""

    depth: int
    backward: bool
    cpu_time: bool
    threads: int
    repeats: int


@dataclass(frozen=True, kw_only=True)
class ScalingResult:
    """One sweep, or as much of it as is measured."""

    title: str
    command: str
    environment: Mapping[str, Any]
    load: list[float]
    call: Call
    limits: Limits
    curves: tuple[Curve, ...]
    bars: Mapping[str, float]  #: layer -> the exponent that both of its curves should have
    format: int = FORMAT

    @property
    def passed(self) -> bool:
        return all(fit.passed for curve in self.curves for fit in (curve.time, curve.memory) if fit is not None)


def begin(
    title: str, layers: Sequence[str], *, setting: Setting, call: Call, limits: Limits, bars: Mapping[str, float]
) -> ScalingResult:
    """A sweep of which nothing is measured yet.

    Raises:
        UsageError: a layer that is not known, or none.
    """
    unknown = [name for name in layers if name not in LAYERS]
    if unknown or not layers:
        raise UsageError(f"layers are some of {', '.join(LAYERS)}, not {', '.join(unknown) or 'none'}")
    return ScalingResult(
        title=title,
        command=setting.command,
        environment={**setting.environment, "threads": call.threads},
        load=setting.load,
        call=call,
        limits=limits,
        curves=tuple(Curve(layer=name, title=LAYERS[name].title) for name in dict.fromkeys(layers)),
        bars=bars,
    )


def going_on(result: ScalingResult, known: ScalingResult, *, path: Path) -> ScalingResult:
    """`result`, not yet measured, with what `known` has from `path`. Where a limit differs, curves that it ended go on.

    Raises:
        UsageError: `known` measured something else, or elsewhere; names what.
    """
    pairs = {
        **{name: (value, getattr(known.call, name)) for name, value in vars(result.call).items()},
        "title": (result.title, known.title),
        **{name: (wanted, _place(known)[name]) for name, wanted in _place(result).items()},
    }
    for name, (wanted, found) in pairs.items():
        if wanted != found:
            raise UsageError(
                f"{path} holds measurements with {name} {found}, not {wanted}: give another --out, or delete that file"
            )
    ends_hold = result.limits == known.limits
    before = {curve.layer: curve if ends_hold else replace(curve, end=None) for curve in known.curves}
    asked = tuple(before.pop(curve.layer, curve) for curve in result.curves)
    return replace(result, curves=(*asked, *before.values()))


def _place(result: ScalingResult) -> dict[str, str]:
    """Of the environment, where another value makes other times. Whether a checkout had changes (`+`) is not among it: the
    result's own file, where it is tracked, is a change."""
    environment = result.environment
    named = {name: str(environment.get(name)) for name in ("device_name", "attngraft", "commit")}
    torch = str(environment.get("packages", {}).get("torch"))
    return {**named, "commit": named["commit"].removesuffix("+"), "torch": torch}


def sweep(
    result: ScalingResult,
    layers: Iterable[str],
    sizes: Iterable[int],
    *,
    starting: Callable[[str, int], None],
    measured: Callable[[ScalingResult], None],
    run: Callable[[Job], Reading] = measure_size,
) -> ScalingResult:
    """Measure what `result` lacks of `layers` and `sizes`, the smallest size of all layers first.

    Args:
        starting: told the layer's title and the size before each of them, whether it has to be measured or not.
        measured: given the result with each new point or end.

    Raises:
        MeasuringError: a size failed otherwise than by time or memory.
    """
    wanted = list(layers)
    for tokens in sorted(set(sizes)):
        for name in wanted:
            curve = next(each for each in result.curves if each.layer == name)
            starting(curve.title, tokens)
            if any(point.tokens == tokens for point in curve.points) or (curve.end and curve.end.tokens <= tokens):
                continue
            job = _job(name, tokens, result)
            curve = _with(curve, job, run(job), bar=result.bars.get(name))
            result = replace(result, curves=tuple(curve if each.layer == name else each for each in result.curves))
            measured(result)
    return result


def _job(layer: str, tokens: int, result: ScalingResult) -> Job:
    limits, free = result.limits, free_memory()
    memory = int(FREE_SHARE * free) if limits.memory is None and free is not None else limits.memory
    return Job(layer=layer, tokens=tokens, **vars(result.call), seconds=limits.seconds, memory=memory)


def _with(curve: Curve, job: Job, reading: Reading, *, bar: float | None) -> Curve:
    """The curve with one more size."""
    if reading.outcome == "too slow":
        return replace(curve, end=End(tokens=job.tokens, reason=f"over {job.seconds:g} s"))
    if reading.outcome == "out of memory":
        limit = "" if job.memory is None else f" ({job.memory / 1e9:.3g} GB)"
        return replace(curve, end=End(tokens=job.tokens, reason=f"out of memory{limit}"))
    median, low, high = median_interval(reading.seconds)
    count = len(reading.seconds)
    point = Point(tokens=job.tokens, seconds=median, low=low, high=high, samples=count, memory=reading.memory)
    points = tuple(sorted((*curve.points, point), key=lambda each: each.tokens))
    return replace(
        curve,
        points=points,
        time=exponent([(each.tokens, each.seconds) for each in points], bar=bar),
        memory=exponent([(each.tokens, each.memory) for each in points if each.memory], bar=bar),
    )


def exponent(points: Sequence[tuple[int, float]], *, bar: float | None = None) -> Exponent | None:
    """The power by which a quantity grows with the tokens, over sizes of `FIT_FROM` and more; None for less than three."""
    from scipy import stats

    fitted = [(math.log(tokens), math.log(value)) for tokens, value in points if tokens >= FIT_FROM]
    if len(fitted) < 3:
        return None
    line = stats.linregress(*zip(*fitted, strict=True))
    slope, reach = float(line.slope), float(stats.t.ppf(0.975, len(fitted) - 2) * line.stderr)
    return Exponent(value=slope, low=slope - reach, high=slope + reach, points=len(fitted), bar=bar)


def write_scaling(result: ScalingResult, path: Path) -> None:
    """Write `result` as JSON, atomically."""
    write_atomically(path, json.dumps(dataclasses.asdict(result), indent=2, ensure_ascii=False) + "\n")


def read_scaling(path: Path) -> ScalingResult:
    """Read what `write_scaling` wrote.

    Raises:
        ConfigError: not such a file, or of a format that this version does not know; says so.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: not a scaling result: {error}; give another --out, or delete that file") from None
    result = read(ScalingResult, content, where=path.name)
    if result.format != FORMAT:
        raise ConfigError(f"{path}: format {result.format} is not {FORMAT}; give another --out, or delete that file")
    return result
