"""Time estimates: arithmetic on known paces, and paces measured on a tiny real model."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from attngraft.errors import UsageError
from attngraft.study import throughput
from attngraft.study.plan import resolve_runs
from attngraft.study.throughput import Estimate, Throughput, choose_threads, fit_epochs, measure_throughput
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


@pytest.mark.parametrize(
    ("seconds", "jobs", "chosen"),
    [
        ({1: 1.0, 2: 0.9, 4: 0.9}, lambda threads: 1, 1),  # threads save little
        ({1: 1.0, 2: 0.6, 4: 0.55}, lambda threads: 1, 2),
        ({1: 1.0, 2: 0.5, 4: 0.25}, lambda threads: 1, 4),
        ({1: 1.0, 2: 0.6, 4: 0.4}, lambda threads: 4 // threads, 1),  # four runs at a time save more
        ({1: 1.0, 2: 9.0, 4: 0.1}, lambda threads: 1, 1),  # another process is using the cores
    ],
)
def test_threads_are_chosen_by_the_time_of_the_study(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: dict[int, float],
    jobs: Callable[[int], int],
    chosen: int,
) -> None:
    class Model:
        def __init__(self, *_: object) -> None: ...

        def train_step(self) -> None: ...

    before = torch.get_num_threads()
    monkeypatch.setattr(throughput, "Profiler", Model)
    monkeypatch.setattr(throughput, "_seconds", lambda *_, **__: (9.0, seconds[torch.get_num_threads()]))
    prepared = resolve_runs(study(tmp_path, grafts=["cb_s"]))
    try:
        torch.set_num_threads(4)
        assert choose_threads(prepared, None, lambda recipe: jobs(recipe.train.threads or 0)) == chosen  # type: ignore[arg-type]
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)


def test_one_core_needs_no_timing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert choose_threads(resolve_runs(study(tmp_path)), None, lambda _: 1) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(("warm", "calls", "median"), [(False, 2, 0.3), (True, 1, 0.5)])
def test_the_first_call_counts_if_the_process_is_warm(
    monkeypatch: pytest.MonkeyPatch, warm: bool, calls: int, median: float
) -> None:
    """A first call of 0.5 seconds, and later ones of 0.3."""
    clock = [0.0]
    made: list[float] = []

    def work() -> None:
        made.append(0.3 if made else 0.5)
        clock[0] += made[-1]

    monkeypatch.setattr(throughput.time, "perf_counter", lambda: clock[0])
    first, later = throughput._seconds(work, None, warm=warm)
    assert (first, later, len(made)) == (pytest.approx(0.5), pytest.approx(median), calls)
