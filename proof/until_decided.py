"""Measure the false calls of `--until decided`, and the runs that it needs compared with a fixed number of seeds.

    python -m proof.until_decided --out benchmarks/until_decided.json

Studies of a baseline and four variants are simulated (`proof.simulation`) and tested after every round by the rules of
`attngraft.results.sequential`, which `attngraft compare --until decided` uses:

- null studies, in which all variants equal the baseline: how often any variant is called better or worse;
- planted effects: the mean number of runs, and that of the fixed design (the same seeds for all variants, Holm's correction)
  that finds as many of the differences. Its number of seeds is interpolated.

Required: a false winner in at most 5% of the null studies of each kind; false calls in at most 5% of those of every kind
with equal variants (one-sided binomial tests, Holm's correction); with planted effects, at most 0.7 of the fixed design's
runs for each kind. The exit status is 1 otherwise. Takes about five minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from scipy import stats

from attngraft.bench.result import current_setting
from attngraft.files import write_atomically
from attngraft.results.crossed import Components
from attngraft.results.sequential import ALPHA, MOST_SEEDS, UNLIKELY, SequentialTest
from attngraft.results.statistics import holm
from proof.simulation import Setting, simulate_scores

COMMAND = "python -m proof.until_decided"
FIRST = 3  #: seeds of the first round
NULL_STUDIES = 5  #: times as many studies of the null kinds
LARGEST_RATIO = 0.7  #: of the runs of a fixed design of equal power


def kind(
    name: str,
    accuracy: Sequence[float],
    *,
    images: int,
    image: float = 0.6,
    image_by_arm: float = 0.0,
    noise: float = 0.002,
    shared: float = 0.1,
) -> Setting:
    """Return a setting in which seeds and runs each have the share `noise` of the variance."""
    return Setting(
        name=name,
        accuracy=tuple(accuracy),
        images=images,
        image=image,
        image_by_arm=image_by_arm,
        seed=noise,
        run=noise,
        shared=shared,
    )


NULL = (
    kind("little noise between seeds", [0.9] * 5, images=1000, image=0.7),
    kind("much noise between seeds", [0.8] * 5, images=1000, noise=0.02),
    kind(
        "images differ in difficulty between variants",
        [0.75] * 5,
        images=500,
        image=0.5,
        image_by_arm=0.15,
        noise=0.005,
    ),
    kind("few images, few errors", [0.97] * 5, images=200, image=0.7, image_by_arm=0.05, noise=0.005, shared=0.05),
)
PLANTED = (
    kind("four effects", [0.8, 0.815, 0.83, 0.77, 0.86], images=2000),
    kind("four effects, much noise between seeds", [0.8, 0.84, 0.87, 0.76, 0.92], images=2000, noise=0.01),
    kind(
        "four effects, images differ in difficulty between variants",
        [0.8, 0.82, 0.84, 0.77, 0.74],
        images=2000,
        image_by_arm=0.05,
    ),
    kind("four effects, many images", [0.9, 0.91, 0.92, 0.93, 0.88], images=10_000, image=0.7),
    kind("two effects, two equal", [0.8, 0.83, 0.82, 0.8, 0.8], images=2000),
    kind("one effect, three equal", [0.8, 0.83, 0.8, 0.8, 0.8], images=2000),
)

#: names of the kinds with variants that equal the baseline
WITH_EQUAL = {each.name for each in (*NULL, *PLANTED) if each.accuracy[0] in each.accuracy[1:]}


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Results of the simulated studies of one kind."""

    name: str
    studies: int
    false_winners: int  #: studies in which a variant that equals the baseline is called better
    false_calls: int  #: studies in which such a variant is called better or worse
    found: float  #: share of the planted effects that are called, in the right direction
    runs: float  #: mean number of runs
    fixed_found: list[float]  #: share that a fixed design finds, with 2, 3, ... seeds
    fixed_seeds: float | None  #: seeds of the fixed design that finds as many; None without planted effects
    ratio: float | None  #: runs, divided by those of that fixed design


def all_components(differences: np.ndarray) -> dict[tuple[int, int], Components]:
    """Return `components` of the first S seeds of each variant, by variant and S; `differences` are (V, seeds, N)."""
    examples = differences.shape[2]
    by_seed, squares = differences.mean(axis=2), (differences**2).sum(axis=2).cumsum(axis=1)
    sums = differences.cumsum(axis=1)
    found = {}
    for variant, seeds in np.ndindex(differences.shape[:2]):
        count = seeds + 1
        if count < 2:
            continue
        means, columns = by_seed[variant, :count], sums[variant, seeds] / count
        mean = means.mean()
        of_seeds, of_examples = examples * ((means - mean) ** 2).sum(), count * ((columns - mean) ** 2).sum()
        total = squares[variant, seeds] - count * examples * mean**2
        rest = (total - of_seeds - of_examples) / ((count - 1) * (examples - 1))
        found[variant, count] = Components(
            mean=float(mean),
            seed_count=count,
            example_count=examples,
            seed_means=float(of_seeds / examples / (count - 1)),
            examples=float(of_examples / count / (examples - 1) - rest / count),
            rest=float(rest),
        )
    return found


def in_rounds(found: Mapping[tuple[int, int], Components], variants: int) -> tuple[dict[int, str], int]:
    """Return the decision on each variant, and the number of runs."""
    test = SequentialTest([str(v) for v in range(variants)], first=FIRST, margin=None, higher_is_better=True)
    decisions: dict[int, str] = {}
    while (seeds := test.seeds) is not None:
        done = test.add({name: found[int(name), seeds] for name in test.undecided})
        decisions |= {int(each.variant): each.decision for each in done.variants}
    return decisions, test.done[-1].runs


