from __future__ import annotations

import itertools

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attngraft.drawing.sheet import Panel, drawing, png, sheet, size_in_points, spread, svg
from attngraft.drawing.theme import LIGHT

level = st.floats(-2, 3, allow_nan=False)


@given(st.lists(level, min_size=1, max_size=12), st.floats(0.01, 0.4))
def test_labels_are_spread_in_order_and_inside(targets, gap):
    placed = spread(targets, gap, low=0.0, high=1.0)
    possible = min(gap, 1 / max(1, len(targets) - 1))
    ranked = [y for _, y in sorted(zip(targets, placed, strict=True))]
    assert min(placed) >= -1e-9 and max(placed) <= 1 + 1e-9
    assert sorted(placed) == pytest.approx(ranked)
    ordered = sorted(placed)
    assert all(b - a >= possible - 1e-9 for a, b in itertools.pairwise(ordered))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8, unique=True))
def test_labels_with_room_stay_where_they_are(targets):
    ordered = sorted(targets)
    room = min((b - a for a, b in itertools.pairwise(ordered)), default=1.0)
    assert spread(targets, room * 0.99, low=0.0, high=1.0) == pytest.approx(targets, abs=1e-9)


def test_drawing_leaves_the_users_settings_alone(monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "lines.linewidth", 9.0)
    before = dict(matplotlib.rcParams)
    with drawing(text_as_paths=True):
        assert matplotlib.rcParams["lines.linewidth"] == 1.5
        assert matplotlib.rcParams["text.parse_math"] is False
    assert dict(matplotlib.rcParams) == before


def test_a_sheet_has_exact_sizes_and_says_nothing_of_when_it_was_made():
    with drawing(text_as_paths=True):
        figure, (left, right) = sheet([Panel(width=3, height=2), Panel(width=4, height=2)], LIGHT, opaque=True)
        assert tuple(figure.get_size_inches()) == (7, 2)
        assert size_in_points(left) == pytest.approx(((3 - 0.75) * 72, (2 - 0.95) * 72))
        assert size_in_points(right) == pytest.approx(((4 - 0.75) * 72, (2 - 0.95) * 72))
        assert png(figure).startswith(b"\x89PNG")
        text = svg(figure)
    assert "<dc:date>" not in text and "matplotlib.org" not in text.lower()
