"""Which images two models judge differently, and by how much each class gained."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attngraft.analysis.ask import Analysis, Ask
from attngraft.analysis.asked.answers import Answers, answers_of_all
from attngraft.analysis.asked.layers import table_of
from attngraft.analysis.asked.showing import png
from attngraft.analysis.sides import changed_sides
from attngraft.results.analysis import Finding, Grid, Panel, Picture, PictureRow, Pictures
from attngraft.results.sections import Cell

_MOST = 8  #: images of a side that are shown


def find(ask: Ask) -> Finding:
    names = [subject.name for subject in ask.subjects]
    answered = answers_of_all(ask)
    first, second = answered.models
    sides = changed_sides(
        first.predicted == first.target, second.predicted == second.target, labels=first.target, names=first.classes
    )
    changes = [("gained", place) for place in sides.gained] + [("lost", place) for place in sides.lost]
    rows: list[list[Cell]] = [
        [
            side,
            first.names[place],
            *(first.classes[each[place]] for each in (first.target, first.predicted, second.predicted)),
        ]
        for side, place in changes
    ]
    rows += [["class", each.name, None, each.first, each.second] for each in sides.classes]
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note=f"Of {answered.images}. Gained: {names[0]} is wrong and {names[1]} right; lost: the "
        f"other way. Below each image what {names[0]} and {names[1]} say. At most {_MOST} of each are shown, "
        "evenly over all; the table has them all, then the share of each class that both get right. One model "
        "of each: some images change with the seed alone.",
        subjects=names,
        panels=[
            *_pictures(ask, first, second, {"gained": sides.gained, "lost": sides.lost}),
            _classes(names, sides.classes),
        ],
        table=table_of(["side", "image", "true class", names[0], names[1]], 5, rows),
        numbers={
            "gained": float(len(sides.gained)),
            "lost": float(len(sides.lost)),
            "of images": float(len(first.names)),
        },
    )


def _pictures(ask: Ask, first: Answers, second: Answers, sides: dict[str, np.ndarray]) -> list[Panel]:
    """Found by their names; none where some of what runs saved is of images that are not there."""
    album = ask.album
    there = {} if album is None else {name: place for place, name in enumerate(album.names)}
    if any(name not in there for name in first.names):
        return []
    rows = []
    for side, places in sides.items():
        chosen = (
            places[np.linspace(0, len(places) - 1, min(_MOST, len(places))).round().astype(int)]
            if len(places)
            else places
        )
        rows.append(
            PictureRow(name=side, pictures=[_picture(ask, first, second, int(place), there) for place in chosen])
        )
    return (
        [Pictures(title="images that changed sides", rows=[row for row in rows if row.pictures])]
        if any(row.pictures for row in rows)
        else []
    )


def _picture(ask: Ask, first: Answers, second: Answers, place: int, there: dict[str, int]) -> Picture:
    said = (first.classes[each.predicted[place]] for each in (first, second))
    if ask.saved:
        ask.progress(1)  # the models have not seen it
    image = ask.images.open(there[first.names[place]])
    return Picture(caption=" / ".join(said), image=png(ask.subjects[0].view(image)))


def _classes(names: Sequence[str], classes: Sequence[tuple[str, int, float, float]]) -> Grid:
    return Grid(
        title="share of each class that is right",
        rows=[name for name, *_ in classes],
        columns=list(names),
        row_axis="true class",
        column_axis="model",
        cells=[[first, second] for _, _, first, second in classes],
        low=0.0,
        high=1.0,
    )


ANALYSIS = Analysis(
    name="sides",
    title="Which images changed sides",
    what="images that only one of two models gets right, and the classes' shares",
    source="",
    find=find,
    models=(2, 2),
    answers="shown",
)
