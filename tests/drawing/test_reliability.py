"""Reliability diagrams and matrices against the numbers that they show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attngraft.drawing.reliability import LEVELS, matrix_drawing, reliability_drawing, reliability_files
from attngraft.drawing.sheet import Drawing, settings, sheet
from attngraft.drawing.theme import LIGHT, THEMES
from attngraft.results.sections import Matrix, Reliability


def axes_of(drawing: Drawing) -> Any:
    with settings(text_as_paths=True):
        return sheet([drawing], LIGHT, opaque=True)[1][0]


def test_a_large_matrix_has_the_shades_of_its_cells():
    size = 17
    counts = np.random.default_rng(0).integers(0, 5, (size, size)) * (
        np.random.default_rng(1).random((size, size)) < 0.4
    )
    counts[3] = 0
    names = [f"c{i}" for i in range(size)]
    matrix = Matrix(rows=names, columns=names, row_axis="true", column_axis="predicted", counts=counts.tolist())
    axes = axes_of(matrix_drawing(matrix, alt="", name=""))
    painted = np.zeros((size, size))
    for patch in axes.patches:
        for (start, y), (end, _) in patch.get_path().vertices.reshape(-1, 2, 2):
            painted[int(y), int(start) : int(end)] += patch.get_alpha()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    assert np.allclose(painted, np.ceil(LEVELS * np.sqrt(shares)) / LEVELS)
    assert [text.get_text() for text in axes.texts] == [*names, *names]
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    assert [patch.get_linewidth() for patch in axes.patches] == pytest.approx([height / size] * len(axes.patches))


def test_a_reliability_diagram_shows_the_bins():
    found = Reliability(counts=[10, 0, 40], stated=[0.1, None, 0.9], observed=[0.3, None, 0.8], error_by_seed=[0.1])
    drawing = reliability_drawing(found)
    axes = axes_of(drawing)
    diagonal, line = axes.lines
    assert diagonal.get_xydata().tolist() == [[0, 0], [100, 100]]
    np.testing.assert_allclose(line.get_xydata(), [[10, 30], [90, 80]])
    (points,) = axes.collections
    np.testing.assert_allclose(points.get_offsets(), [[10, 30], [90, 80]])
    assert points.get_sizes()[0] < points.get_sizes()[1]
    (bars,) = axes.child_axes
    assert [bar.get_height() for bar in bars.patches] == [10, 0, 40]
    assert "50 predictions" in drawing.alt and "10%: 30%" in drawing.alt


def test_the_baseline_is_drawn_behind_a_variant():
    found = Reliability(counts=[4], stated=[0.5], observed=[0.25], error_by_seed=[0.25])
    other = Reliability(counts=[4], stated=[0.6], observed=[0.75], error_by_seed=[0.15])
    _, baseline, line = axes_of(reliability_drawing(found, other, role="series-2")).lines
    assert (baseline.get_color(), line.get_color()) == (LIGHT.baseline, LIGHT.series[2])
    assert baseline.get_xydata().tolist() == [[60, 75]]


def test_files_are_the_same_bytes_every_time() -> None:
    reliable = Reliability(counts=[0, 3, 9], stated=[None, 0.5, 0.9], observed=[None, 0.33, 1.0], error_by_seed=[0.1])
    first = reliability_files(reliable, title="<run> $x$")
    assert first == reliability_files(reliable, title="<run> $x$")
    assert set(first) == {"reliability.svg", "reliability.png"}
    assert first["reliability.png"].startswith(b"\x89PNG")


@pytest.mark.parametrize("bins", [0, 2])
def test_without_predictions_a_diagram_is_empty(bins: int) -> None:
    nothing: list[float | None] = [None] * bins
    empty = Reliability(counts=[0] * bins, stated=nothing, observed=nothing, error_by_seed=[])
    assert b"<svg" in reliability_files(empty, title="nothing")["reliability.svg"]


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
