"""Predictions as CSV, JSON, or one JSON object per line."""

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


class Answers(ABC):
    """Writes predictions into an open binary file, UTF-8; names that are no text keep their bytes.

    Where images have one label it is the most probable class; `top` further ones follow with their probabilities. Where
    they have several, labels are those whose probability reaches the threshold, and all probabilities follow, or those
    of the `top` most probable classes.

    Args:
        file: where to.
        serving: of the model.
        top: how many classes; None: one, or all where images have several labels.
    """

    def __init__(self, file: IO[bytes], serving: Serving, *, top: int | None = None) -> None:
        self.file, self.serving = file, serving
        self.several = serving.threshold is not None
        self.all = top is None and self.several
        self.top = min(top or 1, len(serving.classes))

    def begin(self) -> None:
        """Before the first prediction."""
        return

    @abstractmethod
    def add(self, prediction: Prediction) -> None: ...

    def end(self) -> None:
        """After the last one."""
        return

    def write(self, text: str) -> None:
        self.file.write(text.encode("utf-8", "surrogateescape"))

    def labels(self, probabilities: np.ndarray) -> list[str]:
        """The classes that the image is of, where it can be of several."""
        reached = probabilities >= (self.serving.threshold or 0)
        return [self.serving.classes[place] for place in np.flatnonzero(reached)]

    def best(self, probabilities: np.ndarray) -> list[tuple[str, float]]:
        """The most probable classes, best first; of equal ones that which stands first."""
        order = np.argsort(-probabilities, kind="stable")[: self.top]
        return [(self.serving.classes[place], _short(probabilities[place])) for place in order]


class Csv(Answers):
    """`image`, then what is said of it, then `error`, which is empty where the image could be read.

    Columns are `label`, `probability`, `label_2`, `probability_2`, ...; where images have several labels `labels`,
    separated by `;` (by `|` where a class has a `;` in its name), comes first, and a column per class (`p:NAME`) after it.
    """

    def begin(self) -> None:
        ranks = [f"_{rank}" if rank > 1 else "" for rank in range(1, self.top + 1)]
        columns = [f"{column}{rank}" for rank in ranks for column in ("label", "probability")]
        if self.several:
            columns = ["labels", *([f"p:{name}" for name in self.serving.classes] if self.all else columns)]
        self.width = len(columns)
        self.separator = "|" if any(";" in name for name in self.serving.classes) else ";"
        self._row(["image", *columns, "error"])

    def add(self, prediction: Prediction) -> None:
        found = prediction.probabilities
        if found is None:
            self._row([prediction.image, *[""] * self.width, prediction.error])
            return
        cells: list[Any] = [cell for pair in self.best(found) for cell in pair]
        if self.several:
            values = [_short(value) for value in found] if self.all else cells
            cells = [self.separator.join(self.labels(found)), *values]
        self._row([prediction.image, *cells, ""])

    def _row(self, cells: list[Any]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        self.write(line.getvalue())


class JsonLines(Answers):
    """An object per image: `image`, and `label`, `probability`, `top` (one label per image), `labels`, `probabilities`
    (several), or `error`."""

    def add(self, prediction: Prediction) -> None:
        self.write(_json(self.entry(prediction)) + "\n")

    def entry(self, prediction: Prediction) -> dict[str, Any]:
        found = prediction.probabilities
        if found is None:
            return {"image": prediction.image, "error": prediction.error}
        if self.several:
            classes = self.serving.classes
            values = dict(zip(classes, map(_short, found), strict=True)) if self.all else dict(self.best(found))
            return {"image": prediction.image, "labels": self.labels(found), "probabilities": values}
        best = self.best(found)
        said: dict[str, Any] = {"image": prediction.image, "label": best[0][0], "probability": best[0][1]}
        if len(best) > 1:
            said["top"] = [{"label": label, "probability": value} for label, value in best]
        return said


class Json(JsonLines):
    """One object: `classes`, `threshold` where images have several labels, and `images`, a list of what `JsonLines` has."""

    def begin(self) -> None:
        head: dict[str, Any] = {"classes": list(self.serving.classes)}
        if self.several:
            head["threshold"] = self.serving.threshold
        self.write(_json(head)[:-1] + ', "images": [')
        self.first = True

    def add(self, prediction: Prediction) -> None:
        self.write(("\n" if self.first else ",\n") + _json(self.entry(prediction)))
        self.first = False

    def end(self) -> None:
        self.write("\n]}\n")


FORMATS: dict[Format, type[Answers]] = {"csv": Csv, "json": Json, "jsonl": JsonLines}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _short(value: float) -> float:
    """Six digits."""
    return float(f"{value:.6g}")
