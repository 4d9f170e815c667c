"""Which class is taken for which, and how that differs from the first model (HV, Fig. 4)."""

from __future__ import annotations

import numpy as np

from attngraft.analysis.ask import Analysis, Ask
from attngraft.analysis.asked.answers import Answers, answers_of
from attngraft.analysis.asked.layers import table_of
from attngraft.errors import UsageError
from attngraft.finding import Finding, Grid, Panel


def find(ask: Ask) -> Finding:
    names = [subject.name for subject in ask.subjects]
    found = [answers_of(subject) for subject in ask.subjects]
    classes = found[0].classes
    shares = [_shares(each, len(classes)) for each in found]
    for name, each in zip(names, found, strict=True):
        if each.classes != classes:
            raise UsageError(f"{name} and {names[0]} were trained for other classes; compare runs on the same data")
    panels: list[Panel] = [_grid(names[0], shares[0], classes, diverging=False)]
    panels += [
        _grid(f"{name} minus {names[0]}", own - shares[0], classes, diverging=True)
        for name, own in zip(names[1:], shares[1:], strict=True)
    ]
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="Share of each true class's validation images that is given each class, at the last epoch. Further models"
        f" as their difference to {names[0]}: red more often, blue less often. One run of each: of many cells some"
        " differ by chance.",
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
            for name, each in zip(names, found, strict=True)
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
    what="confusion matrices of runs, and their difference from the first one's",
    source="HV, Fig. 4",
    find=find,
    images="none",
    runs=True,
)
