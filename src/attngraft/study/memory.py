"""The memory that the evaluation of the largest example needs, for the plan of a study."""

from __future__ import annotations

import logging

from attngraft.study.plan import Study
from attngraft.timing.memory import free_on
from attngraft.training.memory import estimate_memory
from attngraft.training.profiler import BenchmarkBatch, run_device

log = logging.getLogger(__name__)


def memory_plan(study: Study, benchmark: BenchmarkBatch, *, concurrency: int) -> str:
    """Describe the largest estimate of the variants, and log a warning if it exceeds the free memory; empty if unknown.

    Variants with other settings of the task are left out, since their data would have to be opened.

    Args:
        study: the study.
        benchmark: its opened data.
        concurrency: number of runs that are trained, and evaluated, at the same time.
    """
    device, recipes = run_device(), [study.recipe_of(variant) for variant in study.variants]
    estimates = [
        estimate_memory(recipe, benchmark.task, benchmark.data)
        for recipe in recipes
        if recipe.task == benchmark.recipe.task
    ]
    most = max((each for each in estimates if each is not None), key=lambda each: each.bytes, default=None)
    if most is None:
        return ""
    free = free_on(device)
    if free is not None and device.type == "cpu":
        free //= concurrency
    if warning := most.warning(free):
        log.warning("%s%s", warning, " or fewer runs at a time" if concurrency > 1 else "")
    return most.described()
