"""Confusion matrices, and their differences from the first model's matrix (HV, Fig. 4)."""

import numpy as np

from attngraft.analysis.panels import table
from attngraft.analysis.predictions import LabelPredictions, predictions_of_all
from attngraft.analysis.request import Analysis, AnalysisRequest, Content
from attngraft.results.analysis import Grid


def run(request: AnalysisRequest) -> Content:
    names = request.names
    predictions, images = predictions_of_all(request)
    classes = predictions[0].classes
    shares = [_shares(each, len(classes)) for each in predictions]
    return Content(
        note=f"Share of each true class that is predicted as each class, on {images}. Other models are shown as their "
        f"difference from {names[0]}: red is more often, blue less often. With a single run "
        "of each, some of the many cells differ by chance.",
        panels=[
            _grid(names[0], shares[0], classes, diverging=False),
            *(
                _grid(f"{name} minus {names[0]}", share - shares[0], classes, diverging=True)
                for name, share in zip(names[1:], shares[1:], strict=True)
            ),
        ],
        table=table(
            ["model", "true class", "predicted class", "share"],
            [
                (name, classes[row], classes[column], float(share[row, column]))
                for name, share in zip(names, shares, strict=True)
                for row in range(len(classes))
                for column in range(len(classes))
                if row == column or share[row, column] > 0
            ],
        ),
        numbers={
            f"{name}: right": float((each.predicted == each.target).mean())
            for name, each in zip(names, predictions, strict=True)
        },
    )


def _shares(predictions: LabelPredictions, size: int) -> np.ndarray:
    counts = np.bincount(predictions.target * size + predictions.predicted, minlength=size * size).reshape(size, size)
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
    title="Confusion matrix",
    summary="confusion matrices, and their difference from the first model's",
    source="HV, Fig. 4",
    run=run,
    predictions="counted",
    per_image=True,
)
