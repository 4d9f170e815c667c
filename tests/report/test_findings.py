"""Findings drawn and put on pages: every kind of panel, odd sizes, what users write."""

from __future__ import annotations

import base64
import csv
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from attngraft.analysis.catalog import load_analyses, save_analysis
from attngraft.drawing.theme import DARK, LIGHT
from attngraft.report import write_report
from attngraft.report.analyses import analyses_html, write_analyses
from attngraft.report.findings import finding_csv, finding_plots, in_words, panel_drawing
from attngraft.report.page import report_html
from attngraft.report.picture_grid import limits, pixels
from attngraft.results.analysis import AnalysisResult, Box, Boxes, Curves, Grid, Line, Panel, Picture, Pictures, PictureRow
from attngraft.results.sections import Column, Table
from tests.report.studies import HOSTILE, usual


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


def finding(*panels: Panel, name: str = "made-up", **changes: object) -> AnalysisResult:
    table = Table(columns=[Column(name="model", kind="text"), Column(name="n")], rows=[["first", 1.5], [HOSTILE, None]])
    made = {"title": "A title", "note": "A note", "source": "CB", "subjects": ["first", "second"], **changes}
    return AnalysisResult(name=name, panels=list(panels), table=table, **made)  # type: ignore[arg-type]


ALL = finding(CURVES, BOXES, PICTURES, GRID)


def test_plots_stand_together_and_pictures_by_themselves() -> None:
    files = finding_plots(ALL)
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
    assert finding_plots(ALL) == files, "the same bytes every time"
    assert {f"made-up{number}.png" for number in ("", "-2")} <= finding_plots(finding(*[CURVES] * 5)).keys()


def test_the_baseline_is_gray_and_the_others_are_as_in_the_report() -> None:
    drawn = panel_drawing(finding(CURVES, baseline=0), CURVES, LIGHT)
    assert LIGHT.baseline in drawn
    assert LIGHT.series[0] in drawn
    assert LIGHT.series[1] not in drawn
    without = panel_drawing(finding(CURVES), CURVES, LIGHT)
    assert LIGHT.baseline not in without
    assert LIGHT.series[1] in without


@pytest.mark.parametrize("panel", [CURVES, BOXES, GRID, PICTURES])
def test_panels_in_words(panel: Panel) -> None:
    assert panel.title in in_words(ALL, panel)


def test_empty_panels_are_drawn() -> None:
    empty = finding(
        Curves(title="no lines", x_axis="x", lines=[]),
        Boxes(title="no boxes", x_axis="x", ticks=[], boxes=[]),
        Pictures(title="no rows", rows=[]),
    )
    assert len(finding_plots(empty)) == 8


def test_limits_of_colors() -> None:
    assert limits(np.array([[1.0, 3.0]]), None, None, diverging=False) == (1, 3)
    assert limits(np.array([[1.0, 3.0]]), 0.0, None, diverging=False) == (0, 3)
    assert limits(np.array([[2.0, 2.0]]), None, None, diverging=False) == (2, 3)
    assert limits(np.array([[-1.0, 3.0]]), None, None, diverging=True) == (-3, 3)
    assert limits(np.array([[np.nan]]), None, None, diverging=True) == (-1, 1)


def test_a_map_over_an_image_lets_the_image_be_seen() -> None:
    panel = Pictures(title="", rows=[], low=0, high=1)
    over = pixels(Picture(values=[[0.0, 1.0]], image=image()), panel)
    left, right = over[0, 0].astype(int), over[0, -1].astype(int)
    assert over.shape[0] == over.shape[1] >= 180
    assert (left != right).any()
    plain = pixels(Picture(values=[[0.0, 1.0]]), panel)
    assert (plain[0, 0] != left).any()


def test_the_table_as_csv() -> None:
    rows = list(csv.reader(io.StringIO(finding_csv(ALL))))
    assert rows == [["model", "n"], ["first", "1.5"], [HOSTILE, ""]]


def test_what_users_write_is_text() -> None:
    hostile = finding(
        CURVES,
        PICTURES,
        title=HOSTILE,
        note=HOSTILE,
        source=HOSTILE,
        subjects=[HOSTILE, "b"],
        numbers={HOSTILE: 0.123456},
        left_out={HOSTILE: HOSTILE},
        made={"command": HOSTILE},
    )
    page = analyses_html([hostile], title=HOSTILE)
    assert "<script" not in page
    assert "0.1235" in page
    assert re.findall(r"(?:src|href)=\"https?://[^\"]+", page) == []
    assert "default-src 'none'; img-src data:;" in page
    assert finding_plots(hostile)


def test_a_folder_of_findings(tmp_path: Path) -> None:
    page = write_analyses([ALL], tmp_path, title="mine")
    assert page == tmp_path / "analysis.html"
    write_analyses([finding(CURVES, name="made-up-too")], tmp_path, title="mine")
    assert page.read_text(encoding="utf-8").count("<section") == 2
    write_analyses([finding(CURVES)], tmp_path, title="mine")
    left = {path.name for path in tmp_path.iterdir()}
    assert "made-up-too.png" in left
    assert "made-up-3.png" not in left, "sheets that this finding has no more are gone"
    assert [each.name for each in load_analyses(tmp_path)] == ["made-up", "made-up-too"]


def test_a_studys_report_has_them(tmp_path: Path) -> None:
    study = usual()
    without = report_html(study)
    assert "img-src" not in without
    assert 'class="finding"' not in without
    save_analysis(finding(PICTURES), tmp_path / "analysis")
    page = write_report(study, tmp_path).read_text(encoding="utf-8")
    assert 'href="#analysis-made-up"' in page
    assert page.count('class="finding"') == 1
    assert "img-src data:" in page
    (tmp_path / "analysis" / "made-up.json").unlink()
    assert write_report(study, tmp_path).read_text(encoding="utf-8") == without
