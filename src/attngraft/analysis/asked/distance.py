"""How far tokens look, layer by layer (CB, Fig. 5b)."""

from __future__ import annotations

from dataclasses import dataclass

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import Layers, table_of
from attngraft.analysis.asked.offers import without_maps
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.results.analysis import Curves, Finding
from attngraft.targets.handle import ModelHandle


@dataclass(frozen=True, kw_only=True)
class _Distances:
    heads: dict[str, list[float]]  #: by site
    refused: dict[str, str]  #: sites that have none, with the reason

    @property
    def means(self) -> dict[str, float]:
        return {site: sum(heads) / len(heads) for site, heads in self.heads.items()}


def _layers(ask: Ask, subject: ModelHandle) -> _Distances:
    with record(subject.model, "weights", sites=ask.sites) as recording:
        recording.reduce("distance")
        for images in ask.batches(subject):
            subject.model(images)
    found = _Distances(heads={}, refused={})
    for site in recording:
        try:
            found.heads[site] = [float(head) for head in recording[site]["distance"].mean(1)]
        except RecordError as error:
            found.refused[site] = str(error)
    if not found.heads:
        raise RecordError("; ".join(found.refused.values()))
    found.refused.update(without_maps(recording, subject))
    return found


def find(ask: Ask) -> Finding:
    found, left_out = by_subject(ask, lambda subject: _layers(ask, subject))
    names = [subject.name for subject in ask.subjects]
    axis = Layers.of(list(each.heads) for each in found.values())
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="Mean over images, heads and spatial tokens of the distance at which a token looks, sum a |p - p'| with "
        "places in parts of the map's height and width, so that 2 is from corner to corner; leading tokens left "
        "out, rows summing to 1 again. The expected distance of a query: the paper's own scale is not said.",
        subjects=names,
        panels=[
            Curves(
                title="how far tokens look (parts of the sides)",
                x_axis="layer",
                ticks=axis.ticks,
                lines=[axis.line(names[place], place, each.means) for place, each in found.items()],
            )
        ],
        table=table_of(
            ["model", "layer", "head", "distance"],
            3,
            [
                (names[place], site, head, value)
                for place, each in found.items()
                for site, heads in each.heads.items()
                for head, value in [
                    ("mean", each.means[site]),
                    *((str(number), own) for number, own in enumerate(heads)),
                ]
            ],
        ),
        numbers={
            f"{names[place]}: mean over layers": sum(each.means.values()) / len(each.means)
            for place, each in found.items()
        },
        left_out=left_out
        | {f"{names[place]}, {site}": why for place, each in found.items() for site, why in each.refused.items()},
    )


ANALYSIS = Analysis(
    name="distance",
    title="How far tokens look",
    what="mean attention distance by layer and head, in parts of the map's sides",
    source="CB, Fig. 5b",
    find=find,
)
