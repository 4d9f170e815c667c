"""Time estimates: arithmetic on known paces, and paces measured on a tiny real model."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from attngraft.errors import UsageError
from attngraft.study.plan import resolve_runs
from attngraft.study.throughput import Estimate, Throughput, fit_epochs, measure_throughput
from attngraft.training.profiler import BenchmarkBatch

from .fakes import study


def test_arithmetic(tmp_path: Path) -> None:
    runs = resolve_runs(study(tmp_path, grafts=["cb_s"], seeds=2, epochs=10)).runs
    estimate = Estimate(
        throughputs={
            "baseline": Throughput(start_seconds=1, epoch_seconds=2),
            "cb_s": Throughput(start_seconds=2, epoch_seconds=3),
        }
    )
    assert estimate.seconds(runs) == 2 * (1 + 20) + 2 * (2 + 30)
    assert estimate.epochs_within(runs, 2 * (1 + 2 + 4 * 5) + 9) == 4
    assert fit_epochs(estimate, runs, budget=1000, most=6) == 6
    assert fit_epochs(estimate, runs, budget=16, most=None) == 1
    with pytest.raises(UsageError, match="16 s"):
        fit_epochs(estimate, runs, budget=15.9, most=None)


def test_paces_are_measured_without_touching_the_random_state(tmp_path: Path) -> None:
    config = study(tmp_path, grafts=["cb_s"], set=["train.batch_size=128"])
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    estimate = measure_throughput(resolve_runs(config), BenchmarkBatch(config.recipe_of(config.baseline, 0)))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2])
    assert estimate.throughputs.keys() == {"baseline", "cb_s"}
    assert all(0 < pace.epoch_seconds < 60 for pace in estimate.throughputs.values())
    assert list(tmp_path.iterdir()) == []
