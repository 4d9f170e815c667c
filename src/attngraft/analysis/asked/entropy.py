"""Entropy of attention, layer by layer, with the most that there can be (CB, Figs. 3a and 5a)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import layer_line, longest, table_of
from attngraft.analysis.record import record
from attngraft.analysis.subjects import Subject
from attngraft.finding import Curves, Finding, Line, Panel


@dataclass(frozen=True, kw_only=True)
class _Layer:
    site: str
    every: float  #: nats, mean over images, heads and rows
    patches: float  #: among spatial tokens alone
    of_class: float | None  #: of the class token's rows
    keys: int
    prefix: int


def _layers(ask: Ask, subject: Subject) -> list[_Layer]:
    with record(subject.model, "weights", sites=ask.sites) as recording:
        recording.reduce("entropy", "patch_entropy", "ceiling")
        for images in ask.batches(subject):
            subject.model(images)
    found = []
    for site in recording:
        rows, prefix = recording[site]["entropy"], recording.prefix(site)
        found.append(
            _Layer(
                site=site,
                every=float(rows.mean()),
                patches=float(recording[site]["patch_entropy"].mean()),
                of_class=float(rows[:, prefix.index("class")].mean()) if "class" in prefix else None,
                keys=round(math.exp(float(recording[site]["ceiling"].mean()))),
                prefix=len(prefix),
            )
        )
    return found


def find(ask: Ask) -> Finding:
    found, left_out = by_subject(ask, lambda subject: _layers(ask, subject))
    ticks = longest({place: [layer.site for layer in layers] for place, layers in found.items()})
    names = [subject.name for subject in ask.subjects]
    panels: list[Panel] = [
        Curves(
            title="entropy among patches (nats)",
            x_axis="layer",
            ticks=ticks,
            lines=[
                *(
                    layer_line(names[p], p, [each.patches for each in layers[:-1] or layers])
                    for p, layers in found.items()
                ),
                *_bounds(list(found.values()), prefix=True),
            ],
        )
    ]
    with_class = {p: layers for p, layers in found.items() if all(each.of_class is not None for each in layers)}
    if with_class:
        panels.append(
            Curves(
                title="entropy of the class token's rows (nats)",
                x_axis="layer",
                ticks=ticks,
                lines=[
                    *(layer_line(names[p], p, [each.of_class for each in layers]) for p, layers in with_class.items()),
                    *_bounds(list(with_class.values()), prefix=False),
                ],
            )
        )
    rows = [
        (
            names[p],
            each.site,
            each.every,
            each.patches,
            each.of_class,
            math.log(each.keys),
            math.log(each.keys - each.prefix),
        )
        for p, layers in found.items()
        for each in layers
    ]
    columns = ["model", "layer", "entropy", "among patches", "class token", "ceiling", "ceiling among patches"]
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="Mean over images, heads and rows of -sum a ln a, in nats; the dotted line is the most that there can be,"
        " ln N (within windows: of their tokens). Among patches: leading tokens left out, rows summing to 1 "
        "again; as in the paper the last layer is not drawn there (the table has it).",
        subjects=names,
        panels=panels,
        table=table_of(columns, 2, rows),
        numbers={
            f"{names[p]}: mean over layers, part of the ceiling": sum(
                each.every / math.log(each.keys) for each in layers
            )
            / len(layers)
            for p, layers in found.items()
        },
        left_out=left_out,
    )


def _bounds(models: Sequence[Sequence[_Layer]], *, prefix: bool) -> list[Line]:
    """One dotted line for each way in which the ceiling runs."""
    ways = {tuple(math.log(each.keys - prefix * each.prefix) for each in layers) for layers in models}
    return [layer_line("most there can be", None, way) for way in sorted(ways)]


ANALYSIS = Analysis(
    name="entropy",
    title="How spread attention is",
    what="entropy of the attention maps by layer, with its ceiling",
    source="CB, Figs. 3a and 5a",
    find=find,
)
