"""How far tokens look, layer by layer (CB, Fig. 5b)."""

from __future__ import annotations

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import layer_line, longest, table_of
from attngraft.analysis.record import record
from attngraft.analysis.subjects import Subject
from attngraft.finding import Curves, Finding


def _layers(ask: Ask, subject: Subject) -> dict[str, tuple[float, list[float]]]:
    """By site: the mean, and the mean of each head."""
    with record(subject.model, "weights", sites=ask.sites) as recording:
        recording.reduce("distance")
        for images in ask.batches(subject):
            subject.model(images)
    by_head = {site: recording[site]["distance"].mean(1) for site in recording}
    return {site: (float(heads.mean()), [float(head) for head in heads]) for site, heads in by_head.items()}


def find(ask: Ask) -> Finding:
    found, left_out = by_subject(ask, lambda subject: _layers(ask, subject))
    names = [subject.name for subject in ask.subjects]
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
                ticks=longest({place: list(layers) for place, layers in found.items()}),
                lines=[
                    layer_line(names[place], place, [mean for mean, _ in layers.values()])
                    for place, layers in found.items()
                ],
            )
        ],
        table=table_of(
            ["model", "layer", "head", "distance"],
            3,
            [
                (names[place], site, head, value)
                for place, layers in found.items()
                for site, (mean, heads) in layers.items()
                for head, value in [("mean", mean), *((str(number), each) for number, each in enumerate(heads))]
            ],
        ),
        numbers={
            f"{names[place]}: mean over layers": sum(mean for mean, _ in layers.values()) / len(layers)
            for place, layers in found.items()
        },
        left_out=left_out,
    )


ANALYSIS = Analysis(
    name="distance",
    title="How far tokens look",
    what="mean attention distance by layer and head, in parts of the map's sides",
    source="CB, Fig. 5b",
    find=find,
)
