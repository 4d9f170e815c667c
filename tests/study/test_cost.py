"""Costs of tiny real models: counts that can be known, and measurements that must be sane."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from attngraft.results.study import Cost
from attngraft.study import cost as cost_module
from attngraft.study.config import StudyConfig
from attngraft.study.cost import load_costs, measure_costs, save_costs
from attngraft.study.plan import resolve_runs
from attngraft.timing import PairedRatio
from attngraft.timing.memory import LiveStorages
from attngraft.training.profiler import BenchmarkBatch, Profiler
from attngraft.training.recipe import Recipe

from .fakes import cost, study

SMALL = ["train.batch_size=16", "host.args.embed_dim=48", "host.args.num_heads=3"]


@pytest.mark.slow
def test_measured_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_module, "PAIRS", 5)
    config = study(tmp_path, grafts=["cb_s"], set=SMALL)
    benchmark = BenchmarkBatch(config.recipe_of(config.baseline, 0))
    costs = measure_costs(resolve_runs(config), benchmark, limit=60)
    baseline, grafted = costs["none"], costs["cb_s"]
    assert grafted.parameters - baseline.parameters == 2 * 48  # one vector for each of two blocks
    assert baseline.macs is not None
    assert grafted.macs_ratio == pytest.approx(1.0, abs=0.01)
    assert baseline.train_time_ratio is not None
    assert baseline.train_time_ratio.point == 1.0
    assert grafted.train_time_ratio is not None
    assert grafted.train_time_ratio.low <= grafted.train_time_ratio.point <= grafted.train_time_ratio.high
    assert 0.2 < grafted.train_time_ratio.point < 5
    assert baseline.inference_time_ratio is not None
    assert baseline.inference_time_ratio.point == 1.0
    assert grafted.inference_time_ratio is not None
    assert grafted.inference_time_ratio.low <= grafted.inference_time_ratio.point <= grafted.inference_time_ratio.high
    assert grafted.inference_time_ratio != grafted.train_time_ratio
    for each in (baseline, grafted):
        assert each.train_seconds_per_step is not None
        assert each.inference_seconds_per_batch is not None
        assert each.inference_seconds_per_batch > 0
    assert grafted.memory_ratio is not None
    assert 1.0 < grafted.memory_ratio < 1.5
    in_a_hurry = measure_costs(resolve_runs(config), benchmark, limit=0)
    assert in_a_hurry["cb_s"].train_time_ratio is None
    assert in_a_hurry["cb_s"].inference_time_ratio is None
    assert in_a_hurry["cb_s"].parameters == grafted.parameters
    assert grafted.not_measured == {}
    assert in_a_hurry["cb_s"].not_measured.keys() == {"training time", "inference time"}


def test_inference_is_timed_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graft that is said to cost three times the training and twice the inference, on a clock that obeys."""
    seconds = {("none", "train"): 1.0, ("cb_s", "train"): 3.0, ("none", "evaluate"): 0.25, ("cb_s", "evaluate"): 0.5}
    asked: list[str] = []

    def told(base: Any, others: Mapping[str, Any], **_: Any) -> dict[str, PairedRatio]:
        kind = "train" if base.__name__ == "train_step" else "evaluate"
        assert all(work.__name__ == base.__name__ for work in others.values())
        asked.append(kind)
        return {
            spec: PairedRatio(
                ratio=seconds[spec, kind] / seconds["none", kind],
                low=1.0,
                high=9.0,
                baseline_seconds=seconds["none", kind],
                candidate_seconds=seconds[spec, kind],
                pairs=5,
            )
            for spec in others
        }

    monkeypatch.setattr(cost_module, "several", told)
    config = study(tmp_path, grafts=["cb_s"], set=SMALL)
    costs = measure_costs(resolve_runs(config), BenchmarkBatch(config.recipe_of(config.baseline, 0)), limit=60)
    assert asked == ["train", "evaluate"]
    for spec, training, inference in (("none", 1.0, 1.0), ("cb_s", 3.0, 2.0)):
        found = costs[spec]
        assert found.train_time_ratio is not None
        assert found.inference_time_ratio is not None
        assert (found.train_time_ratio.point, found.inference_time_ratio.point) == (training, inference)
        assert found.train_seconds_per_step == seconds[spec, "train"]
        assert found.inference_seconds_per_batch == seconds[spec, "evaluate"]


