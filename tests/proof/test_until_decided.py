"""The committed simulation of rounds passed, and holds for the code as it is."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from attngraft.results.crossed import components
from attngraft.results.sequential import ALPHA, MOST_SEEDS, UNLIKELY
from proof.until_decided import FIRST, LARGEST_RATIO, NULL, PLANTED, all_components, measure, result_of

COMMITTED = Path(__file__).resolve().parents[2] / "benchmarks" / "until_decided.json"


def test_it_passed() -> None:
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))
    settings = committed["settings"]
    assert committed["passed"]
    assert settings["studies"] >= 400
    assert (settings["alpha"], settings["unlikely"]) == (ALPHA, UNLIKELY)
    assert (settings["first_seeds"], settings["most_seeds"]) == (FIRST, MOST_SEEDS)
    assert settings["kinds"] == [json.loads(json.dumps(asdict(kind))) for kind in (*NULL, *PLANTED)]
    assert all(each["false_winners"] <= ALPHA * each["studies"] for each in committed["null"])
    assert all(each["p_holm"] >= 0.05 for each in [*committed["null"], *committed["planted"]] if "p_holm" in each)
    assert all(each["ratio"] <= LARGEST_RATIO for each in committed["planted"])


def test_prefixes_have_the_components_of_their_arrays() -> None:
    differences = np.random.default_rng(0).integers(-1, 2, size=(2, 5, 40)).astype(float)
    found = all_components(differences)
    assert set(found) == {(variant, seeds) for variant in range(2) for seeds in range(2, 6)}
    for (variant, seeds), each in found.items():
        assert asdict(each) == pytest.approx(asdict(components(differences[variant, :seeds])))


def test_a_few_studies() -> None:
    null, planted = measure(NULL[3], studies=4), measure(PLANTED[1], studies=4)
    assert null.ratio is None
    assert null.runs <= 5 * MOST_SEEDS
    assert planted.ratio is not None
    assert planted.found > 0.5
    assert planted.runs < 5 * MOST_SEEDS
    assert len(planted.fixed_found) == MOST_SEEDS - 1
    result = result_of([null], [planted])
    assert result["null"][0]["false_calls"] == null.false_calls
    assert "p_holm" not in result["planted"][0]  # no variant equals the baseline
