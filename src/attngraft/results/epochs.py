"""How many epochs a variant needs to be as good as the baseline ever gets.

The question of BiSA's Fig. 3, asked of means over seeds: the first epoch at which the variant's mean curve reaches the best
value of the baseline's mean curve, over the epoch at which the baseline itself gets there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from attngraft.results.study import EpochsToBaseline


class Learned(Protocol):
    """A run that has learned: a `RunSummary`, or whatever else knows its curves."""

    @property
    def seed(self) -> int: ...

    @property
    def curve(self) -> Mapping[str, Sequence[float]]:
        """Values after each epoch, by key."""


def epochs_to_baseline(
    runs: Sequence[Learned], baseline: Sequence[Learned], *, key: str, higher_is_better: bool
) -> EpochsToBaseline | None:
    """When each seed of a variant, and the mean over its seeds, first reach the baseline's best mean.

    Args:
        runs: the variant's finished runs; those of the baseline itself give 1 by their mean curve.
        baseline: the baseline's finished runs.
        key: of the curve that is looked at ("val/top1"). Values that are not finite reach nothing.

    Returns:
        None where either has no run, or the baseline no finite value.
    """
    sign = 1 if higher_is_better else -1
    best = _best(_mean_curve(baseline, key), sign)
    if not runs or best is None:
        return None
    target, baseline_epoch = best

    def first(curve: Sequence[float]) -> int | None:
        return next((epoch for epoch, value in enumerate(curve, start=1) if sign * value >= sign * target), None)

    reached = first(_mean_curve(runs, key))
    return EpochsToBaseline(
        target=target,
        by_seed={run.seed: first(run.curve[key]) for run in runs},
        of_mean_curve=reached,
        baseline_epoch=baseline_epoch,
        ratio=None if reached is None else reached / baseline_epoch,
        speed_up=None if reached is None else baseline_epoch / reached,
    )


def _mean_curve(runs: Sequence[Learned], key: str) -> list[float]:
    return [math.fsum(values) / len(values) for values in zip(*(run.curve[key] for run in runs), strict=False)]


def _best(curve: Sequence[float], sign: int) -> tuple[float, int] | None:
    """The best finite value and the first epoch (1-based) that has it."""
    finite = [(sign * value, -epoch) for epoch, value in enumerate(curve, start=1) if math.isfinite(value)]
    if not finite:
        return None
    value, epoch = max(finite)
    return sign * value, -epoch
