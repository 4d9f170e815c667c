"""Coverage of the intervals of `attngraft compare` over studies with a known true difference."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from attngraft.results.measured import MeanScore
from attngraft.results.statistics import mcnemar
from attngraft.results.study import Interval
from attngraft.study.verdict import compare_statistics
from proof.simulation import SETTINGS, Setting, equal_models, simulate

PAIRINGS = 200  #: number of random pairings of the runs, for a coverage that is not tested


@dataclass(kw_only=True)
class Count:
    """Counts over studies."""

    studies: int = 0
    with_interval: int = 0  #: studies with an interval: there is none if all seeds have exactly the same difference
    interval: int = 0  #: studies whose interval, which decides the verdict, contains the true difference
    bootstrap: int = 0  #: studies whose bootstrap interval contains the true difference
    with_t: int = 0  #: studies with a t-interval
    t: int = 0  #: studies whose t-interval contains the true difference
    verdicts: int = 0  #: studies with a verdict of better or worse, which is wrong if both are equal

    def add(self, baseline: np.ndarray, variant: np.ndarray, *, truth: float, on_these_images: float) -> None:
        """Add a study, by the scores (seeds, images) of both arms."""
        runs = ({seed: MeanScore(score, binary=True) for seed, score in enumerate(arm)} for arm in (baseline, variant))
        found = compare_statistics(*runs, higher_is_better=True)
        self.studies += 1
        self.with_interval += found.interval is not None
        self.interval += found.interval is not None and _holds(found.interval, truth)
        self.bootstrap += _holds(found.bootstrap, truth)
        self.with_t += found.t is not None
        self.t += found.t is not None and _holds(found.t, on_these_images)
        self.verdicts += found.verdict != "inside the noise"

    def __add__(self, other: Count) -> Count:
        names = (field.name for field in dataclasses.fields(self))
        return Count(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def __str__(self) -> str:
        bootstrap, verdicts = self.bootstrap / self.studies, self.verdicts / self.studies
        t = f"{self.t / self.with_t:.1%}" if self.with_t else "none"
        interval = f"{self.interval / self.with_interval:.1%}" if self.with_interval else "none"
        return f"interval {interval}, bootstrap {bootstrap:.1%}, t {t}, called better or worse {verdicts:.1%}"


def _holds(interval: Interval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


def simulated(setting: Setting, *, seeds: int, studies: int) -> Count:
    """Count over simulated studies of one kind; deterministic in the arguments."""
    generator = np.random.default_rng([seeds, studies, SETTINGS.index(setting)])
    count = Count()
    for _ in range(studies):
        study = simulate(setting, seeds=seeds, generator=generator)
        count.add(study.baseline, study.variant, truth=study.difference, on_these_images=study.on_these_images)
    return count


def disjoint(baseline: np.ndarray, variant: np.ndarray, *, seeds: int) -> Count:
    """Count over the disjoint studies of `seeds` pairs of the real runs (runs, images); the true difference is 0."""
    count = Count()
    for start in range(0, len(baseline) - seeds + 1, seeds):
        count.add(baseline[start : start + seeds], variant[start : start + seeds], truth=0.0, on_these_images=0.0)
    return count


def paired_anew(baseline: np.ndarray, variant: np.ndarray, *, seeds: int, pairings: int = PAIRINGS) -> Count:
    """Count over random pairings of the real runs. The studies share runs and images, so this is not a test."""
    runs, generator, count = np.concatenate([baseline, variant]), np.random.default_rng(seeds), Count()
    for _ in range(pairings):
        order = generator.permutation(len(runs))
        count += disjoint(runs[order[: len(baseline)]], runs[order[len(baseline) :]], seeds=seeds)
    return count


def mcnemar_p_values(*, images: int, studies: int) -> np.ndarray:
    """Return McNemar's p-values for pairs of models of equal accuracy."""
    pairs = equal_models(images=images, studies=studies, generator=np.random.default_rng([images, studies]))
    return np.array([mcnemar(first, second, seed=0).p_value for first, second in pairs])
