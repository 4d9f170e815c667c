"""Report sections of captioning: captions of all variants, and metrics beside those without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attngraft.results.sections import Cell, Column, Section, Table
from attngraft.tasks.captioning.floors import CONSTANT, HUMAN, RANDOM
from attngraft.tasks.captioning.metrics import measure, meteor
from attngraft.tasks.captioning.ptb import tokenize

STORED = 60  #: number of captions; the report shows those on which variants differ to different degrees

_METRICS = {"bleu1": "BLEU-1", "bleu4": "BLEU-4", "rouge_l": "ROUGE-L", "cider": "CIDEr-D"}


def sections(predictions: Sequence[Mapping[str, Any]], *, constant: str, floors: Mapping[str, Any]) -> list[Section]:
    """Return the metrics as means over seeds beside those without a model, and captions by the first seed's run.

    Args:
        predictions: columns of each seed's records, with outputs if they were saved.
        constant: the constant caption.
        floors: the metrics of captions without a model, on the same images.
    """
    found = [_metrics(predictions, constant, floors)]
    return [*found, _captions(predictions[0])] if "caption" in predictions[0] else found


def _metrics(predictions: Sequence[Mapping[str, Any]], constant: str, floors: Mapping[str, Any]) -> Section:
    measured = [measure(each).values for each in predictions]
    names = {CONSTANT: "constant caption", RANDOM: "random caption", HUMAN: "human"}
    known = {shown: floors[name] for name, shown in names.items() if name in floors}
    rows: list[list[Cell]] = [
        [label, float(np.mean([values[name] for values in measured])), *(each[name] for each in known.values())]
        for name, label in _METRICS.items()
    ]
    columns = [
        Column(name="metric", kind="text"),
        Column(name="captions", role="compared"),
        *(Column(name=name, role="common") for name in known),
    ]
    note = (
        f"Means over seeds. The constant caption is “{constant}”, the random captions are of training images, and "
        "those of humans are each image’s last reference, judged by its others: fewer references than the models have. "
        f"{_meteor(predictions)}"
    )
    return Section(name="captioning", title="Captions", note=note, table=Table(columns=columns, rows=rows))


def _meteor(predictions: Sequence[Mapping[str, Any]]) -> str:
    if "caption" not in predictions[0]:
        return "METEOR: not computed (set train.outputs=true)."
    found = []
    for each in predictions:
        references = [[tokenize(line) for line in str(texts).split("\n")] for texts in each["references"]]
        found.append(meteor([tokenize(str(caption)) for caption in each["caption"]], references))
        if isinstance(found[-1], str):
            return f"{found[-1]}."
    return f"METEOR: {np.mean([float(value) for value in found]):.1f}."


def _captions(predictions: Mapping[str, Any]) -> Section:
    names, captions, references = (predictions[name] for name in ("image", "caption", "references"))
    order = np.argsort(names)
    rows = [order[place] for place in np.linspace(0, len(order) - 1, min(STORED, len(order))).round().astype(int)]
    columns = [
        Column(name="image", kind="text"),
        Column(name="references", kind="text", role="common"),
        Column(name="caption", kind="text", role="compared"),
    ]
    cells: list[list[Cell]] = [
        [str(names[row]), str(references[row]).replace("\n", " / "), str(captions[row])] for row in rows
    ]
    note = "Captions by the first seed’s runs, of images spread over the names."
    return Section(name="images", title="Captions of images", note=note, table=Table(columns=columns, rows=cells))
