"""What each variant costs: parameters, multiply-adds, time and memory, as ratios to the baseline, side by side.

Times are measured in interleaved rounds by the project's one harness (`attngraft.bench`): every variant once per round, a
ratio per round, the median with its bootstrap interval. Memory is explained in `memory.py`. What was measured is kept in
the study's folder, so that a report can be made again without measuring again.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device

from attngraft.files import write_atomically
from attngraft.results.study import Cost, Interval
from attngraft.strict import read
from attngraft.study.config import StudyConfig
from attngraft.timing import PairedRatio, count_macs, count_parameters, several
from attngraft.training.profiler import BenchmarkBatch, Profiler, synchronizer
from attngraft.training.setup import cpu_threads

COST_FILE = "cost.json"
PAIRS = 30
FEWEST_PAIRS = 5  #: below this an interval says nothing, and times are left out

Costs = dict[str, Cost]  #: by `Variant.key`: the canonical specification, and the host where it is another


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Counts:
    parameters: int
    macs: int
    memory: int


def measure_costs(config: StudyConfig, benchmark: BenchmarkBatch, *, limit: float = 120.0) -> Costs:
    """Measure all variants of a study on the machine at hand.

    Args:
        config: the study.
        benchmark: the data that the runs use, opened.
        limit: seconds that timing may take. Where that is not enough for `PAIRS` rounds there are fewer, and no time
            ratios at all where there is no room for `FEWEST_PAIRS`.
    """
    first = config.recipe_of(config.baseline, config.seeds[0])
    with cpu_threads(first.train.threads):
        benches, counts = {}, {}
        for variant in config.variants:
            bench = Profiler(config.recipe_of(variant, config.seeds[0]), benchmark)
            benches[variant.key] = bench
            counts[variant.key] = _Counts(
                parameters=count_parameters(bench.model),
                macs=_macs_of_one_example(bench),
                memory=bench.peak_memory(),
            )
            gc.collect()
        training = _ratios({key: b.train_step for key, b in benches.items()}, benches, limit=limit * 0.75)
        inference = _ratios({key: b.evaluate_batch for key, b in benches.items()}, benches, limit=limit * 0.25)
    base = config.baseline.key
    return {
        key: _cost(counts[key], counts[base], training.get(key), inference.get(key), is_baseline=key == base)
        for key in counts
    }


def save_costs(folder: Path, config: StudyConfig, costs: Mapping[str, Cost]) -> None:
    """Keep `costs` in the study's folder."""
    content = {"measured_for": _measured_for(config), "costs": {k: dataclasses.asdict(c) for k, c in costs.items()}}
    write_atomically(folder / COST_FILE, json.dumps(content, indent=2) + "\n")


def load_costs(folder: Path, config: StudyConfig, *, same_recipe: bool = True) -> Costs | None:
    """The costs kept in `folder`, if all variants of `config` are among them; None otherwise.

    With `same_recipe` they must also be of its recipe; without, the recipe need not even be at hand.
    """
    try:
        content = json.loads((folder / COST_FILE).read_text(encoding="utf-8"))
        costs = {key: read(Cost, values, where=f"{COST_FILE}.{key}") for key, values in content["costs"].items()}
        kept_for = content["measured_for"]
    except (OSError, ValueError, KeyError, AttributeError):  # absent, damaged or of another version: measured again
        return None
    if same_recipe and kept_for != _measured_for(config):
        return None
    return costs if all(variant.key in costs for variant in config.variants) else None


def _measured_for(config: StudyConfig) -> dict[str, Any]:
    """What decides a cost; seeds, epochs and schedules do not."""
    from attngraft.training.recipe import recipe_to_dict

    recipe = recipe_to_dict(config.recipe_of(config.baseline, config.seeds[0]))
    kept = {name: recipe[name] for name in ("host", "task", "optimizer", "train")}
    if recipe["distill"] is not None:
        kept["distill"] = recipe["distill"]
    plain: dict[str, Any] = json.loads(json.dumps(kept))
    return plain


def _macs_of_one_example(bench: Profiler) -> int:
    data, task = bench.benchmark.data, bench.benchmark.task
    one = send_to_device(data.val.collate([data.val[(0, 0)]]), bench.device)
    args, kwargs = task.to_model(one)
    with torch.compiler.set_stance("force_eager"):  # counters see no operation of a compiled model
        return count_macs(bench.model, *args, **kwargs)


def _ratios(
    works: Mapping[str, Callable[[], None]], benches: Mapping[str, Profiler], *, limit: float
) -> dict[str, PairedRatio]:
    """Time of each work over the first one's, which is in the answer too; empty where there is no time for it."""
    base, *others = works
    wait = synchronizer(benches[base].device)
    start = time.perf_counter()
    for work in works.values():
        work()
    if wait is not None:
        wait()
    pairs = min(PAIRS, int(limit / (time.perf_counter() - start)))
    if pairs < FEWEST_PAIRS:
        return {}
    if not others:
        return {}
    found = several(works[base], {spec: works[spec] for spec in others}, pairs=pairs, warmup=1, synchronize=wait)
    seconds = next(iter(found.values())).baseline_seconds
    same = PairedRatio(ratio=1, low=1, high=1, baseline_seconds=seconds, candidate_seconds=seconds, pairs=pairs)
    return {base: same, **found}


def _cost(
    own: _Counts, base: _Counts, training: PairedRatio | None, inference: PairedRatio | None, *, is_baseline: bool
) -> Cost:
    return Cost(
        parameters=own.parameters,
        macs=own.macs,
        parameters_ratio=own.parameters / base.parameters,
        macs_ratio=own.macs / base.macs if base.macs else None,
        train_time_ratio=_interval(training),
        inference_time_ratio=_interval(inference),
        memory_ratio=own.memory / base.memory if base.memory else None,
        train_seconds_per_step=training.candidate_seconds if training else None,
        inference_seconds_per_batch=inference.candidate_seconds if inference else None,
        peak_memory_bytes=own.memory,
    )


def _interval(ratio: PairedRatio | None) -> Interval | None:
    return None if ratio is None else Interval(point=ratio.ratio, low=ratio.low, high=ratio.high)
