"""What a terminal and a log show of a study."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from rich.console import Console

from attngraft.study import compare
from attngraft.study.plan import resolve_runs
from attngraft.study.progress import LiveStudy, StudyProgress, describe_plan

from .fakes import FakeTrainer, study, tools


def test_log_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="attngraft"):
        compare(study(tmp_path), tools=tools(FakeTrainer(fails={("cb_s", 1)})))
    text = caplog.text
    assert "6 runs of 3 epochs (3 variants, 2 seeds); about 24 s; one at a time, with 1 CPU thread each" in text
    assert "run 2/6: cb_s, seed 0 starts" in text
    assert "baseline, seed 0: finished, top1" in text
    assert "cb_s, seed 1: failed, RuntimeError: out of luck" in text
    assert "\x1b" not in text


def test_live_table(tmp_path: Path) -> None:
    sheet = io.StringIO()
    console = Console(file=sheet, force_terminal=True, width=100)
    config = study(tmp_path, grafts=[{"name": "[b]odd[/b]", "spec": "cb_s"}])
    with LiveStudy(console) as live:
        compare(config, progress=live, tools=tools(FakeTrainer(fails={("cb_s", 1)})))
    text = sheet.getvalue()
    for part in ("[b]odd[/b]", "seed 1", "waiting", "top1", "failed", "out of luck", "4 runs of 3 epochs"):
        assert part in text


def test_the_plan_in_words(tmp_path: Path) -> None:
    config = study(tmp_path)
    trainer = FakeTrainer(stops=("cb_s", 0))
    with pytest.raises(KeyboardInterrupt):
        compare(config, tools=tools(trainer))
    runs = resolve_runs(config).runs
    assert [run.epochs_left for run in runs[:3]] == [0, 2, 3]
    words = describe_plan(runs, seconds=100.0)
    assert (
        words
        == "6 runs of 3 epochs (3 variants, 2 seeds); 1 finished before, 1 started before; about 2 min for the rest"
    )
    assert describe_plan([], seconds=None) == "no runs"


def test_several_runs_at_a_time(tmp_path: Path) -> None:
    """A bar for each that is at work; a pause keeps what the cell says; what does not fit is counted."""
    sheet = io.StringIO()
    console = Console(file=sheet, force_terminal=True, width=100, height=14)
    runs = resolve_runs(study(tmp_path, grafts=["cb_s", "cb"], seeds=1)).runs
    with LiveStudy(console) as live:
        live.on_plan(runs, seconds=60.0, epochs=9.0, extra="two at a time")
        rows = [live.on_run(run) for run in runs[:2]]
        for row in rows:
            row.on_start(6, done_steps=0, epochs=3, steps_per_epoch=2)
        rows[0].on_epoch({"epoch": 1, "val/top1": 0.5})
        live._live.refresh()
        together = sheet.getvalue()
        live.on_run_end(runs[0], "paused", "")
        live.on_run_end(runs[1], "stopped", "")
        live.on_end()
    assert "two at a time" in together
    assert together.count("0/6") >= 2
    assert "study: " in together
    last = sheet.getvalue().rpartition("variant")[2]
    assert "1/3  top1 0.5" in last
    assert "stopped" in last
    assert "0/6" not in last


def test_a_table_that_does_not_fit_shows_who_is_at_work(tmp_path: Path) -> None:
    sheet = io.StringIO()
    console = Console(file=sheet, force_terminal=True, width=100, height=10)
    grafts = ["cb", "cb_s", "horizontal", "vertical", "cb@blocks.0", "cb@blocks.1", "cb_s@blocks.0", "cb_s@blocks.1"]
    runs = resolve_runs(study(tmp_path, grafts=grafts, seeds=1)).runs
    with LiveStudy(console) as live:
        live.on_plan(runs, seconds=None, epochs=27.0)
        live.on_run(runs[-1])
        live._live.refresh()
        text = sheet.getvalue()
    assert "cb_s@blocks.1" in text
    assert "and 5 variants more" in text


def test_long_stages_show_how_much_is_done(tmp_path: Path) -> None:
    sheet = io.StringIO()
    console = Console(file=sheet, force_terminal=True, width=100)
    with LiveStudy(console) as live:
        live.on_stage("timing a few steps of every variant")
        live.on_count("variants timed", 1, 12)
        live._live.refresh()
        shown = sheet.getvalue()
        live.on_stage("writing the report")
        live._live.refresh()
    assert "variants timed" in shown and "1/12" in shown and " left" in shown
    assert "1/12" not in sheet.getvalue().rpartition("writing the report")[2]


def test_variants_are_counted_when_they_are_checked(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []

    class Counts(StudyProgress):
        def on_count(self, description: str, done: int, total: int) -> None:
            seen.append((description, done, total))

    compare(study(tmp_path), progress=Counts(), tools=tools(FakeTrainer()))
    assert [each for each in seen if each[0] == "variants checked"] == [("variants checked", i, 3) for i in range(4)]


def test_folds_are_counted(tmp_path: Path) -> None:
    sheet = io.StringIO()
    runs = resolve_runs(study(tmp_path, grafts=["cb"], seeds=1, folds=3)).runs
    with LiveStudy(Console(file=sheet, force_terminal=True, width=100, height=14)) as live:
        live.on_plan(runs, seconds=None, epochs=18.0)
        for run, outcome in zip(runs[:3], ("finished", "finished", "failed"), strict=True):
            live.on_run(run)
            live.on_run_end(run, outcome, "top1 0.5")  # type: ignore[arg-type]
    last = sheet.getvalue().rpartition("variant")[2]
    assert "1/3 folds, 1 failed" in last
    assert "1/3 folds" in last.rpartition("cb")[2]
    assert describe_plan(runs, seconds=None) == "6 runs of 3 epochs (2 variants, 1 seed, 3 folds)"
