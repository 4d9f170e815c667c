"""Counts of long loops: where they are shown, and as what."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from attngraft import counting
from attngraft.counting import CountBars, CountLines, count, count_display, counted, counts_shown


def test_counts_reach_the_display_around_them() -> None:
    seen: list[tuple[str, int, int]] = []
    count("nowhere", 1, 2)
    with counts_shown(lambda *each: seen.append(each)):
        assert list(counted("ab", "letters")) == ["a", "b"]
        assert next(counted(iter("ab"), "letters", total=5)) == "a"
    count("nowhere", 1, 2)
    assert seen == [("letters", 0, 2), ("letters", 1, 2), ("letters", 2, 2), ("letters", 0, 5)]


def test_lines_of_loops_that_take_long(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    calls = [(0.0, 0, 10), (4.0, 1, 10), (8.0, 2, 10), (12.0, 3, 10), (20.0, 5, 10), (40.0, 10, 10)]
    calls += [(50.0, 0, 1), (51.0, 1, 1)]  # short
    times = iter([time for time, _, _ in calls])
    monkeypatch.setattr(counting.time, "monotonic", lambda: next(times))
    lines = CountLines(every=10, label="run")
    with caplog.at_level(logging.INFO, logger="attngraft"):
        for _, done, total in calls:
            lines("variants timed", done, total)
    assert caplog.messages == [
        "run: variants timed: 1 of 10, about 36 s left",
        "run: variants timed: 5 of 10, about 20 s left",
    ]


def test_bars_of_loops_that_run() -> None:
    text = io.StringIO()
    bars = CountBars(count_display(Console(file=text, force_terminal=True, width=100)))
    with bars.bars:
        bars("variants [timed]", 0, 4)
        bars.bars.refresh()
        bars("variants [timed]", 1, 4)
        bars("inner", 0, 2)
        bars.bars.refresh()
        assert bars
        bars("variants [timed]", 4, 4)
        bars.clear()
        assert not bars and not bars.bars.tasks
    shown = text.getvalue()
    assert "variants [timed]" in shown and "1/4" in shown and "0 s left" in shown and "inner" in shown
