"""Matching of detections to objects, against a loop over detections, thresholds and areas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngraft.tasks.detection.matching import KINDS, RANGES, THRESHOLDS, error_kinds, match


def loop(
    ious: np.ndarray, labels: np.ndarray, areas: np.ndarray, true: np.ndarray, sizes: np.ndarray, crowd: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """COCO's matching, one step after the other."""
    matched, ignored = (np.zeros((len(labels), len(RANGES)), dtype=np.uint16) for _ in range(2))
    for place, (low, high) in enumerate(RANGES.values()):
        off = crowd | (sizes < low) | (sizes > high)
        order = np.argsort(off, kind="stable")
        for bit, threshold in enumerate(THRESHOLDS):
            taken: set[int] = set()
            for index in range(len(labels)):
                best, chosen = min(threshold, 1 - 1e-10), -1
                for each in order:
                    if labels[index] != true[each] or (each in taken and not crowd[each]):
                        continue
                    if chosen > -1 and not off[chosen] and off[each]:
                        break
                    if ious[index, each] >= best:
                        best, chosen = ious[index, each], each
                if chosen > -1:
                    taken.add(chosen)
                    matched[index, place] |= 1 << bit
                out = off[chosen] if chosen > -1 else not low <= areas[index] <= high
                ignored[index, place] |= int(out) << bit
    return matched, ignored


@given(st.integers(0, 10_000), st.integers(0, 6), st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_equals_a_loop(seed: int, detections: int, objects: int) -> None:
    random = np.random.default_rng(seed)
    ious = np.round(random.random((detections, objects)), 1)  # many ties, also with thresholds
    labels, true = random.integers(2, size=detections), random.integers(2, size=objects)
    areas, sizes = (np.exp(random.uniform(4, 11, number)) for number in (detections, objects))
    crowd = random.random(objects) < 0.3
    found = match(ious, labels=labels, areas=areas, true_labels=true, true_areas=sizes, crowd=crowd)
    for one, other in zip(found, loop(ious, labels, areas, true, sizes, crowd), strict=True):
        np.testing.assert_array_equal(one, other)


def test_names_every_kind_of_error() -> None:
    ious = np.array([[0.9, 0, 0], [0.6, 0, 0], [0.7, 0, 0], [0.3, 0, 0], [0.05, 0, 0], [0, 0, 0.8]])
    labels, true, crowd = np.array([0, 0, 1, 0, 0, 2]), np.array([0, 1, 2]), np.array([False, False, True])
    sizes = np.full(3, 100.0)
    matched, ignored = match(
        ious, labels=labels, areas=np.full(6, 100.0), true_labels=true, true_areas=sizes, crowd=crowd
    )
    kinds = error_kinds(ious, matched[:, 0], ignored[:, 0], labels=labels, true_labels=true, crowd=crowd)
    expected = ["right", "duplicate", "wrong class", "localization", "background", "ignored"]
    assert [KINDS[kind] for kind in kinds] == expected


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_match(shape: tuple[int, int]) -> None:
    detections, objects = shape
    matched, ignored = match(
        np.zeros(shape),
        labels=np.zeros(detections, int),
        areas=np.full(detections, 50.0),
        true_labels=np.zeros(objects, int),
        true_areas=np.full(objects, 50.0),
        crowd=np.zeros(objects, bool),
    )
    assert matched.shape == ignored.shape == (detections, len(RANGES))
    assert not matched.any()
