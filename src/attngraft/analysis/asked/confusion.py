"""Which class is taken for which, and how that differs from the first model (HV, Fig. 4)."""

from __future__ import annotations

import numpy as np

from attngraft.analysis.ask import Analysis, Ask
from attngraft.analysis.asked.answers import Answers, answers_of_all
from attngraft.analysis.asked.layers import table_of
from attngraft.results.analysis import Finding, Grid, Panel


def find(ask: Ask) -> Finding:
    names = [subject.name for subject in ask.subjects]
    answered = answers_of_all(ask)
    classes = answered.first.classes
    shares = [_shares(each, len(classes)) for each in answered.models]
    panels: list[Panel] = [_grid(names[0], shares[0], classes, diverging=False)]
    panels += [
        _grid(f"{name} minus {names[0]}", own - shares[0], classes, diverging=True)
        for name, own in zip(names[1:], shares[1:], strict=True)
    ]
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note=f"Share of each true class that is given each class, of {answered.images}. Further models as their difference "
        f"to {names[0]}: red more often, blue less often. One model of each: of many cells some differ by chance.",
        subjects=names,
        panels=panels,
        table=table_of(
            ["model", "true class", "predicted class", "share"],
            3,
            [
                (name, classes[row], classes[column], float(own[row, column]))
                for name, own in zip(names, shares, strict=True)
                for row in range(len(classes))
                for column in range(len(classes))
                if row == column or own[row, column] > 0
            ],
        ),
        numbers={
            f"{name}: right": float((each.predicted == each.target).mean())
            for name, each in zip(names, answered.models, strict=True)
        },
    )


def _shares(answers: Answers, size: int) -> np.ndarray:
    counts = np.bincount(answers.target * size + answers.predicted, minlength=size * size).reshape(size, size)
    shares: np.ndarray = counts / counts.sum(axis=1, keepdims=True).clip(1)
    return shares


def _grid(title: str, cells: np.ndarray, classes: tuple[str, ...], *, diverging: bool) -> Grid:
    return Grid(
        title=title,
        rows=list(classes),
        columns=list(classes),
        row_axis="true class",
        column_axis="predicted class",
        cells=cells.round(6).tolist(),
        low=None if diverging else 0.0,
        high=None if diverging else 1.0,
        diverging=diverging,
    )


ANALYSIS = Analysis(
    name="confusion",
    title="Which class is taken for which",
    what="confusion matrices, and their difference from the first model's",
    source="HV, Fig. 4",
    find=find,
    answers="counted",
)
