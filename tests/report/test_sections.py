"""Task sections: rows selected, compared and formatted, and the page."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from attngraft.report.page import report_html
from attngraft.report.sections import NUMBERED, ROWS, matrix_view, section_views
from attngraft.results.sections import Cell, Column, Matrix, Section, Table
from attngraft.results.study import Interval, StudyResult
from tests.report import studies
from tests.report.test_page import Page


def _study(*by_variant: list[Section]) -> StudyResult:
    """The usual study's first variants, the baseline first, with these sections."""
    variants = studies.usual().variants[: len(by_variant)]
    said = [replace(variant, sections=own) for variant, own in zip(variants, by_variant, strict=True)]
    return replace(studies.usual(), variants=said)


def _classes(*f1: float | None, names: list[str] | None = None) -> list[Section]:
    columns = [
        Column(name="class", kind="text"),
        Column(name="images", kind="count", role="common"),
        Column(name="F1", kind="share", role="compared"),
    ]
    names = names or [f"c{i}" for i in range(len(f1))]
    rows = [[name, 1000 + i, value] for i, (name, value) in enumerate(zip(names, f1, strict=True))]
    return [Section(name="classes", title="Class by class", table=Table(columns=columns, rows=rows))]


def test_variants_stand_side_by_side_as_differences_to_the_baseline():
    (view,) = section_views(_study(_classes(0.5, 0.75, None), _classes(0.625, 0.75, 0.1), _classes(0.4, None, 0.2)))
    found = view.comparison
    assert found is not None
    assert (found.fixed, found.groups) == (["class", "images"], ["F1 %"])
    assert (found.variants, found.baseline, found.caption) == ([0, 1, 2], 0, "")
    assert found.rows == [
        ["c0", "1,000", "50.0", "+12.5", "−10.0"],
        ["c1", "1,001", "75.0", "0.0", "n/a"],
        ["c2", "1,002", "n/a", "n/a", "n/a"],
    ]


def _translations(*texts: str) -> list[Section]:
    columns = [Column(name="source", kind="text"), Column(name="reference", kind="text", role="common")]
    columns.append(Column(name="translation", kind="text", role="compared"))
    rows: list[list[Cell]] = [[f"source {index}", f"<b>{index}</b>", text] for index, text in enumerate(texts)]
    return [Section(name="translations", title="Translations", table=Table(columns=columns, rows=rows))]


def test_texts_are_compared_word_by_word():
    """With a text that is HTML, a missing one, and more rows than are shown."""
    same = [f"the same sentence {index}" for index in range(20)]
    study = _study(_translations("a man <i> walks", *same), _translations("a woman <i> walks & waits", *same))
    (view,) = section_views(study)
    found = view.comparison
    assert found is not None
    assert (found.fixed, found.groups, found.text) == (["source", "reference"], ["translation"], True)
    assert len(found.rows) == 10
    assert found.rows[0][2] == "a man <i> walks"
    assert found.rows[0][3] == "a <mark>woman</mark> &lt;i&gt; walks <mark>&amp; waits</mark>"
    assert "<mark>" not in "".join(found.rows[-1])
    own = view.parts[1].table
    assert own is not None and own.head == ["source", "reference", "translation"]
    page = report_html(study)
    assert "<mark>woman</mark> &lt;i&gt; walks" in page and "<b>0</b>" not in page
    (alone,) = section_views(_study([], _translations("a", "b"), _translations("a", "c")))
    assert alone.comparison is not None and [row[2:] for row in alone.comparison.rows] == [["b", "c"], ["a", "a"]]


def test_each_variant_has_its_own_table_with_its_difference():
    (view,) = section_views(_study(_classes(0.5, 0.75), _classes(0.625, 0.7)))
    own = view.parts[1].table
    assert own is not None
    assert own.head == ["class", "images", "F1 %", "to baseline"]
    assert own.numeric == [False, True, True, True]
    assert own.rows == [["c0", "1,000", "62.5", "+12.5"], ["c1", "1,001", "70.0", "−5.0"]]
    base = view.parts[0].table
    assert base is not None
    assert base.head == ["class", "images", "F1 %"]


def test_rows_are_paired_by_name_not_by_place():
    base, other = _classes(0.5, 0.75, names=["a", "b"]), _classes(0.7, 0.6, names=["b", "a"])
    (view,) = section_views(_study(base, other))
    assert view.comparison is not None
    assert [row[-1] for row in view.comparison.rows] == ["+10.0", "−5.0"]


