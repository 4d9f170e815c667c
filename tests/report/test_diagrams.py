"""Shapes against the numbers they stand for."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from attngraft.drawing.theme import THEMES
from attngraft.report.diagrams import CELL, LEVELS, NUMBERED, SIDE, matrix_drawing, reliability_drawing
from attngraft.results.sections import Matrix, Reliability


def _matrix(counts: np.ndarray) -> Matrix:
    names = [f"c{i}" for i in range(len(counts))]
    return Matrix(
        rows=names, columns=names, row_axis="true class", column_axis="predicted class", counts=counts.tolist()
    )


def test_a_small_matrix_keeps_its_numbers():
    drawing = matrix_drawing(_matrix(np.array([[9, 1], [0, 0]])))
    assert [[cell.count for cell in row] for row in drawing.cells] == [[9, 1], [0, 0]]
    assert [[cell.share for cell in row] for row in drawing.cells] == [[0.9, 0.1], [0, 0]]
    assert drawing.cells[0][1].depth == pytest.approx(math.sqrt(0.1), abs=1e-3)
    assert drawing.levels == [] and drawing.pairs == []
    assert "c0 as c1: 1" in drawing.alt
    assert not drawing.upright
    assert matrix_drawing(_matrix(np.eye(NUMBERED + 1, dtype=int))).upright


def test_a_large_matrix_is_the_same_shades_as_paths():
    size = NUMBERED + 5
    counts = np.random.default_rng(0).integers(0, 5, (size, size)) * (
        np.random.default_rng(1).random((size, size)) < 0.4
    )
    counts[3] = 0
    drawing = matrix_drawing(_matrix(counts))
    assert drawing.cells == []
    painted = np.zeros((size, size))
    for opacity, path in drawing.levels:
        for x, y, width, height, back in re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)H(\d+)z", path):
            assert (int(height), back) == (CELL, x)
            painted[int(y) // CELL, int(x) // CELL : (int(x) + int(width)) // CELL] += opacity
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    assert np.allclose(painted, np.ceil(LEVELS * np.sqrt(shares)) / LEVELS, atol=1e-3)
    off = counts * (1 - np.eye(size, dtype=int))
    assert [count for _, _, count in drawing.pairs] == sorted(off.ravel(), reverse=True)[: len(drawing.pairs)]


def test_reliability_points_lie_where_the_numbers_say():
    found = Reliability(counts=[10, 0, 40], stated=[0.1, None, 0.9], observed=[0.3, None, 0.8], error_by_seed=[0.1])
    drawing = reliability_drawing(found, None)
    assert [point[:2] for point in drawing.points] == [
        (0.1 * SIDE, 0.7 * SIDE),
        (0.9 * SIDE, pytest.approx(0.2 * SIDE)),
    ]
    assert drawing.points[0][2] < drawing.points[1][2]
    assert drawing.line == f"M{0.1 * SIDE:.1f} {0.7 * SIDE:.1f}L{0.9 * SIDE:.1f} {0.2 * SIDE:.1f}"
    assert [bar[2] for bar in drawing.bars] == pytest.approx([8.5, 34])
    assert drawing.baseline == ""
    assert reliability_drawing(found, found).baseline == drawing.line
    assert "50 predictions" in drawing.alt and "10%: 30%" in drawing.alt


def test_no_predictions_are_no_line():
    empty = Reliability(counts=[0, 0], stated=[None, None], observed=[None, None], error_by_seed=[])
    drawing = reliability_drawing(empty, None)
    assert (drawing.line, drawing.points, drawing.bars) == ("", [], [])


@pytest.mark.parametrize("theme", THEMES, ids=[theme.name for theme in THEMES])
def test_numbers_can_be_read_on_every_shade(theme):
    """The style sheet mixes up to 55% of the first series into the sheet, itself 3.5% ink on the surface."""

    def mixed(over, under, share):
        return [share * a + (1 - share) * b for a, b in zip(over, under, strict=True)]

    def channels(color):
        return [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]

    def luminance(color):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    ink, sheet = channels(theme.ink), mixed(channels(theme.ink), channels(theme.surface), 0.035)
    for depth in np.linspace(0, 1, 11):
        light, dark = sorted([luminance(ink), luminance(mixed(channels(theme.series[0]), sheet, 0.55 * depth))])[::-1]
        assert (light + 0.05) / (dark + 0.05) > 4.5