def fixed(found: Mapping[tuple[int, int], Components], variants: int, seeds: int) -> dict[int, str]:
    """Return the decisions of a study in which all variants have the same seeds."""
    each = [found[variant, seeds] for variant in range(variants)]
    corrected = holm([one.p_value() for one in each])
    return {
        variant: ("better" if one.mean > 0 else "worse") if p is not None and p <= ALPHA else "undecided"
        for variant, (one, p) in enumerate(zip(each, corrected, strict=True))
    }


def measure(setting: Setting, *, studies: int, random_state: int = 0) -> Counts:
    """Simulate studies of one kind."""
    generator = np.random.default_rng(random_state)
    effects = np.sign(np.array(setting.accuracy[1:]) - setting.accuracy[0])
    planted = {v: "better" if effect > 0 else "worse" for v, effect in enumerate(effects) if effect}
    winners = calls = 0
    found: list[float] = []
    runs: list[int] = []
    of_fixed: dict[int, list[float]] = {seeds: [] for seeds in range(2, MOST_SEEDS + 1)} if planted else {}

    def share(decisions: Mapping[int, str]) -> float:
        return float(np.mean([decisions[v] == right for v, right in planted.items()]))

    for _ in range(studies):
        scores, _ = simulate_scores(setting, seeds=MOST_SEEDS, generator=generator)
        estimates = all_components(scores[1:] - scores[:1])
        decisions, count = in_rounds(estimates, len(effects))
        equal = [decisions[v] for v in decisions if v not in planted]
        winners += "better" in equal
        calls += "better" in equal or "worse" in equal
        runs.append(count)
        if planted:
            found.append(share(decisions))
        for seeds, shares in of_fixed.items():
            shares.append(share(fixed(estimates, len(effects), seeds)))
    curve = [float(np.mean(shares)) for shares in of_fixed.values()]
    needed = _seeds_that_find(float(np.mean(found)), curve) if planted else None
    return Counts(
        name=setting.name,
        studies=studies,
        false_winners=int(winners),
        false_calls=int(calls),
        found=float(np.mean(found)) if planted else 0.0,
        runs=float(np.mean(runs)),
        fixed_found=curve,
        fixed_seeds=needed,
        ratio=None if needed is None else float(np.mean(runs) / (needed * len(setting.accuracy))),
    )


def _seeds_that_find(share: float, curve: Sequence[float]) -> float:
    """Return the smallest, interpolated number of seeds of a fixed design that finds this share of the effects."""
    rising = np.maximum.accumulate(curve)
    enough = int(np.argmax(rising >= min(share, rising[-1])))
    if enough == 0:
        return 2.0
    low, high = rising[enough - 1], rising[enough]
    return float(1 + enough + (min(share, high) - low) / (high - low))


def result_of(null: Sequence[Counts], planted: Sequence[Counts]) -> dict[str, Any]:
    """Return the measured numbers as plain data, with the requirements."""
    tested = [each for each in (*null, *planted) if each.name in WITH_EQUAL]
    p_values = [float(stats.binomtest(each.false_calls, each.studies, ALPHA, "greater").pvalue) for each in tested]
    corrected = dict(zip([each.name for each in tested], zip(p_values, holm(p_values), strict=True), strict=True))
    rows = [
        asdict(each) | {"p": corrected[each.name][0], "p_holm": corrected[each.name][1]}
        if each in tested
        else asdict(each)
        for each in (*null, *planted)
    ]
    passed = [
        *(each.false_winners <= ALPHA * each.studies for each in null),
        *(p is not None and p >= 0.05 for _, p in corrected.values()),
        *(each.ratio is not None and each.ratio <= LARGEST_RATIO for each in planted),
    ]
    return {"passed": all(passed), "null": rows[: len(null)], "planted": rows[len(null) :]}


def main(arguments: Iterable[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    given, console, setting = _arguments(words), Console(highlight=False, soft_wrap=True), current_setting()
    every = [*NULL, *PLANTED]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        counts = list(pool.map(_Measure(given.studies), every))
    for each in counts:
        text = f"false winners {each.false_winners}, false calls {each.false_calls} of {each.studies}; {each.runs:.1f} runs"
        if each.ratio is not None:
            text += f"; finds {each.found:.1%}, as {each.fixed_seeds:.1f} fixed seeds; ratio of runs {each.ratio:.2f}"
        console.print(f"{each.name}: {text}")
    result = result_of(counts[: len(NULL)], counts[len(NULL) :])
    console.print("pass" if result["passed"] else "FAIL")
    if given.out:
        head = {
            "title": "Rounds of seeds until every variant is decided: false calls, and runs compared with a fixed design",
            "command": shlex.join([*COMMAND.split(), *words]),
            "environment": setting.environment,
            "settings": {
                "studies": given.studies,
                "alpha": ALPHA,
                "first_seeds": FIRST,
                "most_seeds": MOST_SEEDS,
                "unlikely": UNLIKELY,
                "kinds": [asdict(each) for each in every],
            },
        }
        write_atomically(given.out, json.dumps(head | result, indent=2, ensure_ascii=False) + "\n")
    return 0 if result["passed"] else 1


@dataclass(frozen=True)
class _Measure:
    """`measure` with a number of studies, which can be sent to another process."""

    studies: int

    def __call__(self, setting: Setting) -> Counts:
        return measure(setting, studies=self.studies * (NULL_STUDIES if setting in NULL else 1))


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--studies", type=int, default=400, help="simulated studies of each kind; 5 times as many null studies"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="write everything as JSON (benchmarks/until_decided.json)")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
