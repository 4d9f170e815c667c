"""Translations for the report."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attngraft.results.sections import Cell, Column, Section, Table

STORED = 60  #: number of sentences; the report shows those on which variants differ to different degrees
_NOTE = (
    "Translations by the first seed’s runs. The sentences are spread over the lengths of sources and, of those, over the "
    "differences to the baseline; they are no measure of the difference."
)


def example_section(predictions: Mapping[str, Any]) -> Section:
    """Return source, reference and translation of sentences of all lengths, the same for all runs.

    Args:
        predictions: a run's columns, with its outputs.
    """
    source, reference, translation = (predictions[name] for name in ("source", "reference", "translation"))
    _, distinct = np.unique(source, return_index=True)  # sources identify rows
    order = sorted(distinct.tolist(), key=lambda row: (len(source[row]), source[row]))
    rows = [order[place] for place in np.linspace(0, len(order) - 1, min(STORED, len(order))).round().astype(int)]
    columns = [
        Column(name="source", kind="text"),
        Column(name="reference", kind="text", role="common"),
        Column(name="translation", kind="text", role="compared"),
    ]
    cells: list[list[Cell]] = [[str(source[row]), str(reference[row]), str(translation[row])] for row in rows]
    return Section(name="translations", title="Translations", note=_NOTE, table=Table(columns=columns, rows=cells))
