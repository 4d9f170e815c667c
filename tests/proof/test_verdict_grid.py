"""The grid of rules: its simulation and formulas, and that the committed result meets the requirements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.results.crossed import components
from attngraft.results.statistics import crossed_bootstraps, t_interval
from proof.verdict_grid import (
    FORMER,
    KINDS,
    RULE,
    RULES,
    SEEDS,
    MeanSquares,
    Point,
    by_seeds,
    calls,
    measure,
    measure_f1,
    simulate,
    summary,
)

COMMITTED = Path(__file__).resolve().parents[2] / "benchmarks" / "verdict_grid.json"


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return json.loads(COMMITTED.read_text(encoding="utf-8"))


def test_rules_are_those_of_the_package() -> None:
    first, second = simulate(
        "runs disagree", 0.001, seeds=5, examples=300, studies=60, generator=np.random.default_rng(0)
    )
    differences = (second > -0.95).astype(np.int8) - (first > -0.84).astype(np.int8)
    found = calls(MeanSquares.of(differences), seeds=5, examples=300)
    assert 5 < found[RULE].sum() < 55
    agreeing = 0
    for index, each in enumerate(differences.astype(float)):
        interval, t = components(each).interval(), t_interval(each.mean(axis=1))
        bootstrap = crossed_bootstraps([each], resamples=500)[0]
        assert interval is not None
        assert t is not None
        assert found[RULE][index] == (not interval.low <= 0 <= interval.high)
        assert found["t over seeds"][index] == (not t.low <= 0 <= t.high)
        agreeing += found[FORMER][index] == (found["t over seeds"][index] and not bootstrap.low <= 0 <= bootstrap.high)
    assert agreeing >= 57  # percentiles and normal quantiles differ a little


def test_latent_variables_have_variance_one() -> None:
    for kind in KINDS:
        arms = simulate(kind, 0.005, seeds=4, examples=500, studies=20, generator=np.random.default_rng(1))
        for arm in arms:
            assert arm.var() == pytest.approx(1, abs=0.05)


def test_one_point() -> None:
    points = measure("runs agree", "small", seeds=3, examples=200, studies=50)
    assert points[0].effect == 0
    assert points == measure("runs agree", "small", seeds=3, examples=200, studies=50)
    assert points[-1].called[RULE] > points[0].called[RULE]
    f1 = measure_f1("runs disagree", "small", seeds=3, examples=100, studies=5, resamples=50)
    assert f1.called[RULE] <= 5


def test_what_is_required_was_found(committed: dict[str, Any]) -> None:
    points, f1 = ([Point(**each) for each in committed[name]] for name in ("points", "macro_f1"))
    found = json.loads(json.dumps(summary(points, f1)))
    assert {name: committed[name] for name in found} == found
    assert found["passed"]
    assert committed["by_seeds"] == by_seeds(points)


def test_the_guide_has_the_table(committed: dict[str, Any]) -> None:
    guide = (COMMITTED.parents[1] / "docs" / "guide" / "statistics.md").read_text(encoding="utf-8")
    assert [row["seeds"] for row in committed["by_seeds"]] == list(SEEDS) * len(KINDS)
    for row in committed["by_seeds"]:
        cells = [
            f"{row[f'{what}, {rule}']:.1%}" for what in ("false calls", "power") for rule in (RULES[0], FORMER, RULE)
        ]
        assert f"| {row['kind']} | {row['seeds']} | {' | '.join(cells)} |" in guide
