"""Rules that hold for the columns of an evaluation whatever the model predicts; saved columns are checked by them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from attngraft.results.records import Column, RecordTable

Part = str | tuple[str, slice]  #: a column, or some of its entries along the last axis

COUNT = (0.0, math.inf)  #: range of counts, and of losses that cannot be negative
SHARE = (0.0, 1.0)  #: range of probabilities and shares
_SLACK = 1e-3  #: by which rounding may exceed a limit
_ROUNDING = 1e-5  #: of floats in the truth, in parts of the largest


@dataclass(frozen=True, kw_only=True)
class ColumnRules:
    """The rules of a task's columns; columns that a table lacks are skipped, and NaN breaks no rule."""

    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  #: lowest and highest value of a column
    ordered: Sequence[tuple[Part, Part]] = ()  #: pairs: no value of the first exceeds that of the second
    truth: Sequence[Part] = ()  #: facts of the data, such as labels, which all runs must have in common

    def read(self, table: RecordTable) -> dict[str, Column]:
        """Return the columns with a rule."""
        parts = [*self.ranges, *(part for pair in self.ordered for part in pair), *self.truth]
        names = dict.fromkeys(part if isinstance(part, str) else part[0] for part in parts)
        return {name: table[name] for name in names if name in table}

    def broken(self, columns: Mapping[str, Column]) -> str:
        """Return which rule the columns break, or an empty string."""
        for name, (low, high) in self.ranges.items():
            for values in _flat(columns[name]) if name in columns else ():
                if (wrong := (values < low - _SLACK) | (values > high + _SLACK)).any():
                    limits = f"from {low:g} to {high:g}" if math.isfinite(high) else f"at least {low:g}"
                    return f"{name} contains {values[wrong][0]:g}, but must be {limits}"
        for pair in self.ordered:
            small, large = (_part(columns, part) for part in pair)
            if small is not None and large is not None and (np.asarray(small) > np.asarray(large) + _SLACK).any():
                return f"{_named(pair[0])} exceeds {_named(pair[1])}"
        return ""

    def truth_of(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        """Return the truth by column."""
        found = {_named(part): _part(columns, part) for part in self.truth}
        return {name: column for name, column in found.items() if column is not None}


def different(ours: Mapping[str, Column], theirs: Mapping[str, Column]) -> str:
    """Return the name of a column of the truth that differs, or an empty string; columns of only one are skipped."""
    return next((name for name in ours if name in theirs and not _same(ours[name], theirs[name])), "")


def _same(ours: Column, theirs: Column) -> bool:
    if ours is theirs:
        return True
    if isinstance(ours, list) or isinstance(theirs, list):
        shapes = [[np.shape(row) for row in column] for column in (ours, theirs)]
        return shapes[0] == shapes[1] and all(map(_same, _flat(ours), _flat(theirs)))
    if np.array_equal(ours, theirs) or ours.shape != theirs.shape or ours.dtype.kind != "f":
        return np.array_equal(ours, theirs)
    return np.allclose(ours, theirs, rtol=0, atol=_ROUNDING * float(np.nanmax(np.abs(ours))), equal_nan=True)


def _flat(column: Column) -> list[np.ndarray]:
    """Return the values of all examples, as one array if there are any."""
    if not isinstance(column, list):
        return [column]
    return [np.concatenate([row.reshape(-1) for row in column])] if column else []


def _part(columns: Mapping[str, Column], part: Part) -> Column | None:
    if isinstance(part, str):
        return columns.get(part)
    column = columns.get(part[0])
    return None if column is None else np.asarray(column)[..., part[1]]


def _named(part: Part) -> str:
    if isinstance(part, str):
        return part
    name, chosen = part
    ends = (chosen.start, chosen.stop, chosen.step)
    return f"{name}[{':'.join('' if end is None else str(end) for end in ends)}]"
