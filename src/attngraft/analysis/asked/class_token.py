"""Where the class token looks, depth down and tokens across, image by image (CB, Fig. 10)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import table_of
from attngraft.analysis.asked.offers import without_maps
from attngraft.analysis.asked.showing import numbers_of, png
from attngraft.analysis.class_token import class_looks
from attngraft.recording.record import record
from attngraft.results.analysis import Finding, Picture, Pictures, Row
from attngraft.targets.handle import ModelHandle

_LEAST = math.log(1e-8)  #: what smaller weights are drawn as


@dataclass(frozen=True, kw_only=True)
class _Model:
    images: list[tuple[str, str, dict[str, list[float]]]]  #: name, image, and by site the logarithms of its tokens
    no_map: dict[str, str]  #: layers that have no map, and why


def _model(ask: Ask, subject: ModelHandle) -> _Model:
    found = _Model(images=[], no_map={})
    for name, view, inputs in ask.pictures(subject):
        with record(subject.model, "weights", sites=ask.sites) as recording:
            subject.model(inputs)
        logs = class_looks(recording)[0].float().log().clamp_min(_LEAST)
        found.images.append((name, png(view), dict(zip(recording, numbers_of(logs), strict=True))))
        found.no_map.update(without_maps(recording, subject))
    return found


def find(ask: Ask) -> Finding:
    found, left_out = by_subject(ask, lambda subject: _model(ask, subject))
    names = [subject.name for subject in ask.subjects]
    first = next(iter(found.values()))
    rows = [Row(name="", pictures=[Picture(caption=name, image=image) for name, image, _ in first.images])]
    rows += [
        Row(name=names[place], pictures=[Picture(values=list(logs.values())) for _, _, logs in model.images])
        for place, model in found.items()
    ]
    every = [value for model in found.values() for _, _, logs in model.images for row in logs.values() for value in row]
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="For each image a picture with the layers from top to bottom and the tokens from left to right (the class"
        " token first): the natural logarithm of the class token's attention, mean over heads, on one scale of "
        "colors for all.",
        subjects=names,
        panels=[Pictures(title="log attention of the class token", rows=rows, low=min(every), high=max(every))],
        table=table_of(
            ["model", "image", "layer", "token", "log attention"],
            3,
            [
                (names[place], name, site, token, value)
                for place, model in found.items()
                for name, _, logs in model.images
                for site, row in logs.items()
                for token, value in enumerate(row)
            ],
        ),
        left_out=left_out
        | {f"{names[place]}, {site}": why for place, model in found.items() for site, why in model.no_map.items()},
    )


ANALYSIS = Analysis(
    name="class-token",
    title="Where the class token looks",
    what="log attention of the class token, depth by tokens, for single images",
    source="CB, Fig. 10",
    find=find,
    images="shown",
)