def test_of_many_rows_those_that_differ_most_are_shown_in_their_order():
    size = 3 * ROWS
    base = _classes(*[0.5] * size)
    moved = _classes(*[0.5 + (0.3 if i % 3 == 1 else 0.001) for i in range(size)])
    (view,) = section_views(_study(base, moved))
    assert view.comparison is not None
    assert [row[0] for row in view.comparison.rows] == [f"c{i}" for i in range(size) if i % 3 == 1]
    assert view.comparison.caption.startswith(f"{ROWS} of {size} rows, those that differ most")
    lowest = section_views(_study(_classes(*[i / size for i in range(size)])))[0].parts[0].table
    assert lowest is not None
    assert [row[0] for row in lowest.rows] == [f"c{i}" for i in range(ROWS)]
    assert "those with the lowest values" in lowest.caption


def test_without_a_baseline_values_stand_side_by_side():
    view = section_views(_study([], _classes(0.5), _classes(0.25)))[0]
    assert view.comparison is not None
    assert (view.comparison.baseline, view.comparison.variants) == (None, [1, 2])
    assert view.comparison.rows == [["c0", "1,000", "50.0", "25.0"]]


def test_one_variant_alone_is_not_compared():
    assert section_views(_study(_classes(0.5)))[0].comparison is None
    assert section_views(_study(_classes(0.5), []))[0].comparison is None


def _with_intervals(study: StudyResult, *by_variant: list[Interval | None]) -> StudyResult:
    variants = [study.variants[0]]
    for variant, intervals in zip(study.variants[1:], by_variant, strict=True):
        (section,) = variant.sections
        assert section.table is not None
        columns = [replace(column, parts_of="f1" if column.name == "F1" else "") for column in section.table.columns]
        sections = [replace(section, table=replace(section.table, columns=columns))]
        variants.append(replace(variant, sections=sections, part_differences={"f1": intervals}))
    (section,) = study.variants[0].sections
    variants[0] = replace(variants[0], sections=[replace(section, table=replace(section.table, columns=columns))])
    return replace(study, variants=variants)


def test_differences_with_intervals():
    """The second row has none; the third row's difference is over other seeds than the means."""
    study = _study(
        _classes(0.5, 0.75, 0.5, names=["a", "b<i>", "c"]), _classes(0.625, 0.7, 0.6, names=["a", "b<i>", "c"])
    )
    point = Interval(point=0.125, low=-0.01, high=0.26), None, Interval(point=-0.02, low=-0.04, high=-0.004)
    study = _with_intervals(study, list(point))
    (view,) = section_views(study)
    assert view.comparison is not None and view.comparison.intervals
    assert view.comparison.rows == [
        ["a", "1,000", "50.0", "+12.5 <small>−1.0 to +26.0</small>"],
        ["b<i>", "1,001", "75.0", "−5.0 <small></small>"],
        ["c", "1,002", "50.0", "−2.0 <small>−4.0 to −0.4</small>"],
    ]
    own = view.parts[1].table
    assert own is not None
    assert own.head[-2:] == ["to baseline", "95% interval"]
    assert [row[-2:] for row in own.rows] == [["+12.5", "−1.0 to +26.0"], ["−5.0", ""], ["−2.0", "−4.0 to −0.4"]]
    html = report_html(study)
    assert "b&lt;i&gt;" in html and "b<i>" not in html
    assert "+12.5 <small>−1.0 to +26.0</small>" in html
    assert "with its 95% interval over seeds and examples" in html
    assert "Rows are not tested individually" not in html


def test_intervals_are_paired_by_name():
    study = _study(_classes(0.5, 0.75, names=["a", "b"]), _classes(0.7, 0.6, names=["b", "a"]))
    study = _with_intervals(study, [None, Interval(point=0.1, low=0.0, high=0.2)])
    comparison = section_views(study)[0].comparison
    assert comparison is not None
    assert [row[-1] for row in comparison.rows] == ["+10.0 <small>0.0 to +20.0</small>", "−5.0 <small></small>"]


def _ordered(*values: float | None, name: str = "near") -> list[Section]:
    rows: list[list[Cell]] = [[f"{2**i} <pixels>", value] for i, value in enumerate(values)]
    columns = [Column(name="distance", kind="text"), Column(name="mIoU", kind="share", role="compared")]
    return [Section(name=name, title="Near", table=Table(columns=columns, rows=rows, ordered=True))]


