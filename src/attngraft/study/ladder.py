"""The rule of asynchronous successive halving (Li et al., 2020): who goes on from one rung of epochs to the next.

Whenever a variant arrives at a rung, the best 1 / eta of those that have come there are promoted to the next rung, and those
of the last rung to the end. Nobody waits for the others; once nobody else will come, at least one is promoted. A promotion
stands, also where better ones come later. So everything follows from the order of arrivals and the scores, and
`Ladder.of` makes the decisions of a kept result again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attngraft.errors import UsageError
from attngraft.results.study import HalvingResult, Lost, Standing
from attngraft.study.values import Halving

if TYPE_CHECKING:
    from attngraft.training.recipe import ScheduleConfig


def rungs(halving: Halving, schedule: ScheduleConfig) -> list[int]:
    """The epochs after which variants are compared: first, first * eta, ... or else ..., epochs // eta^2, epochs // eta,
    none of them within the warm-up, whose losses say little.

    Raises:
        UsageError: there is no room for one.
    """
    epochs, eta = schedule.epochs, halving.eta
    if halving.first is not None:
        found = []
        rung = halving.first
        while rung < epochs:
            found.append(rung)
            rung *= eta
    else:
        earliest = max(math.ceil(schedule.warmup), 1)
        steps = (epochs // eta**power for power in range(1, epochs + 1))
        found = sorted({rung for rung in steps if rung >= earliest})
    if not found:
        raise UsageError(
            f"halving by {halving}: {epochs} epochs have no room for a rung; take more epochs, a smaller factor, or name "
            "the first rung's epoch (--halving 2,1)"
        )
    return found


def expected_share(halving: Halving, schedule: ScheduleConfig, *, variants: int) -> float:
    """The part of all epochs of `variants` variants that is trained, where nobody is promoted early.

    Raises:
        UsageError: as `rungs`.
    """
    trained, left, before = 0, variants, 0
    for rung in [*rungs(halving, schedule), schedule.epochs]:
        trained += left * (rung - before)
        left, before = max(left // halving.eta, 1), rung
    return trained / (variants * schedule.epochs) if variants else 1.0


class Ladder:
    """The variants that compete, and how far each may go.

    Args:
        names: the variants, without the baseline.
        rungs: epochs after which they are compared.
        epochs: of a run that goes to its end.
        eta: one in `eta` goes on.
        metric: what they are compared by.
        higher_is_better: of the metric.
    """

    def __init__(
        self, names: Sequence[str], rungs: Sequence[int], *, epochs: int, eta: int, metric: str, higher_is_better: bool
    ) -> None:
        self._names, self.rungs, self.epochs, self._eta = list(names), list(rungs), epochs, eta
        self._metric, self._sign = metric, 1.0 if higher_is_better else -1.0
        self._here: dict[int, dict[str, float | None]] = {rung: {} for rung in self.rungs}
        self._order: list[tuple[str, int]] = []  # of arrival
        self._promoted: set[tuple[str, int]] = set()
        self._reached = dict.fromkeys(self._names, 0)  # how many rungs each has been promoted from
        self._lost: set[str] = set()
        self._losses: list[Lost] = []

    @classmethod
    def of(cls, result: HalvingResult, names: Sequence[str]) -> Ladder:
        """A ladder on which everything happened as `result` keeps it, decided again."""
        ladder = cls(
            names,
            result.rungs,
            epochs=result.epochs,
            eta=result.eta,
            metric=result.metric,
            higher_is_better=result.higher_is_better,
        )
        losses = list(result.lost)
        for number in range(len(result.standings) + 1):
            while losses and losses[0].arrivals == number:
                ladder.lose(losses.pop(0).variant)
            if number < len(result.standings):
                each = result.standings[number]
                ladder.arrive(each.variant, each.epoch, each.score)
        return ladder

    def keep(self, promotions: Sequence[Standing]) -> None:
        """Let promotions stand that were made before, when other variants may have competed."""
        for each in promotions:
            if each.promoted:
                self._promote_one(each.variant, each.epoch)

    def has_arrived(self, name: str, rung: int) -> bool:
        return name in self._here[rung]

    def arrive(self, name: str, rung: int, score: float | None) -> None:
        """A variant has come to a rung, with its mean score; None where that is not a number."""
        if name in self._reached and name not in self._here[rung]:
            self._here[rung][name] = score
            self._order.append((name, rung))
            self._lost.discard(name)
            self._promote()

    def lose(self, name: str) -> None:
        """A run of this variant failed, so that nobody waits for it."""
        if name in self._reached and name not in self._lost:
            self._lost.add(name)
            self._losses.append(Lost(variant=name, arrivals=len(self._order)))
            self._promote()

    def until(self, name: str) -> int:
        """The epoch that a variant may go to."""
        reached = self._reached[name]
        return self.rungs[reached] if reached < len(self.rungs) else self.epochs

    def result(self) -> HalvingResult:
        """All that happened, in its order."""
        standings = [
            Standing(variant=name, epoch=rung, score=self._here[rung][name], promoted=(name, rung) in self._promoted)
            for name, rung in self._order
        ]
        return HalvingResult(
            eta=self._eta,
            rungs=self.rungs,
            epochs=self.epochs,
            metric=self._metric,
            higher_is_better=self._sign > 0,
            standings=standings,
            lost=list(self._losses),
        )

    def _promote(self) -> None:
        """Promote who may go on, from the first rung up."""
        settled = True  # whether nobody more will come to this rung
        for rung in self.rungs:
            here = self._here[rung]
            coming = [n for n in self._names if n not in self._lost and n not in here and self.until(n) >= rung]
            settled = settled and not coming
            order = sorted((n for n in here if n not in self._lost), key=lambda n: self._rank(here[n]), reverse=True)
            for name in order[: max(len(order) // self._eta, 1 if settled else 0)]:
                self._promote_one(name, rung)

    def _promote_one(self, name: str, rung: int) -> None:
        if name in self._reached and name in self._here.get(rung, {}):
            self._promoted.add((name, rung))
            self._reached[name] = max(self._reached[name], self.rungs.index(rung) + 1)

    def _rank(self, score: float | None) -> float:
        return -math.inf if score is None else self._sign * score
