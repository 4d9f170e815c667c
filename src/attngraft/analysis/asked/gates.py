"""How head weights and gates are distributed over images, layer by layer (HV's, and other gates)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import table_of, ticks
from attngraft.analysis.distribution import Distribution
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.results.analysis import Box, Boxes, Finding
from attngraft.results.sections import Cell
from attngraft.targets.handle import ModelHandle

_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BINS = 2000


@dataclass(kw_only=True)
class _Spread:
    """Of the numbers of one gate at one site that are numbers."""

    numbers: Distribution | None = None  #: None: none was
    others: int = 0  #: how many are NaN or infinite, as what is measured over one head alone may be

    def add(self, numbers: Tensor) -> None:
        finite = numbers[numbers.isfinite()]
        self.others += numbers.numel() - len(finite)
        if len(finite) == 0:
            return
        if self.numbers is None:
            least, most = float(finite.min()), float(finite.max())
            room = max(most - least, 1e-3)
            self.numbers = Distribution(least - room, most + room, bins=_BINS)
        self.numbers.add(finite)

    def cells(self) -> list[Cell]:
        each = self.numbers
        if each is None:
            return [None] * (len(_SHARES) + 3)
        return [each.mean, each.least, *map(each.quantile, _SHARES), each.largest]


def _spreads(ask: Ask, subject: ModelHandle) -> dict[str, dict[str, _Spread]]:
    """By gate's name (`horizontal.alpha`) and site."""
    found: dict[str, dict[str, _Spread]] = {}
    for images in ask.batches(subject):
        with record(subject.model, "gates", sites=ask.sites) as recording:
            subject.model(images)
        for site in recording:
            for name in recording[site]:
                found.setdefault(name, {}).setdefault(site, _Spread()).add(recording.without_padding(site, name))
    if all(each.numbers is None for by_site in found.values() for each in by_site.values()):
        raise RecordError("all of its gates are NaN or infinite: the model did not train well, or overflows")
    return found


def find(ask: Ask) -> Finding:
    found, left_out = by_subject(ask, lambda subject: _spreads(ask, subject))
    names = [subject.name for subject in ask.subjects]
    gates = dict.fromkeys(gate for spreads in found.values() for gate in spreads)
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="Over images, tokens, heads and channels: the box holds the middle half, the line 5 to 95 percent, the "
        "bar is the median and the dot the mean. horizontal.alpha weighs heads and vertical.beta channels; at the"
        " start they are what the form says (identity: 1). Tokens that only fill windows up are left out.",
        subjects=names,
        panels=[
            _boxes(gate, {place: spreads[gate] for place, spreads in found.items() if gate in spreads})
            for gate in gates
        ],
        table=table_of(
            ["model", "gate", "layer", "mean", "least", "5%", "25%", "50%", "75%", "95%", "largest"],
            3,
            [
                (names[place], gate, site, *each.cells())
                for place, spreads in found.items()
                for gate, by_site in spreads.items()
                for site, each in by_site.items()
            ],
        ),
        left_out=left_out
        | {
            f"{names[place]}, {site}: {gate}": f"{each.others} of its numbers are NaN or infinite and are left out"
            for place, spreads in found.items()
            for gate, by_site in spreads.items()
            for site, each in by_site.items()
            if each.others
        },
    )


def _boxes(gate: str, by_subject: Mapping[int, Mapping[str, _Spread]]) -> Boxes:
    sites = list(dict.fromkeys(site for by_site in by_subject.values() for site in by_site))
    return Boxes(
        title=gate,
        x_axis="layer",
        ticks=ticks(sites),
        boxes=[
            Box(at=sites.index(site), subject=place, quantiles=_five(each.numbers), mean=each.numbers.mean)
            for place, by_site in by_subject.items()
            for site, each in by_site.items()
            if each.numbers is not None
        ],
    )


def _five(spread: Distribution) -> tuple[float, float, float, float, float]:
    low, quarter, middle, rest, high = map(spread.quantile, _SHARES)
    return low, quarter, middle, rest, high


ANALYSIS = Analysis(
    name="gates",
    title="How heads and channels are weighed",
    what="distribution of head weights and channel gates by layer",
    source="HV",
    find=find,
)
