"""Group sequential test of several variants against one baseline, for studies that add seeds in rounds.

Looking at the data after every round and stopping at the first significant difference would call far more than 5% of equal
variants better or worse. Three corrections keep the probability of any false call in a study at 5%:

- **Rounds.** With S of at most M seeds, the probability of a false call so far may be alpha S / M, the linear spending
  function (Lan and DeMets 1983, "Discrete sequential boundaries for clinical trials"; Kim and DeMets 1987). It spends early,
  which suits tests with few seeds. The level of each round follows from the joint distribution of the estimates, whose
  correlation is that of Brownian motion at S / M. If the examples limit the information, estimates are more correlated,
  and fewer false calls are made.
- **Variants.** Holm's correction in every round: each test is at alpha / (number of variants not yet called better or worse)
  (Maurer and Bretz 2013, "Multiple testing in group sequential trials using graphical approaches").
- **Few seeds.** The level of a round applies to the p-value of `attngraft.results.crossed`, whose quantiles are Student's t.

A variant is also decided once the interval at the level of its round lies within a margin, and it is given up if a decision
within M seeds is unlikely (stochastic curtailment: Lan, Simon and Halperin 1982). Neither adds calls of better or worse.
"""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import optimize, special

from attngraft.results.crossed import Components, half_length
from attngraft.results.study import Decision, Interval, Round, RoundVariant

ALPHA = 0.05
MOST_SEEDS = 20  #: maximum number of seeds
UNLIKELY = 0.05  #: probability of a decision below which a variant is given up
_POINTS = 401  #: grid of the numerical integration


def rounds_from(first: int) -> tuple[int, ...]:
    """Return the number of seeds after each round: `first`, then one more per round, up to `MOST_SEEDS`."""
    return tuple(range(first, MOST_SEEDS + 1))


def spent(alpha: float, fraction: float) -> float:
    """Return the error probability that may be spent at this fraction of the maximum number of seeds."""
    return alpha * fraction


