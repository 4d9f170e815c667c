"""The promotion rule of asynchronous successive halving (Li et al., 2020).

Whenever a variant reaches a rung, the best 1 / eta of the variants at this rung so far are promoted to the next rung (from
the last rung, to the end of training). Promotions do not wait for all variants to arrive; once no more can arrive, at least
one variant is promoted. A promotion is final, even if better variants arrive later. All decisions thus follow from the
scores and their order of arrival, and `Rungs.replay` repeats the decisions of a stored result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attngraft.errors import UsageError
from attngraft.results.study import HalvingResult, Lost, Standing
from attngraft.study.config import Halving
from attngraft.training.recipe import ScheduleConfig


def rung_epochs(halving: Halving, *schedules: ScheduleConfig) -> list[int]:
    """Return the epochs of the rungs for variants with these schedules, which have the same length.

    With `first`, the rungs are first, first * eta, ...; without it, they are ..., epochs // eta^2, epochs // eta, except
    for rungs within the longest warm-up, where losses are not yet meaningful.

    Raises:
        UsageError: there are too few epochs for a rung.
    """
    epochs, eta = schedules[0].epochs, halving.eta
    if halving.first is not None:
        powers = range(epochs.bit_length())
        found = [rung for power in powers if (rung := halving.first * eta**power) < epochs]
    else:
        earliest = max(1, *(math.ceil(schedule.warmup) for schedule in schedules))
        steps = (epochs // eta**power for power in range(1, epochs + 1))
        found = sorted({rung for rung in steps if rung >= earliest})
    if not found:
        raise UsageError(
            f"halving by {halving}: {epochs} epochs are too few for a rung; use more epochs or a smaller factor, or set "
            "the first rung's epoch (--halving 2,1)"
        )
    return found


def expected_share(halving: Halving, *schedules: ScheduleConfig, variants: int) -> float:
    """Return the expected fraction of all variants' epochs that is trained, assuming no early promotions.

    Raises:
        UsageError: see `rung_epochs`.
    """
    trained, left, before, epochs = 0, variants, 0, schedules[0].epochs
    for rung in [*rung_epochs(halving, *schedules), epochs]:
        trained += left * (rung - before)
        left, before = max(left // halving.eta, 1), rung
    return trained / (variants * epochs) if variants else 1.0


class Rungs:
    """Scores of the variants at each rung, and the resulting promotions.

    Args:
        names: names of the variants, in the study's order.
        epochs: epoch of each rung.
        total: epochs of a complete run.
        eta: the best 1 / `eta` of the variants at a rung are promoted.
        metric: primary metric, stored in the result.
        higher_is_better: direction of the metric.
    """

    def __init__(
        self, names: Sequence[str], epochs: Sequence[int], *, total: int, eta: int, metric: str, higher_is_better: bool
    ) -> None:
        self.epochs, self.total, self.eta, self.metric = list(epochs), total, eta, metric
        self._names = list(names)
        self._higher_is_better = higher_is_better
        self._scores: dict[int, dict[str, float | None]] = {rung: {} for rung in self.epochs}
        self._order: list[tuple[str, int]] = []  # (variant, rung) in order of arrival
        self._promoted: set[tuple[str, int]] = set()
        self._passed = dict.fromkeys(self._names, 0)  # variant -> number of rungs passed
        self._lost: set[str] = set()
        self._losses: list[Lost] = []

    @classmethod
    def replay(cls, result: HalvingResult, names: Sequence[str]) -> Rungs:
        """Create the rungs from a stored result by repeating its decisions."""
        rungs = cls(
            names,
            result.rungs,
            total=result.epochs,
            eta=result.eta,
            metric=result.metric,
            higher_is_better=result.higher_is_better,
        )
        losses = list(result.lost)
        for number in range(len(result.standings) + 1):
            while losses and losses[0].arrivals == number:
                rungs.lose(losses.pop(0).variant)
            if number < len(result.standings):
                each = result.standings[number]
                rungs.add(each.variant, each.epoch, each.score)
        return rungs

    def keep_promotions(self, standings: Sequence[Standing]) -> None:
        """Restore earlier promotions, which may have been decided among a different set of variants."""
        for each in standings:
            if each.promoted:
                self._promote(each.variant, each.epoch)

    def has(self, name: str, rung: int) -> bool:
        return name in self._scores[rung]

    def add(self, name: str, rung: int, score: float | None) -> None:
        """Record that a variant reached a rung with this mean score (None: NaN)."""
        if name in self._passed and name not in self._scores[rung]:
            self._scores[rung][name] = score
            self._order.append((name, rung))
            self._lost.discard(name)
            self._decide()

    def lose(self, name: str) -> None:
        """Record that a run of this variant failed, so that the variant is no longer expected at any rung."""
        if name in self._passed and name not in self._lost:
            self._lost.add(name)
            self._losses.append(Lost(variant=name, arrivals=len(self._order)))
            self._decide()

    def limit(self, name: str) -> int:
        """Return the epoch up to which a variant may currently be trained."""
        passed = self._passed[name]
        return self.epochs[passed] if passed < len(self.epochs) else self.total

    def result(self) -> HalvingResult:
        """Return the scores, promotions and failures in order, for halving.json."""
        standings = [
            Standing(variant=name, epoch=rung, score=self._scores[rung][name], promoted=(name, rung) in self._promoted)
            for name, rung in self._order
        ]
        return HalvingResult(
            eta=self.eta,
            rungs=self.epochs,
            epochs=self.total,
            metric=self.metric,
            higher_is_better=self._higher_is_better,
            standings=standings,
            lost=list(self._losses),
        )

    def _decide(self) -> None:
        """Promote all variants that qualify, from the first rung to the last."""
        complete = True  # whether no more variants can reach this rung
        for rung in self.epochs:
            scores = self._scores[rung]
            coming = [n for n in self._names if n not in self._lost and n not in scores and self.limit(n) >= rung]
            complete = complete and not coming
            order = sorted(
                (n for n in scores if n not in self._lost), key=lambda n: self._rank(scores[n]), reverse=True
            )
            for name in order[: max(len(order) // self.eta, 1 if complete else 0)]:
                self._promote(name, rung)

    def _promote(self, name: str, rung: int) -> None:
        if name in self._passed and name in self._scores.get(rung, {}):
            self._promoted.add((name, rung))
            self._passed[name] = max(self._passed[name], self.epochs.index(rung) + 1)

    def _rank(self, score: float | None) -> float:
        return -math.inf if score is None else score if self._higher_is_better else -score
