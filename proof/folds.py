"""Check the interval of a study with cross-validation, where the folds' training sets overlap.

    python -m proof.folds --out benchmarks/folds.json

Simulated studies compare two classifiers: ridge regression on random features of the one or of the other half of the inputs.
The halves are equally informative, so neither classifier is better over all data sets, although one may be better for the
training sets of a study. The features are the seed's, in all folds; each run (seed and fold) also weights its training
examples at random, as the order of batches does. Every example is judged once per seed, by the run that was not trained on
it. The interval is that of a study: `attngraft.results.crossed` on the table of seeds and examples, with the variance of
examples corrected for the overlap of training sets (Nadeau and Bengio 2003).

Required: the interval contains zero, the difference over all data sets, in 95% of the studies of each kind, and also the
difference of these runs' expected accuracies for the training sets at hand, which is computed from further seeds on many new
examples (one-sided binomial tests with Holm's correction). For comparison: the same without the correction, with another
partition for every seed, and with one split of 20% instead of folds; and, with one seed, the corrected t-test over folds,
which does not cover the variation between seeds.

The exit status is 1 if the interval is too narrow. Takes about five minutes on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from scipy import stats

from attngraft.bench.result import current_setting
from attngraft.files import write_atomically
from attngraft.results.crossed import components
from attngraft.results.statistics import holm
from attngraft.tasks.images.sources.folds import draw_folds

COMMAND = "python -m proof.folds"
SEEDS, EXAMPLES = (2, 3, 5, 10), (100, 300)
FOLDS = 5
INPUTS = 4  #: inputs of each half
#: kind of noise -> random features (few: a seed's features matter much), and spread of a run's weights of examples
KINDS = {"noisy seeds": (4, 0.5), "noisy runs": (12, 2.0), "little noise": (12, 0.2)}
NEW_SEEDS, NEW_EXAMPLES = 24, 4000  #: for the target of the interval


#: events counted in every kind of study, as in `Point`
COUNTED = (
    "zero_covered",
    "these_data_covered",
    "zero_covered_without_correction",
    "these_data_covered_without_correction",
    "zero_covered_with_new_partitions",
    "zero_covered_with_one_split",
    "corrected_t_excludes_zero",
)


@dataclass(frozen=True, kw_only=True)
class Data:
    """Inputs of both halves (2, N, INPUTS) and labels (N,) of 0 or 1."""

    inputs: np.ndarray
    labels: np.ndarray

    @classmethod
    def draw(cls, examples: int, truth: np.ndarray, generator: np.random.Generator) -> Data:
        inputs = generator.normal(size=(2, examples, INPUTS))
        signal = (np.tanh(inputs) @ truth).sum(axis=0) + generator.normal(0, 1, examples)
        return cls(inputs=inputs, labels=(signal > 0).astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The runs of one seed: features (2, INPUTS + 1, H), the same in all folds, and coefficients (2, K, H + 1)."""

    features: np.ndarray
    coefficients: np.ndarray

    @classmethod
    def train(cls, data: Data, fold_of: np.ndarray, folds: int, kind: str, generator: np.random.Generator) -> Runs:
        """Train both classifiers, for each fold on the examples of the other folds."""
        size, spread = KINDS[kind]
        features = generator.normal(size=(2, INPUTS + 1, size))
        hidden = _hidden(data.inputs, features)  # (2, N, H + 1)
        trains = fold_of != np.arange(folds)[:, None]
        weights = trains * generator.gamma(1 / spread, spread, size=(2, folds, len(fold_of)))
        target = 2.0 * data.labels - 1
        gram = np.einsum("akn,anh,ang->akhg", weights, hidden, hidden, optimize=True)
        moments = np.einsum("akn,anh,n->akh", weights, hidden, target, optimize=True)
        gram += np.eye(size + 1)
        return cls(features=features, coefficients=np.linalg.solve(gram, moments[..., None])[..., 0])

    def right(self, data: Data) -> np.ndarray:
        """Return whether each run is right, (2, K, N)."""
        outputs = np.einsum("anh,akh->akn", _hidden(data.inputs, self.features), self.coefficients, optimize=True)
        return np.asarray((outputs > 0) == (data.labels > 0))