@functools.lru_cache(maxsize=256)
def levels(rounds: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """Return the two-sided level of the test in each round, for rounds that end at `rounds[-1]` seeds.

    The levels follow from the spending function by recursive integration (Armitage, McPherson and Rowe 1969).
    """
    found: list[float] = []
    values, density, before = np.zeros(1), np.ones(1), 0.0  # of Brownian motion that has not crossed a boundary
    for count in rounds:
        time = count / rounds[-1]
        spend = spent(alpha, time) - spent(alpha, before)
        deviation = (time - before) ** 0.5

        def excess(bound: float, *, at: float = time**0.5, step: float = deviation, allowed: float = spend) -> float:
            above, below = (bound * at - values) / step, (bound * at + values) / step  # noqa: B023
            return float(density @ (special.ndtr(-above) + special.ndtr(-below))) - allowed  # noqa: B023

        bound = float(optimize.brentq(excess, 0.0, 38.0))
        found.append(2 * float(special.ndtr(-bound)))
        new = np.linspace(-bound * time**0.5, bound * time**0.5, _POINTS)
        weights = np.full(_POINTS, new[1] - new[0])
        weights[[0, -1]] /= 2
        kernel = np.exp(-(((new[:, None] - values) / deviation) ** 2) / 2) / (deviation * (2 * np.pi) ** 0.5)
        values, density, before = new, (kernel @ density) * weights, time
    return tuple(found)


def adjusted_p(p: float, rounds: tuple[int, ...], index: int) -> float:
    """Return the smallest alpha at which the test of round `index` is significant with p-value `p`."""
    low, high = 1e-15, 0.9
    if levels(rounds, high)[index] <= p:
        return 1.0
    if levels(rounds, low)[index] >= p:
        return low
    found = optimize.brentq(
        lambda log: np.log(levels(rounds, float(np.exp(log)))[index] / p), np.log(low), np.log(high), xtol=1e-6
    )
    return float(np.exp(found))


class SequentialTest:
    """Decisions on the variants of a study, round by round.

    All decisions follow from the differences that are passed to `add`, so repeating the calls repeats the decisions.

    Args:
        names: names of the variants, without the baseline.
        first: number of seeds of the first round.
        margin: a variant whose interval lies within ± margin is decided; None: no margin.
        higher_is_better: direction of the metric.
    """

    def __init__(self, names: Sequence[str], *, first: int, margin: float | None, higher_is_better: bool) -> None:
        self.undecided = list(names)
        self.done: list[Round] = []
        self._rounds, self._margin, self._higher = rounds_from(first), margin, higher_is_better
        self._untested = len(names)  # variants not called better or worse

    @property
    def seeds(self) -> int | None:
        """Number of seeds of the next round; None if all variants are decided or the maximum was reached."""
        if not self.undecided or len(self.done) == len(self._rounds):
            return None
        return self._rounds[len(self.done)]

    def exclude(self, name: str) -> None:
        """Exclude a variant whose run failed. It remains undecided, and still counts as a test."""
        if name in self.undecided:
            self.undecided.remove(name)

    def add(self, found: Mapping[str, Components | None]) -> Round:
        """Decide on the undecided variants, given their differences to the baseline with all seeds of the round.

        None: the metric of the variant or of the baseline is undefined.
        """
        count = self._rounds[len(self.done)]
        seeds, runs = (self.done[-1].seeds, self.done[-1].runs) if self.done else (0, 0)
        runs += (count - seeds) * (len(self.undecided) + 1)
        tested = {name: found[name] for name in self.undecided}
        p_values = {name: None if each is None else each.p_value() for name, each in tested.items()}
        order = sorted(self.undecided, key=lambda name: 1.0 if (p := p_values[name]) is None else p)
        decided: dict[str, RoundVariant] = {}
        for name in order:  # Holm: the tests after the first one that is not significant are not significant either
            decided[name] = self._test(tested[name], p_values[name], name)
            if decided[name].decision in ("better", "worse"):
                self._untested -= 1
        result = Round(
            seeds=count,
            runs=runs,
            spent=spent(ALPHA, count / self._rounds[-1]),
            variants=[decided[name] for name in self.undecided],
        )
        self.done.append(result)
        self.undecided = [each.variant for each in result.variants if each.decision == "undecided"]
        return result

    def _test(self, found: Components | None, p: float | None, name: str) -> RoundVariant:
        level = levels(self._rounds, ALPHA / self._untested)[len(self.done)]
        interval = None if found is None else found.interval(1 - level)
        decision: Decision = "undecided" if found is None or interval is None else self._decision(found, interval)
        return RoundVariant(
            variant=name, tests=self._untested, level=level, interval=interval, p_value=p, decision=decision
        )

    def _decision(self, found: Components, interval: Interval) -> Decision:
        if interval.low > 0 or interval.high < 0:
            return "better" if (interval.point > 0) == self._higher else "worse"
        if self._margin is not None and -self._margin <= interval.low and interval.high <= self._margin:
            return "within the margin"
        return "unlikely to be decided" if self._chance(found) < UNLIKELY else "undecided"

    def _chance(self, found: Components) -> float:
        """Return the probability of a decision in the last round if the true difference is the present estimate."""
        count, most = found.seed_count, self._rounds[-1]
        if found.seed_means == 0:
            return 0.0  # identical in all seeds
        if count == most:
            return 1.0  # there is no further round
        level = levels(self._rounds, ALPHA / self._untested)[-1]
        half = float(half_length(found.seed_means, found.examples, most, found.example_count, p=level))
        step = (found.seed_means * (1 / count - 1 / most)) ** 0.5  # deviation of the change until then

        def below(bound: float) -> float:
            return float(special.stdtr(count - 1, (bound - found.mean) / step))

        chance = 1 - below(half) + below(-half)
        if self._margin is not None and self._margin > half:
            chance += below(self._margin - half) - below(half - self._margin)
        return chance
