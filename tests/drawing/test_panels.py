"""Analysis results drawn: every kind of panel, odd sizes."""

from __future__ import annotations

import base64
import io
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from attngraft.drawing.panels import analysis_plots, color_limits, panel_drawing, pixels
from attngraft.drawing.sheet import inline_svg
from attngraft.drawing.theme import DARK, LIGHT
from attngraft.results.analysis import (
    AnalysisResult,
    Box,
    Boxes,
    Curves,
    Grid,
    Line,
    Panel,
    Picture,
    PictureRow,
    Pictures,
)
from attngraft.results.sections import Column, Table
from tests.report.studies import HOSTILE


def image(side: int = 6) -> str:
    stream = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), 200, np.uint8)).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


CURVES = Curves(
    title="curves",
    x_axis="layer",
    ticks=["a", "b", "c"],
    lines=[
        Line(name="first", subject=0, x=[0, 1, 2], y=[1.0, None, 3.0]),
        Line(name="second", subject=1, x=[0, 1], y=[2.0, 2.5], low=[1.5, None], high=[2.5, 3.0], dashed=True),
        Line(name="bound", x=[0, 2], y=[4.0, 4.0]),
    ],
)
BOXES = Boxes(
    title="boxes",
    x_axis="layer",
    ticks=[f"a long name of layer {place}" for place in range(40)],
    boxes=[Box(at=place, subject=1, quantiles=(0, 1, 2, 3, 4), mean=2.1) for place in range(40)],
)
GRID = Grid(
    title="grid",
    rows=["x", "y"],
    columns=["z"],
    row_axis="down",
    column_axis="across",
    cells=[[0.5], [-1.0]],
    diverging=True,
)
PICTURES = Pictures(
    title="pictures",
    rows=[
        PictureRow(name="images", pictures=[Picture(caption="one", image=image()), Picture()]),
        PictureRow(
            name="maps",
            pictures=[Picture(values=[[0.0, 1.0], [0.5, 0.25]], image=image()), Picture(values=[[1.0] * 40])],
        ),
    ],
)


def result(*panels: Panel, name: str = "made-up", **changes: object) -> AnalysisResult:
    table = Table(columns=[Column(name="model", kind="text"), Column(name="n")], rows=[["first", 1.5], [HOSTILE, None]])
    made = {"title": "A title", "note": "A note", "source": "CB", "subjects": ["first", "second"], **changes}
    return AnalysisResult(name=name, panels=list(panels), table=table, **made)  # type: ignore[arg-type]


ALL = result(CURVES, BOXES, PICTURES, GRID)


@pytest.mark.slow
def test_plots_share_sheets_and_pictures_have_their_own() -> None:
    files = analysis_plots(ALL)
    sheets = ["made-up", "made-up-2", "made-up-3"]
    assert set(files) == {
        f"{name}{theme}.{kind}" for name in sheets for theme in ("", "-dark") for kind in ("png", "svg")
    }
    for name, content in files.items():
        if name.endswith(".svg"):
            assert ElementTree.fromstring(content).tag.endswith("svg")
        else:
            with Image.open(io.BytesIO(content)) as drawn:
                assert min(drawn.size) > 100
                corner = drawn.convert("RGB").getpixel((0, 0))
            surface = DARK.surface if "-dark" in name else LIGHT.surface
            assert corner == tuple(int(surface[place : place + 2], 16) for place in (1, 3, 5))
    assert analysis_plots(ALL) == files, "the same bytes every time"
    assert {f"made-up{number}.png" for number in ("", "-2")} <= analysis_plots(result(*[CURVES] * 5)).keys()


def test_the_baseline_is_gray_and_the_others_are_as_in_the_report() -> None:
    drawn = inline_svg(panel_drawing(result(CURVES, baseline=0), CURVES))
    assert "var(--baseline)" in drawn
    assert "var(--series-0)" in drawn
    assert "var(--series-1)" not in drawn
    without = inline_svg(panel_drawing(result(CURVES), CURVES))
    assert "var(--baseline)" not in without
    assert "var(--series-1)" in without


@pytest.mark.parametrize("panel", [CURVES, BOXES, GRID, PICTURES])
def test_panels_have_text_alternatives(panel: Panel) -> None:
    assert panel.title in panel_drawing(ALL, panel).alt


@pytest.mark.parametrize("shape", [(2, 2), (1, 2), (2, 1), (1, 3), (3, 1)])
def test_pictures_keep_their_proportions(shape: tuple[int, int]) -> None:
    """Maps more than twice as long as wide are stretched to a square."""
    rows, columns = shape
    picture = Picture(values=np.ones(shape).tolist())
    panel = Pictures(title="p", rows=[PictureRow(name="r", pictures=[picture])])
    root = ElementTree.fromstring(inline_svg(panel_drawing(result(panel), panel)))
    (drawn,) = root.iter("image")
    ratio = float(drawn.get("width", "")) / float(drawn.get("height", ""))
    assert ratio == pytest.approx(1 if max(shape) == 3 else columns / rows, abs=0.05)


def test_empty_panels_are_drawn() -> None:
    empty = result(
        Curves(title="no lines", x_axis="x", lines=[]),
        Boxes(title="no boxes", x_axis="x", ticks=[], boxes=[]),
        Pictures(title="no rows", rows=[]),
    )
    assert len(analysis_plots(empty)) == 8


def test_limits_of_colors() -> None:
    assert color_limits(np.array([[1.0, 3.0]]), None, None, diverging=False) == (1, 3)
    assert color_limits(np.array([[1.0, 3.0]]), 0.0, None, diverging=False) == (0, 3)
    assert color_limits(np.array([[2.0, 2.0]]), None, None, diverging=False) == (2, 3)
    assert color_limits(np.array([[-1.0, 3.0]]), None, None, diverging=True) == (-3, 3)
    assert color_limits(np.array([[np.nan]]), None, None, diverging=True) == (-1, 1)


def test_a_map_over_an_image_lets_the_image_be_seen() -> None:
    panel = Pictures(title="", rows=[], low=0, high=1)
    over = pixels(Picture(values=[[0.0, 1.0]], image=image()), panel)
    left, right = over[0, 0].astype(int), over[0, -1].astype(int)
    assert over.shape[0] == over.shape[1] >= 180
    assert (left != right).any()
    plain = pixels(Picture(values=[[0.0, 1.0]]), panel)
    assert (plain[0, 0] != left).any()


@pytest.mark.parametrize(
    ("ticks", "rotated"),
    [
        (["1 pixel", "2 pixels", "4 pixels", "8 pixels"], False),
        ([f"{place:04}" for place in range(40)], False),
        ([f"layer {place}" for place in range(10)], True),
        (["a layer of a model", "another layer"], False),
        (["a layer of a model", "another layer", "a third"], True),
    ],
)
def test_tick_labels_are_rotated_where_they_do_not_fit(ticks: list[str], rotated: bool) -> None:
    line = Line(name="a", subject=0, x=[0.0, 1.0], y=[0.0, 1.0])
    panel = Curves(title="t", x_axis="x", ticks=ticks, lines=[line])
    drawn = panel_drawing(result(panel), panel)
    assert (drawn.bottom > 0.8) == rotated
    assert ("rotate(-90" in inline_svg(drawn)) == rotated
