"""Variants stopped early, in terminal, CSV and page."""

from __future__ import annotations

from dataclasses import replace

from attngraft.report.page import halving_rows, report_html
from attngraft.results.storage import csv_rows
from attngraft.results.study import HalvingResult, Standing, StudyResult
from attngraft.results.wording import headline, stopped_text

from .studies import HOSTILE, table_text, usual


def halved(*, last: str = "horizontal") -> StudyResult:
    """Two of four variants go on from epoch 4, where `vertical` and another were stopped."""
    result = usual()
    scores = {"cb": 0.61, "cb_s": 0.66, "vertical": 0.5, last: None}
    halving = HalvingResult(
        eta=2,
        rungs=[4],
        epochs=result.epochs,
        metric="top1",
        higher_is_better=True,
        standings=[
            Standing(variant=name, epoch=4, score=score, promoted=name in ("cb", "cb_s"))
            for name, score in scores.items()
        ],
        stopped={"vertical": 4, last: 4},
    )
    variants = [
        replace(v, name=last, runs=[], last={}, best={}, difference=None, cost=None) if v.name == "horizontal" else v
        for v in result.variants
    ]
    variants = [
        replace(v, runs=[], last={}, best={}, difference=None, cost=None) if v.name == "vertical" else v
        for v in variants
    ]
    return replace(result, variants=variants, halving=halving)


def test_rows_are_ordered_by_epochs_and_rank() -> None:
    result = halved()
    rows = halving_rows(result)
    names = [result.variants[row["index"]].name for row in rows]
    assert names == ["cb_s", "cb", "vertical", "horizontal"]
    assert [row["rungs"][0]["rank"] for row in rows] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]
    assert [row["rungs"][0]["score"] for row in rows] == ["66.00", "61.00", "50.00", "n/a"]
    assert [row["outcome"] for row in rows] == ["completed"] * 2 + ["stopped after epoch 4"] * 2
    assert halving_rows(usual()) == []
    assert stopped_text(result, "cb") == ""


def test_terminal_and_csv() -> None:
    result = halved()
    text = table_text(result)
    assert text.count("stopped after epoch 4") == 2
    assert "no finished run" not in text
    assert headline(result).endswith("2 variants were stopped early.")
    stopped = {row["variant"]: row["stopped_after_epoch"] for row in csv_rows(result)}
    assert stopped == {"none": None, "cb": None, "cb_s": None, "horizontal": 4, "vertical": 4}
    assert "stopped_after_epoch" not in csv_rows(usual())[0]


def test_the_page() -> None:
    page = report_html(halved(last=HOSTILE))
    section = page[page.index('<section id="halving">') :].partition("</section>")[0]
    assert "2 of 4" in section
    assert section.count('title="continued"') == 2
    assert "<script>" not in section
    assert "alert" in section
    assert page.count("stopped early</span>") == 2 + 2
    assert "not compared" not in page
    assert "Stopped after epoch 4: other variants scored better." in page
    assert "halving" not in report_html(usual())