def test_an_ordered_table_is_also_drawn_as_curves():
    study = _study(_ordered(0.25, None, 0.5), _ordered(0.3, 0.4, 0.75))
    (view,) = section_views(study)
    (drawn,) = view.curves
    root = ElementTree.fromstring(drawn)
    assert [text for text in (each.text for each in root.iter("text")) if "pixels" in str(text)] == [
        "1 <pixels>",
        "2 <pixels>",
        "4 <pixels>",
    ]
    alt = root.get("aria-label", "")
    assert alt == "mIoU %, by distance. At the end: none 50, cb 75."
    assert {"var(--baseline)", "var(--series-0)"} <= set(re.findall(r"var\(--[a-z0-9-]+\)", drawn))
    html = report_html(study)
    assert html.count('id="task-near-curves-1-figure_1"') == 1
    assert "<pixels>" not in html
    assert view.comparison is not None
    assert section_views(_study(_classes(0.5), _classes(0.6)))[0].curves == []
    assert len(section_views(_study([], _ordered(0.1, 0.2)))[0].curves) == 1


def test_numbers_carry_their_difference_to_the_baseline():
    base, other = (
        [Section(name="reliability", title="R", numbers={"ECE": value, "MCE": 0.5})] for value in (0.031, 0.0182)
    )
    (view,) = section_views(_study(base, other))
    assert view.parts[0].numbers == [("ECE", "3.10 %"), ("MCE", "50.00 %")]
    assert view.parts[1].numbers == [("ECE", "1.82 % (−1.28)"), ("MCE", "50.00 % (0.00)")]
    assert view.drawn


def _matrix(counts: np.ndarray) -> Matrix:
    names = [f"c{i}" for i in range(len(counts))]
    return Matrix(rows=names, columns=names, row_axis="true class", column_axis="predicted", counts=counts.tolist())


def test_a_small_matrix_is_a_table():
    view = matrix_view(_matrix(np.array([[9, 1], [0, 0]])), name="m")
    assert [[(count, share) for count, share, _ in row] for row in view.cells] == [[(9, 0.9), (1, 0.1)], [(0, 0)] * 2]
    assert view.cells[0][1][2] == pytest.approx(math.sqrt(0.1), abs=1e-3)
    assert view.drawing is None and view.pairs == []
    assert "c0 as c1: 1" in view.alt
    assert not view.upright


def test_a_large_matrix_is_a_drawing_with_its_largest_pairs():
    counts = np.random.default_rng(0).integers(0, 5, (NUMBERED + 1, NUMBERED + 1))
    view = matrix_view(_matrix(counts), name="m")
    assert view.cells == [] and view.drawing is not None and view.upright
    off = counts * (1 - np.eye(len(counts), dtype=int))
    assert [count for _, _, count in view.pairs] == sorted(off.ravel(), reverse=True)[: len(view.pairs)]


def test_the_page_shows_them():
    study = studies.with_sections()
    html = report_html(study)
    page = Page(html)
    assert {"task-classes", "task-confusion", "task-reliability", "task-pairs"} <= set(page.ids)
    assert html.count("<script") == 1
    assert (
        html.count('class="matrix upright many"') == html.count('class="panel reliability"') == 4
    )  # one variant has no run
    matrix = study.variants[0].sections[1].matrix
    assert matrix is not None
    assert all(str(count) in page.text for row in matrix.counts for count in row)
    assert "ECE 3.00 %" in page.text


@pytest.mark.slow
def test_many_classes_are_shades_and_the_page_says_what_it_leaves_out():
    html = report_html(studies.with_many_classes())
    assert html.count('class="panel shades"') == 5
    text = Page(html).text
    assert f"{ROWS} of 150 rows, those that differ most" in text
    assert f"{ROWS} of 120 rows, the first ones" in text


def test_a_task_that_says_nothing_has_no_sections():
    html = report_html(studies.translation())
    assert section_views(studies.translation()) == []
    assert 'id="task-' not in html


@pytest.mark.slow
def test_a_hundred_runs_of_a_thousand_classes_stay_small():
    """Variants of one seed, each with a thousand classes and the largest matrix that is kept; a fifth of the hundred."""
    study = studies.usual(seeds=1)
    names = [f"Canis lupus familiaris {i}" for i in range(1000)]
    variants = [
        replace(study.variants[min(i, 1)], name=f"cb_s@blocks.{i}", sections=studies.sections(i, names, matrix=50))
        for i in range(20)
    ]
    assert len(report_html(replace(study, variants=variants)).encode()) < 15e6 / 5
