"""Rules of columns: what no evaluation gives, and facts of the data that runs must have in common."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from attngraft.results.column_rules import COUNT, SHARE, ColumnRules, different
from attngraft.results.records import Column, RecordTable
from attngraft.tasks.captioning.metrics import RULES as CAPTIONING
from attngraft.tasks.detection.metrics import RULES as DETECTION
from attngraft.tasks.segmentation.metrics import RULES as SEGMENTATION
from attngraft.tasks.translation.metrics import RULES as TRANSLATION

RULES = ColumnRules(
    ranges={"p": SHARE, "count": COUNT, "missing": SHARE},
    ordered=[("right", "all"), (("pair", slice(0, 1)), ("pair", slice(1, 2))), ("missing", "all")],
    truth=["target", ("pair", slice(1, 2)), "missing"],
)
COLUMNS: Mapping[str, Column] = {
    "p": [np.array([0, 1.0]), np.array([np.nan]), np.zeros(0)],
    "count": np.array([0, 5, np.inf]),
    "right": np.array([[1, 2], [0, 0], [3, 4]]),
    "all": np.array([[1, 2], [0, 1], [4, 4]]),
    "pair": np.array([[1, 1], [2, 3], [0, 0]]),
    "target": np.array([0, 1, 2]),
    "unruled": np.array([-5, 7, 9]),
}


def test_columns_that_an_evaluation_can_give() -> None:
    read = RULES.read(RecordTable(names=np.arange(3), columns=COLUMNS))
    assert set(read) == COLUMNS.keys() - {"unruled"}
    assert RULES.broken(read) == ""
    assert {name: np.asarray(column).tolist() for name, column in RULES.truth_of(read).items()} == {
        "target": [0, 1, 2],
        "pair[1:2:]": [[1], [3], [0]],
    }
    assert ColumnRules().read(RecordTable(names=np.arange(3), columns=COLUMNS)) == {}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"p": [np.array([0.5]), np.array([1.5]), np.zeros(0)]}, "p contains 1.5, but must be from 0 to 1"),
        ({"p": np.array([0, 0, -0.1])}, "p contains -0.1, but must be from 0 to 1"),
        ({"count": np.array([1, -1, 1])}, "count contains -1, but must be at least 0"),
        ({"right": np.array([[1, 2], [0, 2], [3, 4]])}, "right exceeds all"),
        ({"pair": np.array([[1, 1], [4, 3], [0, 0]])}, r"pair[0:1:] exceeds pair[1:2:]"),
    ],
)
def test_columns_that_no_evaluation_gives(changed: Mapping[str, Column], message: str) -> None:
    assert RULES.broken({**COLUMNS, **changed}) == message


def test_differences_in_the_truth() -> None:
    ours: dict[str, Column] = {"number": np.array([1.0, 1e4, np.nan]), "boxes": [np.zeros((2, 4)), np.zeros((0, 4))]}
    rounded = {"number": np.array([1.0, 1e4 * (1 + 1e-7), np.nan]), "boxes": [np.zeros((2, 4)), np.zeros((0, 4))]}
    assert different(ours, rounded) == different(ours, {}) == ""
    assert different(ours, {"number": np.array([1e4, 1, np.nan])}) == "number"
    assert different(ours, {"boxes": [np.zeros((0, 4)), np.zeros((2, 4))]}) == "boxes"
    assert different(ours, {"boxes": [np.zeros((2, 4)), np.ones((0, 4))]}) == ""
    assert different(ours, {"boxes": [np.ones((2, 4)), np.zeros((0, 4))]}) == "boxes"
    assert different({"text": np.array(["a", "bc"])}, {"text": np.array(["a", "b"])}) == "text"


@pytest.mark.parametrize(
    ("rules", "columns", "message"),
    [
        (SEGMENTATION, {"right": np.ones((1, 3)), "predicted": np.zeros((1, 3))}, "right exceeds predicted"),
        (SEGMENTATION, {"boundary_right": np.full((1, 4, 3), -1)}, "boundary_right contains -1"),
        (TRANSLATION, {"bleu": np.array([[4, 4, 3, 4, 0, 0, 4, 3, 2, 1]])}, "bleu[2:6:] exceeds bleu[6:10:]"),
        (TRANSLATION, {"chrf": np.array([[2, 2, 2] * 7 + [2, 1, 2]])}, "chrf[2::3] exceeds chrf[1::3]"),
        (CAPTIONING, {"bleu": np.array([[4, 4, 5, 0, 0, 0, 4, 3, 2, 1]])}, "bleu[2:6:] exceeds bleu[6::]"),
        (DETECTION, {"box_matched": [np.array([[1024, 0]])]}, "box_matched contains 1024"),
        (DETECTION, {"kind": [np.array([6], dtype=np.uint8)]}, "kind contains 6, but must be from 0 to 5"),
    ],
)
def test_rules_of_tasks(rules: ColumnRules, columns: Mapping[str, Column], message: str) -> None:
    assert message in rules.broken(columns)
