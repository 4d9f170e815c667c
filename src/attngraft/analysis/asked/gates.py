"""How head weights and gates are distributed over images, layer by layer (HV's, and other gates)."""

from __future__ import annotations

from collections.abc import Mapping

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import table_of, ticks
from attngraft.analysis.distribution import Distribution
from attngraft.analysis.record import record
from attngraft.analysis.subjects import Subject
from attngraft.finding import Box, Boxes, Finding

_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BINS = 2000


def _spreads(ask: Ask, subject: Subject) -> dict[str, dict[str, Distribution]]:
    """By gate's name (`horizontal.alpha`) and site."""
    found: dict[str, dict[str, Distribution]] = {}
    for images in ask.batches(subject):
        with record(subject.model, "gates", sites=ask.sites) as recording:
            subject.model(images)
        for site in recording:
            for name, numbers in recording[site].items():
                spread = found.setdefault(name, {})
                if site not in spread:
                    least, most = float(numbers.min()), float(numbers.max())
                    room = max(most - least, 1e-3)
                    spread[site] = Distribution(least - room, most + room, bins=_BINS)
                spread[site].add(numbers)
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
        " start they are what the form says (identity: 1).",
        subjects=names,
        panels=[
            _boxes(gate, {place: spreads[gate] for place, spreads in found.items() if gate in spreads})
            for gate in gates
        ],
        table=table_of(
            ["model", "gate", "layer", "mean", "least", "5%", "25%", "50%", "75%", "95%", "largest"],
            3,
            [
                (names[place], gate, site, each.mean, each.least, *map(each.quantile, _SHARES), each.largest)
                for place, spreads in found.items()
                for gate, by_site in spreads.items()
                for site, each in by_site.items()
            ],
        ),
        left_out=left_out,
    )


def _boxes(gate: str, by_subject: Mapping[int, Mapping[str, Distribution]]) -> Boxes:
    sites = list(dict.fromkeys(site for by_site in by_subject.values() for site in by_site))
    return Boxes(
        title=gate,
        x_axis="layer",
        ticks=ticks(sites),
        boxes=[
            Box(at=sites.index(site), subject=place, quantiles=_five(each), mean=each.mean)
            for place, by_site in by_subject.items()
            for site, each in by_site.items()
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
