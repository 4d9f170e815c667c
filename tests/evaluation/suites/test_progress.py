"""Who is told how suites get on."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from attngraft.evaluation.suites.progress import SuiteBar, SuiteLog


def test_a_bar_on_a_terminal() -> None:
    sheet = io.StringIO()
    with SuiteBar(Console(file=sheet, force_terminal=True, width=100)) as bar:
        bar.on_examples(3)  # before anything began
        bar.on_suite("Dropped [patches]", conditions=4, done=1, examples=10)
        bar.on_condition("a condition")
        bar.on_examples(10)
        bar.on_outcome("a condition", "top1 0.5")
        bar.on_failure("Dropped [patches]", "cat/[0].png: cannot be read")
        bar._bars.refresh()
        shown = sheet.getvalue()
        bar.on_suite("Another", conditions=1, done=0, examples=10)
        assert len(bar._bars.tasks) == 1
    assert "Dropped [patches]" in shown and "20/40" in shown and "a condition" in shown
    assert "Dropped [patches] failed: cat/[0].png: cannot be read\n" in shown


def test_lines_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="attngraft"):
        log = SuiteLog(every=-1.0)
        log.on_suite("Noise", conditions=17, done=3, examples=10)
        log.on_condition("blur")
        log.on_examples(4)
        log.on_outcome("blur", "top1 0.25")
        log.on_failure("Noise", "no memory")
    assert caplog.messages == [
        "Noise: 17 conditions, 3 already finished",
        "Noise: condition 4 of 17 (blur), 4 of 10 examples",
        "Noise failed: no memory",
    ]