def _hidden(inputs: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return the features of inputs and a constant, (2, N, H + 1)."""
    hidden = np.maximum(inputs @ features[:, :-1] + features[:, -1:], 0)
    return np.concatenate([hidden, np.ones((2, inputs.shape[1], 1))], axis=2)


def judged(runs: Runs, data: Data, fold_of: np.ndarray) -> np.ndarray:
    """Return the difference of the two scores of each example, (N,), by the runs that were not trained on it."""
    right = runs.right(data)[:, fold_of, np.arange(len(fold_of))].astype(float)
    return np.asarray(right[1] - right[0])


def corrected_t_excludes_zero(by_fold: np.ndarray) -> bool:
    """Return whether the corrected t-test over the folds of one seed is significant (Nadeau and Bengio 2003)."""
    folds = len(by_fold)
    variance = (1 / folds + 1 / (folds - 1)) * by_fold.var(ddof=1)  # tested on 1 / (K - 1) of what is trained on
    return bool(abs(by_fold.mean()) > stats.t.isf(0.025, folds - 1) * variance**0.5)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One kind of study, and in how many of its studies each event happened."""

    kind: str
    seeds: int
    examples: int
    studies: int
    zero_covered: int  #: the interval contains zero, the difference over all data sets
    these_data_covered: int  #: it contains the difference for these training sets
    zero_covered_without_correction: int
    these_data_covered_without_correction: int
    zero_covered_with_new_partitions: int  #: the same as `zero_covered`, with another partition for every seed
    zero_covered_with_one_split: int  #: the same, with the runs and examples of the first fold alone
    corrected_t_excludes_zero: int  #: of the first seed alone
    half_length: float  #: mean
    half_length_of_one_split: float  #: mean of the interval of the first fold alone


def measure(kind: str, *, seeds: int, examples: int, studies: int) -> Point:
    """Simulate studies of one kind."""
    generator = np.random.default_rng([list(KINDS).index(kind), seeds, examples])
    counts, lengths = dict.fromkeys(COUNTED, 0), []

    def partition(data: Data, number: int) -> np.ndarray:
        return draw_folds(data.labels, FOLDS, seed=number, classes=("0", "1"), where="simulation")

    for _ in range(studies):
        truth = generator.normal(size=INPUTS)
        data = Data.draw(examples, truth, generator)
        while np.bincount(data.labels, minlength=2).min() < FOLDS:
            data = Data.draw(examples, truth, generator)
        fold_of = partition(data, 0)

        def train(folds: np.ndarray, data: Data = data) -> Runs:
            return Runs.train(data, folds, FOLDS, kind, generator)

        table = np.stack([judged(train(fold_of), data, fold_of) for _ in range(seeds)])
        others = [partition(data, number) for number in range(1, seeds)]
        varied = np.stack([table[0], *(judged(train(other), data, other) for other in others)])
        new = Data.draw(NEW_EXAMPLES, truth, generator)
        accuracies = np.mean([train(fold_of).right(new).mean(axis=2) for _ in range(NEW_SEEDS)], axis=0)  # (2, K)
        target = float(np.bincount(fold_of) @ (accuracies[1] - accuracies[0]) / examples)
        half, half_uncorrected = half_length(table, FOLDS), half_length(table)
        split = table[:, fold_of == 0]
        counts["zero_covered"] += abs(table.mean()) <= half
        counts["these_data_covered"] += abs(table.mean() - target) <= half
        counts["zero_covered_without_correction"] += abs(table.mean()) <= half_uncorrected
        counts["these_data_covered_without_correction"] += abs(table.mean() - target) <= half_uncorrected
        counts["zero_covered_with_new_partitions"] += abs(varied.mean()) <= half_length(varied, FOLDS)
        counts["zero_covered_with_one_split"] += abs(split.mean()) <= half_length(split)
        by_fold = np.array([table[0, fold_of == fold].mean() for fold in range(FOLDS)])
        counts["corrected_t_excludes_zero"] += corrected_t_excludes_zero(by_fold)
        lengths.append((half, half_length(split)))
    finite = np.array(lengths)[np.isfinite(lengths).all(axis=1)]
    return Point(
        kind=kind,
        seeds=seeds,
        examples=examples,
        studies=studies,
        half_length=float(finite[:, 0].mean()),
        half_length_of_one_split=float(finite[:, 1].mean()),
        **{name: int(count) for name, count in counts.items()},
    )


def half_length(table: np.ndarray, folds: int | None = None) -> float:
    """Return the half-length of the interval of differences (S, N); infinite if there is none, as nothing is called."""
    interval = components(table).with_folds(folds).interval()
    return np.inf if interval is None else interval.high - interval.point


def summary(points: Sequence[Point]) -> dict[str, Any]:
    """Return shares over all points, by seeds, and whether the coverage is 95%."""
    tests = {}
    for name in ("zero_covered", "these_data_covered"):
        covered, studies = [getattr(point, name) for point in points], [point.studies for point in points]
        every = [*zip(covered, studies, strict=True), (sum(covered), sum(studies))]
        found = [float(stats.binomtest(k, n, 0.95, alternative="less").pvalue) for k, n in every]
        tests[name] = {
            "smallest_p": min(p for p in holm(found[:-1]) if p is not None),
            "p_of_all": found[-1],
            "least": min(k / n for k, n in every),
        }
    by_seeds = {}
    for seeds in sorted({point.seeds for point in points}):
        here = [point for point in points if point.seeds == seeds]
        studies_here = sum(point.studies for point in here)
        shares = {name: sum(getattr(point, name) for point in here) / studies_here for name in COUNTED}
        ratio = float(np.mean([point.half_length / point.half_length_of_one_split for point in here]))
        by_seeds[str(seeds)] = shares | {"length_to_one_split": ratio}
    passed = all(min(each["smallest_p"], each["p_of_all"]) > 0.05 for each in tests.values())
    return {"passed": passed, "tests": tests, "by_seeds": by_seeds}


def main(arguments: Iterable[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--studies", type=int, default=200, help="studies of each kind")
    parser.add_argument("--out", type=Path, help="write everything as JSON (benchmarks/folds.json)")
    given, console, setting = parser.parse_args(words), Console(highlight=False, soft_wrap=True), current_setting()
    points = []
    for kind in KINDS:
        for seeds in SEEDS:
            for examples in EXAMPLES:
                point = measure(kind, seeds=seeds, examples=examples, studies=given.studies)
                points.append(point)
                console.print(f"{kind}, {seeds} seeds, {examples} examples: {dataclasses.asdict(point)}")
    result = summary(points)
    console.print_json(data=result)
    if given.out:
        head = {
            "title": "Coverage of the interval with cross-validation",
            "command": shlex.join([*COMMAND.split(), *words]),
            "environment": setting.environment,
            "settings": {"folds": FOLDS, "kinds": KINDS, "new_seeds": NEW_SEEDS, "new_examples": NEW_EXAMPLES},
        }
        body = {"points": [dataclasses.asdict(point) for point in points]}
        write_atomically(given.out, json.dumps(head | result | body, indent=1) + "\n")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
