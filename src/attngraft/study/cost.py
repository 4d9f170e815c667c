"""Costs of each variant: parameters, multiply-adds, time and memory, as ratios to the baseline.

Times are measured in interleaved rounds, as in `attngraft.timing.paired`: each round runs every variant once and yields a
ratio, and the result is the median ratio with its bootstrap interval. Costs are saved in the study's folder, so that the
report can be rewritten without measuring again.
"""

import dataclasses
import gc
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device

from attngraft.counting import counted
from attngraft.errors import ConfigError
from attngraft.files import write_atomically
from attngraft.opening import read_json
from attngraft.results.study import Cost, Interval
from attngraft.results.wording import duration
from attngraft.strict import read
from attngraft.study.config import StudyConfig
from attngraft.study.plan import Study
from attngraft.tasks.codec import Program
from attngraft.tasks.task import Task
from attngraft.timing import PairedRatio, count_macs, count_parameters, several
from attngraft.timing.paired import collector_off
from attngraft.training.paths import real_paths
from attngraft.training.profiler import BenchmarkBatch, Profiler, synchronizer
from attngraft.training.recipe import Recipe, recipe_to_dict
from attngraft.training.setup import cpu_threads

COST_FILE = "cost.json"
PAIRS = 30
#: below this number of pairs, the range of all ratios covers the median with less than 90% probability; times are then
#: omitted, with the reason
FEWEST_PAIRS = 5
TRAINING_SHARE = 0.75  #: fraction of the time for training steps; the rest is for inference

Costs = dict[str, Cost]  #: by `Variant.key`


def measure_costs(study: Study, benchmark: BenchmarkBatch, *, seconds: float = 120.0, limit: float = 120.0) -> Costs:
    """Measure all variants of a study on this machine.

    Args:
        study: the study.
        benchmark: the opened data, preprocessed as in the runs.
        seconds: time for up to `PAIRS` rounds; `FEWEST_PAIRS` rounds may take longer.
        limit: maximum seconds; if `FEWEST_PAIRS` rounds take longer, time ratios are omitted.
    """
    profilers, parameters, macs, memory = {}, {}, {}, {}
    with cpu_threads(study.baseline_recipe.train.threads), collector_off():
        a_round = 0.0
        for variant in counted(study.variants, "variants built"):
            recipe = study.recipe_of(variant)
            key, profiler = variant.key, Profiler(recipe, benchmark.for_recipe(recipe))
            profilers[key], wait = profiler, synchronizer(profiler.device)
            parameters[key] = count_parameters(profiler.model)
            macs[key] = _macs_of_one_example(profiler)
            first = _seconds([profiler.train_step], wait)
            start = time.perf_counter()
            memory[key] = profiler.peak_memory()
            # an upper bound: the first step may include compilation, and counting memory makes small operations slower
            a_round += min(first, time.perf_counter() - start)
            gc.collect()
        training, slow = _ratios(
            {key: p.train_step for key, p in profilers.items()},
            wait,
            a_round=a_round,
            seconds=seconds * TRAINING_SHARE,
            limit=limit * TRAINING_SHARE,
        )
        batches = {key: p.evaluate_batch for key, p in profilers.items()}
        inference, slow_inference = _ratios(
            batches,
            wait,
            a_round=_seconds(counted(batches.values(), "warming up"), wait),
            seconds=seconds * (1 - TRAINING_SHARE),
            limit=limit * (1 - TRAINING_SHARE),
        )
    base = study.baseline.key
    reasons = {"training time": slow, "inference time": slow_inference}
    if None in macs.values():
        reasons["multiply-adds"] = f"the task {benchmark.task.name} does not describe how to run its model"
    return {
        key: Cost(
            parameters=parameters[key],
            macs=macs[key],
            parameters_ratio=parameters[key] / parameters[base],
            macs_ratio=_ratio(macs[key], macs[base]),
            train_time_ratio=_interval(training.get(key)),
            inference_time_ratio=_interval(inference.get(key)),
            memory_ratio=memory[key] / memory[base] if memory[base] else None,
            train_seconds_per_step=training[key].candidate_seconds if key in training else None,
            inference_seconds_per_batch=inference[key].candidate_seconds if key in inference else None,
            peak_memory_bytes=memory[key],
            not_measured={what: why for what, why in reasons.items() if why},
        )
        for key in profilers
    }


