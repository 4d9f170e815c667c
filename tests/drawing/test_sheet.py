from __future__ import annotations

import itertools
from dataclasses import replace

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attngraft.drawing.sheet import Drawing, figure_files, inline_svg, settings, sheet, size_in_points, spread
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


def drawing(width: float, title: str = "") -> Drawing:
    return Drawing(name="d", alt="-1 point", draw=lambda axes, theme: axes.set_title(title), width=width, height=2)


def test_drawing_leaves_the_users_settings_alone(monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "lines.linewidth", 9.0)
    before = dict(matplotlib.rcParams)
    with settings(text_as_paths=True):
        assert matplotlib.rcParams["lines.linewidth"] == 1.5
        assert matplotlib.rcParams["text.parse_math"] is False
    assert dict(matplotlib.rcParams) == before


def test_sheets_have_exact_sizes():
    with settings(text_as_paths=True):
        figure, (left, right) = sheet([drawing(3), drawing(4)], LIGHT, opaque=True)
        assert tuple(figure.get_size_inches()) == (7, 2)
        assert size_in_points(left) == pytest.approx(((3 - 0.75) * 72, (2 - 0.95) * 72))
        assert size_in_points(right) == pytest.approx(((4 - 0.75) * 72, (2 - 0.95) * 72))


def test_files_hold_no_date_and_are_reproducible():
    files = figure_files("plot", [drawing(3), drawing(4)])
    assert set(files) == {"plot.png", "plot.svg", "plot-dark.png", "plot-dark.svg"}
    assert files["plot.png"].startswith(b"\x89PNG")
    assert b"<dc:date>" not in files["plot.svg"] and b"matplotlib.org" not in files["plot.svg"].lower()
    assert figure_files("plot", [drawing(3), drawing(4)]) == files


def test_inline_svg_has_a_text_alternative_and_no_white_space():
    text = inline_svg(drawing(3, title="<b> & $x$"), prefix="page-")
    assert 'aria-label="\N{MINUS SIGN}1 point"' in text
    assert ">&lt;b&gt; &amp; $x$</text>" in text
    assert ">\n" not in text


def test_control_characters_are_shown_as_signs():
    harmful = Drawing(
        name="d", alt="a\x1b[31m", draw=lambda axes, theme: axes.set_title("b\x1b\nc\x00"), width=3, height=2
    )
    files = figure_files("plot", [harmful])
    assert b"\x1b" not in files["plot.svg"] and b"\x00" not in files["plot.svg"]
    text = inline_svg(replace(harmful, titles={"axes_1": "d\x1b"}))
    assert "b\ufffd</text>" in text and "c\ufffd</text>" in text  # two lines
    assert 'aria-label="a\ufffd[31m"' in text and "<title>d\ufffd</title>" in text
