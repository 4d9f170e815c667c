"""Scaling of time and memory with the number of tokens: one curve per kind of layer.

    time ~ N^a,  memory ~ N^b         fitted on logarithms, over sizes of at least `FIT_FROM` tokens

A curve ends where memory runs out or a size takes too long; larger sizes are not tried. Earlier measurements are kept, so
an interrupted sweep can be resumed.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scipy import stats

from attngraft.bench.layers import LAYERS
from attngraft.bench.one_size import Call as Call
from attngraft.bench.one_size import SizeResult, SizeTask, measure_size
from attngraft.bench.result import FORMAT, Setting, read_benchmark
from attngraft.errors import UsageError
from attngraft.timing.memory import free_memory
from attngraft.timing.paired import median_interval

#: grids of 14, 28, 56, 112, 224, 448 and 1,024 tokens a side
SIZES = (196, 784, 3136, 12544, 50176, 200704, 1048576)
FIT_FROM = 3136  #: smallest number of tokens in the fit; below, the constant cost of a call dominates
FREE_SHARE = 0.8  #: default memory limit, as a share of the free memory
TOLERANCE = 0.1  #: maximum difference between an exponent and its bar


@dataclass(frozen=True, kw_only=True)
class Point:
    """Measurement of one size: median seconds per call with 95% interval, peak memory in bytes."""

    tokens: int
    seconds: float
    low: float
    high: float
    samples: int
    memory: int | None


@dataclass(frozen=True, kw_only=True)
class End:
    """End of a curve, with the reason."""

    tokens: int  #: the size that could not be measured
    reason: str


@dataclass(frozen=True, kw_only=True)
class Exponent:
    """Exponent of the number of tokens, by least squares on logarithms, with its 95% t-interval."""

    value: float
    low: float
    high: float
    points: int
    bar: float | None  #: expected value

    @property
    def passed(self) -> bool:
        """Whether the exponent itself, not only its interval, is within `TOLERANCE` of the bar."""
        return self.bar is None or abs(self.value - self.bar) <= TOLERANCE


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Measurements of one kind of layer."""

    layer: str
    title: str
    points: tuple[Point, ...] = ()
    end: End | None = None
    time: Exponent | None = None
    memory: Exponent | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits for the measurement of one size."""

    seconds: float
    memory: int | None  #: bytes; None: `FREE_SHARE` of the memory that is free before the size is measured


@dataclass(frozen=True, kw_only=True)
class ScalingResult:
    """One sweep, complete or partial."""

    title: str
    command: str
    environment: Mapping[str, Any]
    load: list[float]
    call: Call
    limits: Limits
    curves: tuple[Curve, ...]
    bars: Mapping[str, float]  #: layer -> expected exponent of time and of memory
    format: int = FORMAT

    @property
    def passed(self) -> bool:
        return all(fit.passed for curve in self.curves for fit in (curve.time, curve.memory) if fit is not None)


def begin(
    title: str, layers: Sequence[str], *, setting: Setting, call: Call, limits: Limits, bars: Mapping[str, float]
) -> ScalingResult:
    """Create a sweep without measurements.

    Raises:
        UsageError: `layers` is empty or contains an unknown layer.
    """
    unknown = [name for name in layers if name not in LAYERS]
    if unknown or not layers:
        raise UsageError(f"layers must be one or more of {', '.join(LAYERS)}, not {', '.join(unknown) or 'none'}")
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


def resumed(result: ScalingResult, known: ScalingResult, *, path: Path) -> ScalingResult:
    """Return the empty `result` with the measurements of `known`, which were read from `path`.

    If the limits differ, curves that had ended can continue.

    Raises:
        UsageError: `known` was measured with another call, machine or version; the message contains the difference.
    """
    pairs = {
        **{name: (value, getattr(known.call, name)) for name, value in vars(result.call).items()},
        "title": (result.title, known.title),
        **{name: (wanted, _machine(known)[name]) for name, wanted in _machine(result).items()},
    }
    for name, (wanted, found) in pairs.items():
        if wanted != found:
            raise UsageError(
                f"{path} contains measurements with {name} {found}, not {wanted}: pass another --out, or delete that file"
            )
    ends_hold = result.limits == known.limits
    before = {curve.layer: curve if ends_hold else replace(curve, end=None) for curve in known.curves}
    curves = tuple(before.pop(curve.layer, curve) for curve in result.curves)
    return replace(result, curves=(*curves, *before.values()))


def _machine(result: ScalingResult) -> dict[str, str]:
    """Return the entries of the environment that affect times.

    The `+` that marks uncommitted changes is ignored, since writing a tracked result file is already such a change.
    """
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
    done: Callable[[ScalingResult], None],
    run: Callable[[SizeTask], SizeResult] = measure_size,
) -> ScalingResult:
    """Add the missing measurements of `layers` and `sizes` to `result`, in order of increasing size.

    Args:
        starting: called with the layer's title and the number of tokens before each measurement, even if it is already done.
        done: called with the result after each new point or end.

    Raises:
        MeasuringError: a measurement failed for a reason other than a lack of time or memory.
    """
    wanted = list(layers)
    for tokens in sorted(set(sizes)):
        for name in wanted:
            curve = next(each for each in result.curves if each.layer == name)
            starting(curve.title, tokens)
            if any(point.tokens == tokens for point in curve.points) or (curve.end and curve.end.tokens <= tokens):
                continue
            task = _task(name, tokens, result)
            curve = _extended(curve, task, run(task), bar=result.bars.get(name))
            result = replace(result, curves=tuple(curve if each.layer == name else each for each in result.curves))
            done(result)
    return result


def _task(layer: str, tokens: int, result: ScalingResult) -> SizeTask:
    limits, free = result.limits, free_memory()
    memory = int(FREE_SHARE * free) if limits.memory is None and free is not None else limits.memory
    return SizeTask(layer=layer, tokens=tokens, **vars(result.call), seconds=limits.seconds, memory=memory)


def _extended(curve: Curve, task: SizeTask, result: SizeResult, *, bar: float | None) -> Curve:
    """Return the curve extended by the result of one more size: a point, or the end with its reason."""
    if result.outcome == "too slow":
        return replace(curve, end=End(tokens=task.tokens, reason=f"over {task.seconds:g} s"))
    if result.outcome == "out of memory":
        limit = "" if task.memory is None else f" ({task.memory / 1e9:.3g} GB)"
        return replace(curve, end=End(tokens=task.tokens, reason=f"out of memory{limit}"))
    median, low, high = median_interval(result.seconds)
    count = len(result.seconds)
    point = Point(tokens=task.tokens, seconds=median, low=low, high=high, samples=count, memory=result.memory)
    points = tuple(sorted((*curve.points, point), key=lambda each: each.tokens))
    return replace(
        curve,
        points=points,
        time=exponent([(each.tokens, each.seconds) for each in points], bar=bar),
        memory=exponent([(each.tokens, each.memory) for each in points if each.memory], bar=bar),
    )


def exponent(points: Sequence[tuple[int, float]], *, bar: float | None = None) -> Exponent | None:
    """Fit the exponent of a quantity over sizes of at least `FIT_FROM` tokens.

    Returns None for fewer than three sizes.
    """
    fitted = [(math.log(tokens), math.log(value)) for tokens, value in points if tokens >= FIT_FROM]
    if len(fitted) < 3:
        return None
    line = stats.linregress(*zip(*fitted, strict=True))
    slope, reach = float(line.slope), float(stats.t.ppf(0.975, len(fitted) - 2) * line.stderr)
    return Exponent(value=slope, low=slope - reach, high=slope + reach, points=len(fitted), bar=bar)


def read_scaling(path: Path) -> ScalingResult:
    """Read a sweep that `write_result` wrote.

    Raises:
        ConfigError: the file is not a sweep, or has an unknown format.
    """
    return read_benchmark(path, ScalingResult, remedy="pass another --out, or delete that file")
