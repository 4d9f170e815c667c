"""The coverage of the interval with cross-validation: the committed result, and a few studies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from proof.folds import FOLDS, KINDS, Data, Runs, corrected_t_excludes_zero, judged, measure, summary

COMMITTED = Path(__file__).resolve().parents[2] / "benchmarks" / "folds.json"


def test_the_committed_result() -> None:
    result = json.loads(COMMITTED.read_text(encoding="utf-8"))
    assert result["passed"]
    for each in result["by_seeds"].values():
        assert min(each["zero_covered"], each["these_data_covered"]) >= 0.95
    assert len(result["points"]) == 24


def test_a_run_is_judged_on_examples_that_it_was_not_trained_on() -> None:
    generator = np.random.default_rng(0)
    data = Data.draw(60, np.ones(4), generator)
    fold_of = np.arange(60) % FOLDS
    first, second = (Runs.train(data, fold_of, FOLDS, next(iter(KINDS)), np.random.default_rng(1)) for _ in range(2))
    assert (first.coefficients == second.coefficients).all()
    flipped = Data(inputs=data.inputs, labels=np.where(fold_of == 2, 1 - data.labels, data.labels))
    other = Runs.train(flipped, fold_of, FOLDS, next(iter(KINDS)), np.random.default_rng(1))
    same = np.isclose(first.coefficients, other.coefficients).all(axis=(0, 2))
    assert same.tolist() == [False, False, True, False, False]
    assert judged(first, data, fold_of).shape == (60,)


def test_few_studies() -> None:
    point = measure("noisy seeds", seeds=3, examples=100, studies=4)
    assert 3 <= point.these_data_covered_without_correction <= point.these_data_covered <= 4
    assert point.half_length < point.half_length_of_one_split
    assert corrected_t_excludes_zero(np.array([0.1, 0.11, 0.1, 0.09, 0.1]))
    assert not corrected_t_excludes_zero(np.array([0.1, -0.1, 0.0, 0.05, -0.04]))
    assert summary([point])["tests"]["zero_covered"]["least"] == point.zero_covered / 4
