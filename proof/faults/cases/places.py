"""Clocks that are set back, and folders that are moved."""

from __future__ import annotations

import os

from proof.faults.bench import RUN, STUDY, Bench, expect
from proof.faults.case import Case
from proof.faults.harm import ClockBackwards, FromTheStart, OnCall, kill
from proof.faults.outcome import differences, seconds, updates

STEP = "attngraft.training.loop:all_finite"


def _clock(bench: Bench) -> str:
    out = bench.folder()
    backwards = FromTheStart(action=ClockBackwards())
    expect(bench.run(RUN, out, backwards, OnCall(target=STEP, call=18, action=kill)), code=-9)
    for age, path in enumerate(sorted(out.rglob("*"))):  # the previous checkpoint appears newer than the last one
        os.utime(path, (10**9 + 1000 * age, 10**9 + 1000 * age))
    ended = bench.run(RUN, out, backwards)
    expect(ended, code=0, says="resuming after step 16 of 33")
    found = differences(bench.whole(RUN), out)
    assert not found, found
    assert all(each > 0 for each in seconds(out)), seconds(out)
    events = list((out / "tensorboard").iterdir())
    assert len(events) == 1, events
    return "16 of 33 updates kept, no negative duration, final result bit-identical"


def _moved_run(bench: Bench) -> str:
    out = bench.folder()
    expect(bench.run(RUN, out, OnCall(target=STEP, call=18, action=kill)), code=-9)
    moved = bench.folder("somewhere else")
    out.rename(moved)
    assert updates(moved) == 16
    return bench.goes_on(RUN, moved)


def _moved_study(bench: Bench) -> str:
    out = bench.new_study()
    expect(bench.run(STUDY, out, OnCall(target=STEP, call=40, action=kill)), code=-9)
    moved = bench.folder("somewhere else")
    out.rename(moved)
    report = bench.run(("compare", "--report-only"), moved)
    expect(report, code=1, says="some runs of the study in .*somewhere else are missing")
    assert not out.exists()
    words = bench.study_goes_on(STUDY, moved)
    assert not out.exists()
    return words


CASES = (
    Case(
        name="clock",
        fault="The clock is set back repeatedly, so that file times are in the wrong order",
        happens="none: durations come from a monotonic clock, and the order of files from their numbers",
        kept="everything",
        remedy="nothing to do",
        run=_clock,
    ),
    Case(
        name="moved-run",
        fault="The folder of an unfinished run is moved or renamed",
        happens="none: the folder does not contain its own path",
        kept="everything",
        remedy="repeat the command with the new `--out`",
        run=_moved_run,
    ),
    Case(
        name="moved-study",
        fault="The folder of an unfinished study is moved or renamed",
        happens="none: the study does not depend on its own path",
        kept="everything",
        remedy="repeat the command with the new `--out`",
        run=_moved_study,
    ),
)
