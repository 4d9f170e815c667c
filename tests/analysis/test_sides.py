"""Which images changed sides."""

from __future__ import annotations

import numpy as np
import pytest

from attngraft.analysis.sides import changed_sides
from attngraft.errors import UsageError


def test_images_and_classes() -> None:
    first, second = np.array([True, True, False, False, True]), np.array([True, False, True, False, False])
    found = changed_sides(first, second, labels=np.array([0, 0, 2, 2, 2]), names=("ant", "bee", "cat"))
    assert found.gained.tolist() == [2]
    assert found.lost.tolist() == [1, 4]
    assert [(each.name, each.images) for each in found.classes] == [("ant", 2), ("cat", 3)]
    assert [each.difference for each in found.classes] == pytest.approx([-0.5, 0.0])
    assert sum(each.difference * each.images for each in found.classes) == len(found.gained) - len(found.lost)


def test_no_images() -> None:
    nothing = np.zeros(0, dtype=bool)
    assert changed_sides(nothing, nothing, labels=np.zeros(0, dtype=int), names=("a",)).classes == []


def test_other_images_are_refused() -> None:
    yes = np.ones(3, dtype=bool)
    with pytest.raises(UsageError, match="the same images"):
        changed_sides(yes, yes[:2], labels=np.zeros(3, dtype=int), names=("a",))
    with pytest.raises(UsageError, match="labels must be less than the number of class names, 1; got 1"):
        changed_sides(yes, yes, labels=np.array([0, 1, 0]), names=("a",))