def test_steps_that_take_too_long_say_so() -> None:
    works = {"none": lambda: time.sleep(0.02), "cb_s": lambda: time.sleep(0.02)}
    found, why = cost_module._ratios(works, None, a_round=0.04, seconds=0.1, limit=0.1)
    assert found == {}
    assert why == "a batch takes 20 ms, too long for 5 of every variant"
    assert cost_module._ratios({"none": works["none"]}, None, a_round=0.02, seconds=9.0, limit=9.0) == ({}, "")
    found, why = cost_module._ratios(works, None, a_round=0.04, seconds=0.1, limit=0.2)
    assert (found["cb_s"].pairs, why) == (5, "")


def recipe_of(config: StudyConfig) -> Recipe:
    return config.recipe_of(config.baseline, 0)


def kept(folder: Path, config: StudyConfig) -> dict[str, Cost] | None:
    return load_costs(folder, config, recipe=recipe_of(config))


def test_kept_costs_belong_to_a_recipe_and_its_variants(tmp_path: Path) -> None:
    config = study(tmp_path)
    costs = {variant.spec: cost(1.1) for variant in config.variants}
    assert kept(tmp_path, config) is None
    save_costs(tmp_path, recipe_of(config), costs)
    assert kept(tmp_path, config) == costs
    assert kept(tmp_path, study(tmp_path, grafts=["cb_s"])) == costs
    assert kept(tmp_path, study(tmp_path, epochs=9, seeds=7)) == costs
    assert kept(tmp_path, study(tmp_path, grafts=["cb"])) is None
    other = study(tmp_path, set=["train.batch_size=4"])
    assert kept(tmp_path, other) is None
    assert load_costs(tmp_path, other) == costs
    whole = (tmp_path / "cost.json").read_text()
    for text in ('"parameters": 1', '"train_seconds_per_step": 0', '"low": 1.', '"memory_ratio": 1'):
        assert text in whole
        (tmp_path / "cost.json").write_text(whole.replace(text, text.replace(": ", ": -")))
        assert kept(tmp_path, config) is None
    (tmp_path / "cost.json").write_text("{")
    assert kept(tmp_path, config) is None


def test_live_storages_follow_births_and_deaths() -> None:
    with LiveStorages() as storages:
        one = torch.zeros(1000)  # 4000 bytes
        view = one[:10]
        other = torch.ones(500)  # 2000
        assert storages.live == 6000
        del one
        assert storages.live == 6000, "the view keeps the storage"
        del view
        assert storages.live == 2000
        other = other + 1
        assert storages.live == 2000
    assert storages.peak == 6000


def test_peak_memory_grows_with_what_backward_keeps() -> None:
    """A chain of elementwise squares keeps one activation each; the sum of them all is alive at the peak."""
    x = torch.zeros(1000, requires_grad=True)
    with LiveStorages() as storages:
        y = x
        for _ in range(10):
            y = y * y
        y.sum().backward()
    assert 10 * 4000 <= storages.peak <= 14 * 4000


def test_peak_memory_of_a_step(tmp_path: Path) -> None:
    small, large = (study(tmp_path, set=[*SMALL[1:], f"train.batch_size={size}"]) for size in (8, 64))
    peaks = []
    for config in (small, large):
        recipe = config.recipe_of(config.baseline, 0)
        bench = Profiler(recipe, BenchmarkBatch(recipe))
        peaks.append(bench.peak_memory())
        parameters = sum(p.numel() * 4 for p in bench.model.parameters())
        assert peaks[-1] > 3 * parameters, "weights, two moments, gradients or activations"
    assert 2 < peaks[1] / peaks[0] < 8
