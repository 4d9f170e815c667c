"""Writers of predictions as CSV, JSON, or one JSON object per line."""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from typing import IO, Any, Literal

import numpy as np

from attngraft.export.predict import Prediction
from attngraft.tasks.task import Serving

Format = Literal["csv", "json", "jsonl"]


class PredictionWriter(ABC):
    """Writes predictions to an open binary file, as UTF-8; names that are not UTF-8 keep their bytes.

    With one label per image it writes the most probable class, or the `top` classes, with their probabilities. With several
    it writes the labels whose probability reaches the threshold, and all probabilities or those of the `top` classes.

    Args:
        file: the output.
        serving: the model's.
        top: number of classes; None: one, or all with several labels per image.
    """

    def __init__(self, file: IO[bytes], serving: Serving, *, top: int | None = None) -> None:
        self.file, self.serving = file, serving
        self.multilabel = serving.threshold is not None
        self.all = top is None and self.multilabel
        self.top = min(top or 1, len(serving.classes))

    def begin(self) -> None:
        """Write the header."""
        return

    @abstractmethod
    def add(self, prediction: Prediction) -> None: ...

    def end(self) -> None:
        """Write the footer."""
        return

    def write(self, text: str) -> None:
        self.file.write(text.encode("utf-8", "surrogateescape"))

    def labels(self, probabilities: np.ndarray) -> list[str]:
        """Return the labels of an image, if it can have several."""
        reached = probabilities >= (self.serving.threshold or 0)
        return [self.serving.classes[index] for index in np.flatnonzero(reached)]

    def best(self, probabilities: np.ndarray) -> list[tuple[str, float]]:
        """Return the most probable classes, best first; ties in the order of classes."""
        order = np.argsort(-probabilities, kind="stable")[: self.top]
        return [(self.serving.classes[index], _rounded(probabilities[index])) for index in order]


class CsvWriter(PredictionWriter):
    """`image`, the prediction, and `error`, which is empty for readable images.

    Columns are `label`, `probability`, `label_2`, `probability_2`, ...; with several labels per image, `labels` comes first,
    separated by `;` (by `|` if a class name has a `;`), followed by a column per class (`p:NAME`).
    """

    def begin(self) -> None:
        ranks = [f"_{rank}" if rank > 1 else "" for rank in range(1, self.top + 1)]
        columns = [f"{column}{rank}" for rank in ranks for column in ("label", "probability")]
        if self.multilabel:
            columns = ["labels", *([f"p:{name}" for name in self.serving.classes] if self.all else columns)]
        self.width = len(columns)
        self.separator = "|" if any(";" in name for name in self.serving.classes) else ";"
        self._row(["image", *columns, "error"])

    def add(self, prediction: Prediction) -> None:
        probabilities = prediction.probabilities
        if probabilities is None:
            self._row([prediction.image, *[""] * self.width, prediction.error])
            return
        cells: list[Any] = [cell for pair in self.best(probabilities) for cell in pair]
        if self.multilabel:
            values = [_rounded(value) for value in probabilities] if self.all else cells
            cells = [self.separator.join(self.labels(probabilities)), *values]
        self._row([prediction.image, *cells, ""])

    def _row(self, cells: list[Any]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        self.write(line.getvalue())


class JsonLinesWriter(PredictionWriter):
    """An object per image: `image`, and `label`, `probability`, `top` (one label per image), `labels`, `probabilities`
    (several), or `error`."""

    def add(self, prediction: Prediction) -> None:
        self.write(_json(self.entry(prediction)) + "\n")

    def entry(self, prediction: Prediction) -> dict[str, Any]:
        probabilities = prediction.probabilities
        if probabilities is None:
            return {"image": prediction.image, "error": prediction.error}
        best = self.best(probabilities)
        if self.multilabel:
            classes = self.serving.classes
            values = dict(zip(classes, map(_rounded, probabilities), strict=True)) if self.all else dict(best)
            return {"image": prediction.image, "labels": self.labels(probabilities), "probabilities": values}
        entry: dict[str, Any] = {"image": prediction.image, "label": best[0][0], "probability": best[0][1]}
        if len(best) > 1:
            entry["top"] = [{"label": label, "probability": value} for label, value in best]
        return entry


class JsonWriter(JsonLinesWriter):
    """One object: `classes`, `threshold` with several labels per image, and `images`, a list of `JsonLinesWriter`'s."""

    def begin(self) -> None:
        head: dict[str, Any] = {"classes": list(self.serving.classes)}
        if self.multilabel:
            head["threshold"] = self.serving.threshold
        self.write(_json(head)[:-1] + ', "images": [')
        self.first = True

    def add(self, prediction: Prediction) -> None:
        self.write(("\n" if self.first else ",\n") + _json(self.entry(prediction)))
        self.first = False

    def end(self) -> None:
        self.write("\n]}\n")


WRITERS: dict[Format, type[PredictionWriter]] = {"csv": CsvWriter, "json": JsonWriter, "jsonl": JsonLinesWriter}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rounded(value: float) -> float:
    """Round to six digits."""
    return float(f"{value:.6g}")