def _macs_of_one_example(profiler: Profiler) -> int | None:
    """Return the multiply-adds for one example; None if the task does not describe how to run the model.

    Counts one forward pass or, if the task's codec has several programs, the sum over all programs.
    """
    benchmark, task = profiler.benchmark, profiler.benchmark.task
    if type(task).to_model is not Task.to_model:
        val = benchmark.data.val
        args, kwargs = task.to_model(send_to_device(val.collate([val[(0, 0)]]), profiler.device))
        programs = [Program(module=profiler.model, args=args, kwargs=kwargs)]
    else:
        try:
            codec = task.codec(benchmark.data.facts, model_data_config=benchmark.input)
        except ConfigError:
            return None
        programs = list(codec.programs(profiler.model).values())
    macs = 0
    with torch.compiler.set_stance("force_eager"):  # the counter cannot count operations inside compiled code
        for each in programs:
            args, kwargs = send_to_device((each.args, dict(each.kwargs)), profiler.device)
            macs += count_macs(each.module, *args, **kwargs)
    return macs


def _seconds(works: Iterable[Callable[[], None]], wait: Callable[[], object] | None) -> float:
    """Call each function once; return the seconds."""
    start = time.perf_counter()
    for work in works:
        work()
    if wait is not None:
        wait()
    return time.perf_counter() - start


def _ratios(
    works: Mapping[str, Callable[[], None]],
    wait: Callable[[], object] | None,
    *,
    a_round: float,
    seconds: float,
    limit: float,
) -> tuple[dict[str, PairedRatio], str]:
    """Return each function's time ratio to the first (including the first itself, with ratio 1), or why there are none.

    There are none if there is only one function (the reason is empty), or if `FEWEST_PAIRS` rounds take longer than `limit`
    seconds. All functions have been called before, and one call of each took about `a_round` seconds.
    """
    base, *others = works
    if not others:
        return {}, ""
    if FEWEST_PAIRS * a_round > limit:
        return {}, f"a batch takes {duration(a_round / len(works))}, too long for {FEWEST_PAIRS} of every variant"
    pairs = min(PAIRS, max(FEWEST_PAIRS, int(seconds / a_round)))
    found = several(works[base], {key: works[key] for key in others}, pairs=pairs, warmup=0, synchronize=wait)
    step = next(iter(found.values())).baseline_seconds
    same = PairedRatio(ratio=1, low=1, high=1, baseline_seconds=step, candidate_seconds=step, pairs=pairs)
    return {base: same, **found}, ""


def _ratio(number: int | None, base: int | None) -> float | None:
    return None if number is None or not base else number / base


def _interval(ratio: PairedRatio | None) -> Interval | None:
    return None if ratio is None else Interval(point=ratio.ratio, low=ratio.low, high=ratio.high)


def save_costs(folder: Path, recipe: Recipe, costs: Mapping[str, Cost]) -> None:
    """Write `costs`, measured under the study's `recipe`, into the study's folder."""
    content = {
        "measured_for": _measured_for(recipe_to_dict(recipe)),
        "costs": {k: dataclasses.asdict(c) for k, c in costs.items()},
    }
    write_atomically(folder / COST_FILE, json.dumps(content, indent=2) + "\n")


def load_costs(folder: Path, config: StudyConfig, *, recipe: Recipe | None = None) -> Costs | None:
    """Read the costs in `folder`; None if they lack a variant of `config`, or are missing or damaged.

    If `recipe` is given, also returns None if the costs were measured under a different recipe.
    """
    try:
        content = read_json(folder / COST_FILE)
        costs = {key: read(Cost, values, where=f"{COST_FILE}.{key}") for key, values in content["costs"].items()}
        measured_for = _measured_for(content["measured_for"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # missing, damaged, of another version, or with numbers that cannot be measured: measure again
        return None
    if recipe is not None and measured_for != _measured_for(recipe_to_dict(recipe)):
        return None
    return costs if all(variant.key in costs for variant in config.variants) else None


def _measured_for(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe fields that costs depend on, which do not include seed, epochs and schedule.

    Fields that are missing because an older release stored the recipe are set to their defaults.
    """
    defaults = recipe_to_dict(Recipe())
    kept = {name: {**defaults[name], **recipe[name]} for name in ("host", "optimizer", "train")}
    kept |= {"task": recipe["task"]} | ({"distill": recipe["distill"]} if recipe.get("distill") else {})
    if paths := real_paths(recipe):  # not their spelling
        spelled = {name.rpartition(".")[2]: path for name, path in paths.items()}
        kept["task"] = {**recipe["task"], "data": {**recipe["task"]["data"], **spelled}}
    kept["train"] = {
        name: value for name, value in kept["train"].items() if name not in ("judge", "eval_every", "track")
    }
    plain: dict[str, Any] = json.loads(json.dumps(kept))
    return plain
