"""What successive halving decided, as a table: a line per variant, a column per rung."""

from __future__ import annotations

from dataclasses import dataclass

from attngraft.results.halving import place_of
from attngraft.results.study import HalvingResult, StudyResult
from attngraft.results.wording import metric_format


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A variant at a rung; empty where it did not come to it."""

    value: str = ""
    place: str = ""  #: "2 of 9", among all that came there, also later
    promoted: bool = False


@dataclass(frozen=True, kw_only=True)
class Line:
    """A variant that competed."""

    number: int  #: its place in the study
    rungs: list[Rung]
    fate: str


@dataclass(frozen=True, kw_only=True)
class HalvingView:
    """The table, those who came farthest first."""

    epochs: list[int]  #: of the rungs
    lines: list[Line]


def fate(result: StudyResult, name: str) -> str:
    """What became of a variant: `stopped after epoch 3`; empty where it was not stopped early."""
    stopped = {} if result.halving is None else result.halving.stopped
    return f"stopped after epoch {stopped[name]}" if name in stopped else ""


def halving_view(result: StudyResult) -> HalvingView | None:
    """None where every run was to go to its end."""
    halving = result.halving
    if halving is None:
        return None
    order = sorted(
        (number for number, variant in enumerate(result.variants) if not variant.is_baseline),
        key=lambda number: _height(halving, result.variants[number].name, finished=bool(result.variants[number].runs)),
    )
    return HalvingView(epochs=halving.rungs, lines=[_line(halving, result, number) for number in order])


def _line(halving: HalvingResult, result: StudyResult, number: int) -> Line:
    variant, style = result.variants[number], metric_format(result)
    here = {each.epoch: each for each in halving.standings if each.variant == variant.name}
    rungs = []
    for epoch in halving.rungs:
        if epoch not in here:
            rungs.append(Rung())
            continue
        place, count = place_of(halving, variant.name, epoch)
        promoted = here[epoch].promoted
        rungs.append(Rung(value=style.value(here[epoch].score), place=f"{place} of {count}", promoted=promoted))
    ended = "went to the end" if variant.runs else "no finished run"
    return Line(number=number, rungs=rungs, fate=fate(result, variant.name) or ended)


def _height(halving: HalvingResult, name: str, *, finished: bool) -> tuple[bool, int, int]:
    """Smaller for who came farther, and there for the better."""
    rungs = [each.epoch for each in halving.standings if each.variant == name]
    last = max(rungs, default=0)
    return not finished, -last, place_of(halving, name, last)[0] if rungs else 0
