"""Sweeps over sizes: fits on synthetic data, ends of curves, resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attngraft.bench import scaling
from attngraft.bench.one_size import SizeResult, SizeTask
from attngraft.bench.result import current_setting, write_result
from attngraft.bench.scaling import (
    FIT_FROM,
    SIZES,
    Call,
    Limits,
    ScalingResult,
    begin,
    exponent,
    read_scaling,
    resumed,
    sweep,
)
from attngraft.errors import ConfigError, UsageError

LAYERS = ["bixt", "vit-explicit"]
CALL = Call(depth=1, backward=False, cpu_time=False, threads=2, repeats=3)
SETTING = current_setting()
LIMITS = Limits(seconds=10.0, memory=None)


def a_start(**changes: Any) -> ScalingResult:
    result = begin("BiXT", LAYERS, setting=SETTING, call=CALL, limits=LIMITS, bars={"bixt": 1.0})
    return replace(result, **changes)


def linear_and_quadratic(job: SizeTask) -> SizeResult:
    """BiXT takes 5 us and 1 kB for each token; the other takes their square, more than the limits at last."""
    power = 1 if job.layer == "bixt" else 2
    seconds, memory = 5e-6 * job.tokens**power, 1000 * job.tokens**power
    if seconds > job.seconds:
        return SizeResult(outcome="too slow")
    if job.memory is not None and memory > job.memory:
        return SizeResult(outcome="out of memory")
    return SizeResult(outcome="measured", seconds=(seconds, 1.01 * seconds, 0.99 * seconds), memory=memory)


def run(
    result: ScalingResult, sizes: tuple[int, ...] = SIZES, by: Callable[[SizeTask], SizeResult] = linear_and_quadratic
):
    """The result, and what was measured to get there."""
    jobs: list[tuple[str, int]] = []

    def measured(job: SizeTask) -> SizeResult:
        jobs.append((job.layer, job.tokens))
        return by(job)

    found = sweep(result, LAYERS, sizes, starting=lambda *told: None, done=lambda latest: None, run=measured)
    return found, jobs


@given(st.floats(0.3, 3.0), st.floats(1e-6, 10.0))
def test_an_exponent_without_noise_is_found(power: float, factor: float) -> None:
    found = exponent([(n, factor * n**power) for n in SIZES], bar=power)
    assert found is not None
    assert found.value == pytest.approx(power)
    assert found.low == pytest.approx(power, abs=1e-5)
    assert found.points == len([n for n in SIZES if n >= FIT_FROM]) == 5
    assert found.passed


def test_small_sizes_do_not_count() -> None:
    costs_of_a_call = [(196, 1.0), (784, 1.0)]
    found = exponent([*costs_of_a_call, *((n, 1e-3 * n) for n in SIZES[2:])])
    assert found is not None
    assert found.value == pytest.approx(1.0)
    assert exponent([(n, float(n)) for n in SIZES[:4]]) is None, "two sizes give no interval"


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    draw, held = np.random.default_rng(0), 0
    for _ in range(400):
        found = exponent([(n, 2.0 * n**1.2 * float(np.exp(draw.normal(0, 0.2)))) for n in SIZES])
        assert found is not None
        held += found.low <= 1.2 <= found.high
    assert 0.92 < held / 400 < 0.98


@pytest.mark.parametrize(("power", "passed"), [(1.09, True), (0.91, True), (1.11, False), (0.89, False)])
def test_the_bar_is_kept_by_the_exponent_itself(power: float, passed: bool) -> None:
    found = exponent([(n, n**power) for n in SIZES], bar=1.0)
    assert found is not None
    assert found.passed is passed


def test_a_sweep_ends_curves_and_fits_them() -> None:
    found, jobs = run(a_start())
    bixt, other = found.curves
    assert [point.tokens for point in bixt.points] == list(SIZES)
    assert bixt.end is None
    assert [point.tokens for point in other.points] == [196, 784]
    assert other.end == scaling.End(tokens=3136, reason="over 10 s")
    assert jobs[:4] == [("bixt", 196), ("vit-explicit", 196), ("bixt", 784), ("vit-explicit", 784)]
    assert ("vit-explicit", 12544) not in jobs
    assert bixt.time is not None and bixt.memory is not None and other.time is None
    assert bixt.time.value == pytest.approx(1.0)
    assert bixt.memory.bar == 1.0
    assert found.passed
    point = bixt.points[0]
    assert point.low < point.seconds < point.high
    assert (point.samples, point.memory) == (3, 196_000)


def test_the_end_by_memory_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = run(a_start(limits=Limits(seconds=1e9, memory=5_000_000_000)))
    assert found.curves[1].end == scaling.End(tokens=3136, reason="out of memory (5 GB)")
    monkeypatch.setattr(scaling, "free_memory", lambda: 10_000_000_000)
    found, _ = run(a_start(limits=Limits(seconds=1e9, memory=None)))
    assert found.curves[1].end == scaling.End(tokens=3136, reason="out of memory (8 GB)")
    monkeypatch.setattr(scaling, "free_memory", lambda: None)
    found, _ = run(a_start(limits=Limits(seconds=1e9, memory=None)), sizes=(3136,))
    assert found.curves[1].end is None


def test_a_steeper_curve_than_its_bar_fails() -> None:
    def steep(job: SizeTask) -> SizeResult:
        return SizeResult(outcome="measured", seconds=(1e-9 * job.tokens**1.3,), memory=1000 * job.tokens)

    found, _ = run(a_start(), by=steep)
    assert found.curves[0].time is not None and not found.curves[0].time.passed
    assert not found.passed


def test_existing_measurements_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bixt.json"
    first, jobs = run(a_start(), sizes=(196, 3136))
    assert len(jobs) == 4
    write_result(first, path)
    assert read_scaling(path) == first
    again, jobs = run(resumed(a_start(), read_scaling(path), path=path), sizes=(196, 784, 3136, 12544))
    assert jobs == [("bixt", 784), ("vit-explicit", 784), ("bixt", 12544)]
    assert [point.tokens for point in again.curves[0].points] == [196, 784, 3136, 12544]
    assert again.curves[1].end == first.curves[1].end


def test_an_end_holds_for_its_limits(tmp_path: Path) -> None:
    known, _ = run(a_start())
    more = a_start(limits=Limits(seconds=100.0, memory=None))
    again, jobs = run(resumed(more, known, path=tmp_path / "x.json"))
    assert jobs == [("vit-explicit", 3136), ("vit-explicit", 12544)]
    assert again.curves[1].end == scaling.End(tokens=12544, reason="over 100 s")


def test_curves_of_other_layers_are_kept(tmp_path: Path) -> None:
    known, _ = run(a_start())
    alone = begin("BiXT", ["bixt"], setting=SETTING, call=CALL, limits=LIMITS, bars={"bixt": 1.0})
    assert [curve.layer for curve in resumed(alone, known, path=tmp_path / "x.json").curves] == LAYERS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"call": replace(CALL, threads=1)}, "threads 2, not 1"),
        ({"call": replace(CALL, backward=True)}, "backward False, not True"),
        ({"title": "Another"}, "title BiXT, not Another"),
        ({"environment": {**SETTING.environment, "device_name": "abacus"}}, "not abacus"),
        ({"environment": {**SETTING.environment, "commit": "0123"}}, "not 0123"),
        ({"environment": {**SETTING.environment, "packages": {"torch": "0.1"}}}, "not 0.1"),
    ],
)
def test_other_measurements_are_not_joined(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"x.json contains measurements with .*{message}: pass another --out"):
        resumed(a_start(**changes), a_start(), path=tmp_path / "x.json")


def test_uncommitted_changes_do_not_prevent_resuming(tmp_path: Path) -> None:
    """The file itself, tracked, makes one."""
    clean, changed = (a_start(environment={**SETTING.environment, "commit": f"0123{sign}"}) for sign in ("", "+"))
    assert resumed(changed, clean, path=tmp_path / "x.json").environment["commit"] == "0123+"


def test_an_interrupted_sweep_keeps_its_measurements() -> None:
    kept: list[ScalingResult] = []

    def interrupted(job: SizeTask) -> SizeResult:
        if job.tokens == 784:
            raise KeyboardInterrupt
        return linear_and_quadratic(job)

    with pytest.raises(KeyboardInterrupt):
        sweep(a_start(), LAYERS, SIZES, starting=lambda *told: None, done=kept.append, run=interrupted)
    assert [[point.tokens for point in curve.points] for curve in kept[-1].curves] == [[196], [196]]


def test_unknown_layers_and_damaged_files_are_refused(tmp_path: Path) -> None:
    for layers in (["bixt", "mamba"], []):
        with pytest.raises(UsageError, match="layers must be one or more of bixt, vit, vit-explicit"):
            begin("BiXT", layers, setting=SETTING, call=CALL, limits=LIMITS, bars={})
    path = tmp_path / "bixt.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"bixt\.json: not a benchmark result"):
        read_scaling(path)
    write_result(a_start(), path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "format": 2}))
    with pytest.raises(ConfigError, match="format 2 is not 1"):
        read_scaling(path)
