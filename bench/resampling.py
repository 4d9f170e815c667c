"""Time of the bootstrap of metrics that are no means, and of the statistics of a large study.

    python bench/resampling.py --out benchmarks/resampling.json

The interval of the difference between a baseline and a variant of one seed, from 2,000 resamples of 1,000 images with 150
classes: mIoU from three margins per class and image, and mean average precision of labels with 2 to 50% positives. Bar: 10 s
per variant, in CPU seconds, which other processes affect little.

All statistics of one metric (intervals, tests, detectable differences) of 20 variants, 10 seeds and 10,000 examples, for
scores of 0 or 1. Bars: 30 CPU seconds, and memory growth of 1 GiB.

A study draws fewer resamples where 2,000 would take over a minute (`affordable_resamples`). The last lines compare its
estimate with the time taken, for statistics of all kinds and sizes, on a few resamples: a ratio of 1 is exact, and above 1
it took longer.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable

import numpy as np

from attngraft.bench.command import finish, options
from attngraft.bench.result import Measurement, current_setting, measurement
from attngraft.results.measured import (
    ClosedForm,
    MeanAveragePrecision,
    MeanScore,
    SpearmanCorrelation,
    Statistic,
    macro_f1,
)
from attngraft.results.statistics import affordable_resamples, crossed_bootstraps_of
from attngraft.study.verdict import compare_all
from attngraft.timing import Duration, duration
from attngraft.timing.memory import growth

Make = Callable[[np.random.Generator, int, int], Statistic]  #: (generator, images, classes) -> statistic

IMAGES, CLASSES, RESAMPLES = 1000, 150, 2000
BAR = 10.0
FEW = 100  #: resamples for the check of the estimate
VARIANTS, SEEDS, EXAMPLES = 20, 10, 10_000  #: the large study
STUDY_BAR, MEMORY_BAR = 30.0, 2**30
WITHIN = 3.0  #: bar of taken over estimated time


def mean_iou(draw: np.random.Generator, images: int, classes: int) -> Statistic:
    """Return mIoU with a tenth of the classes in each image."""
    there = draw.random((images, classes)) < 0.1
    truth, predicted = draw.integers(1, 5000, size=(2, images, classes)) * there
    both = np.minimum(truth, predicted) // 2
    margins = np.concatenate([both, truth, predicted], axis=1).astype(float)

    def formula(sums: np.ndarray) -> np.ndarray:
        intersection, first, second = np.split(sums, 3, axis=1)
        return intersection / (first + second - intersection)

    return ClosedForm(margins, formula)


def average_precision(share: float) -> Make:
    def make(draw: np.random.Generator, images: int, classes: int) -> Statistic:
        truth = draw.random((images, classes)) < share
        return MeanAveragePrecision(truth + draw.normal(0, 1, truth.shape), truth)

    return make


def f1(draw: np.random.Generator, images: int, classes: int) -> Statistic:
    target = draw.integers(classes, size=images)
    predicted = np.where(draw.random(images) < 0.7, target, draw.integers(classes, size=images))
    return macro_f1(predicted, target, classes=classes)


def spearman(draw: np.random.Generator, images: int, classes: int) -> Statistic:
    target = draw.normal(size=images)
    return SpearmanCorrelation(target + draw.normal(size=images), target)


TIMED = {
    "mIoU": mean_iou,
    "mAP, 2% positives": average_precision(0.02),
    "mAP, 10% positives": average_precision(0.1),
    "mAP, 50% positives": average_precision(0.5),
}
ESTIMATED = {
    "mIoU": (mean_iou, 10_000, 150),
    "macro F1": (f1, 50_000, 1000),
    "mAP, 2% positives": (average_precision(0.02), 5000, 80),
    "mAP, 30% positives": (average_precision(0.3), 5000, 80),
    "Spearman's correlation": (spearman, 10_000, 1),
}


def pair(make: Make, images: int, classes: int) -> list[Statistic]:
    """Return the baseline's statistic and the variant's."""
    return [make(np.random.default_rng(seed), images, classes) for seed in range(2)]


def seconds(statistics: list[Statistic], *, resamples: int, samples: int) -> Duration:
    """Time the bootstrap interval of one pair of runs, after the rankings, which are made once."""
    baseline, variant = ([each] for each in statistics)
    states = itertools.count()  # the counts of one state are kept, and not drawn again

    def once() -> None:
        crossed_bootstraps_of(baseline, [variant], resamples=resamples, random_state=next(states))

    return duration(once, samples=samples, clock=time.process_time)


def timed(name: str, make: Make, samples: int) -> Measurement:
    taken = seconds(pair(make, IMAGES, CLASSES), resamples=RESAMPLES, samples=samples)
    return measurement(f"{name}: {RESAMPLES:,} resamples of {IMAGES:,} images, {CLASSES} classes", taken, bar=BAR)


def estimated(name: str, make: Make, images: int, classes: int, samples: int) -> Measurement:
    """Return the time of a resample over the estimate, and in the name the number of resamples of a study of 10 seeds."""
    baseline, variant = pair(make, images, classes)
    taken = seconds([baseline, variant], resamples=FEW, samples=samples)
    estimate = 1e-9 * FEW * (40 * images + baseline.cost + variant.cost)
    number = affordable_resamples([baseline] * 10, [variant] * 10)
    low, middle, high = taken.low / estimate, taken.seconds / estimate, taken.high / estimate
    return Measurement(
        name=f"time over estimate, {name}, {images:,} examples, {classes} classes (10 seeds: {number:,} resamples)",
        unit="ratio",
        value=middle,
        low=low,
        high=high,
        bar=WITHIN,
        passed=low <= WITHIN,
        samples=samples,
    )


def study_statistics() -> tuple[Measurement, Measurement]:
    """Return time and memory of all statistics of one metric of a large study, measured once."""
    draw = np.random.default_rng(0)
    hard = draw.random(EXAMPLES)

    def arm() -> dict[int, MeanScore]:
        return {
            seed: MeanScore((hard + draw.normal(0, 0.1, EXAMPLES) < 0.8).astype(float), binary=True)
            for seed in range(SEEDS)
        }

    baseline, variants = arm(), [arm() for _ in range(VARIANTS)]
    pairs = [(baseline, variant) for variant in variants]
    memory, seconds = growth(lambda: compare_all(pairs, higher_is_better=True, point=0.01), clock=time.process_time)
    name = f"statistics of {VARIANTS} variants, {SEEDS} seeds, {EXAMPLES:,} examples"
    share = (memory or 0) / MEMORY_BAR
    return (
        Measurement(
            name=name,
            unit="seconds",
            value=seconds,
            low=seconds,
            high=seconds,
            bar=STUDY_BAR,
            passed=seconds <= STUDY_BAR,
            samples=1,
        ),
        Measurement(
            name=f"{name}: memory growth over 1 GiB",
            unit="ratio",
            value=share,
            low=share,
            high=share,
            bar=1.0,
            passed=share <= 1,
            samples=1,
        ),
    )


def main() -> int:
    arguments = options("Time of the bootstrap of metrics that are no means.", pairs=5).parse_args()
    setting = current_setting()
    samples = arguments.pairs
    result = setting.result(
        "Bootstrap of metrics that are no means",
        settings={"images": IMAGES, "classes": CLASSES, "resamples": RESAMPLES, "samples": samples},
        measurements=(
            *study_statistics(),
            *(timed(name, make, samples) for name, make in TIMED.items()),
            *(estimated(name, *each, samples) for name, each in ESTIMATED.items()),
        ),
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
