"""Runs and studies that are killed (SIGKILL) in every phase."""

from __future__ import annotations

import re
from collections.abc import Callable

from proof.faults.bench import RUN, STUDY, Bench, expect
from proof.faults.case import Case
from proof.faults.harm import Harm, OnCall, OnWrite, kill
from proof.faults.outcome import updates

KILLED = -9
AGAIN = "repeat the command"


def _run(harm: Harm, *, saved: int) -> Callable[[Bench], str]:
    """Kill a run when its checkpoint contains `saved` updates."""

    def case(bench: Bench) -> str:
        out = bench.folder()
        ended = bench.run(RUN, out, harm)
        expect(ended, code=KILLED)
        assert updates(out) == saved, updates(out)
        return f"{ended}; {bench.goes_on(RUN, out)}"

    return case


def _study(harm: Harm) -> Callable[[Bench], str]:
    def case(bench: Bench) -> str:
        out = bench.new_study()
        ended = bench.run(STUDY, out, harm)
        expect(ended, code=KILLED)
        return f"{ended}; {bench.study_goes_on(STUDY, out)}"

    return case


def _scan(bench: Bench) -> str:
    """Kill a run during the check of all images before training."""
    arguments = [re.sub("num_heads: 2", "num_heads: 2", word) for word in RUN]
    arguments += ["--data", str(bench.images()), "--set", "train.batch_size=16"]
    out = bench.folder()
    ended = bench.run(arguments, out, OnCall(target="attngraft.tasks.images.scan:_scan_image", call=100, action=kill))
    expect(ended, code=KILLED)
    assert not (out / "recipe.yaml").exists()
    again = bench.run(arguments, out)
    expect(again, code=0, says="training for 36 steps")
    from proof.faults.outcome import differences

    found = differences(bench.whole(arguments), out)
    assert not found, found
    return f"{ended}; nothing was started, final result bit-identical"


CASES = (
    Case(
        name="killed-in-scan",
        fault="While images are checked, before training",
        happens="nothing was started",
        kept="the data is unchanged",
        remedy=AGAIN,
        run=_scan,
    ),
    Case(
        name="killed-in-loading",
        fault="While an image is loaded",
        happens="the current update is lost",
        kept="everything up to the last checkpoint",
        remedy=AGAIN,
        run=_run(OnCall(target="attngraft.tasks.images.splits:PixelSplit.__getitem__", call=900, action=kill), saved=4),
    ),
    Case(
        name="killed-in-step",
        fault="In the middle of an update, after the backward pass and before the optimizer step",
        happens="the current update is lost",
        kept="everything up to the last checkpoint",
        remedy=AGAIN,
        run=_run(OnCall(target="attngraft.training.loop:all_finite", call=18, action=kill), saved=16),
    ),
    Case(
        name="killed-in-checkpoint",
        fault="With half of a checkpoint written",
        happens="a temporary file is left behind; the next start deletes it",
        kept="the previous checkpoint",
        remedy=AGAIN,
        run=_run(OnWrite(name="last.pt", moment="half", time=4, action=kill), saved=11),
    ),
    Case(
        name="killed-before-rename",
        fault="Between writing a checkpoint's temporary file and renaming it",
        happens="a temporary file is left behind; the next start deletes it",
        kept="the previous checkpoint",
        remedy=AGAIN,
        run=_run(OnWrite(name="last.pt", moment="rename", time=3, action=kill), saved=8),
    ),
    Case(
        name="killed-in-evaluation",
        fault="During an evaluation, after the epoch's best weights were written",
        happens="the epoch's evaluation is repeated",
        kept="everything up to the last checkpoint",
        remedy=AGAIN,
        run=_run(OnWrite(name="best.safetensors", moment="after", time=2, action=kill), saved=20),
    ),
    Case(
        name="killed-before-checkpoint",
        fault="Between a row of metrics.jsonl and the checkpoint that includes it",
        happens="the row is removed and written again",
        kept="everything up to the last checkpoint",
        remedy=AGAIN,
        run=_run(OnCall(target="attngraft.training.loop:save", call=7, action=kill), saved=20),
    ),
    Case(
        name="killed-at-the-end",
        fault="Between the last checkpoint and finished.json",
        happens="nothing is trained again",
        kept="everything",
        remedy=AGAIN,
        run=_run(OnWrite(name="finished.json", moment="rename", action=kill), saved=33),
    ),
    Case(
        name="killed-between-runs",
        fault="A study, between two of its runs",
        happens="the study ends",
        kept="finished runs, which are not trained again",
        remedy=AGAIN,
        run=_study(OnWrite(name="finished.json", moment="after", time=2, action=kill)),
    ),
    Case(
        name="killed-in-a-run",
        fault="A study, in its second run",
        happens="the study ends",
        kept="finished runs, and the second run up to its last checkpoint",
        remedy=AGAIN,
        run=_study(OnCall(target="attngraft.training.loop:all_finite", call=40, action=kill)),
    ),
    Case(
        name="killed-in-results",
        fault="A study, with half of results.json written",
        happens="results and report are written again",
        kept="every run",
        remedy=AGAIN,
        run=_study(OnWrite(name="results.json", moment="half", action=kill)),
    ),
    Case(
        name="killed-in-report",
        fault="A study, with half of report.html written",
        happens="results and report are written again",
        kept="every run, results.json and results.csv",
        remedy=AGAIN + ", or `attngraft compare --report-only --out FOLDER`",
        run=_study(OnWrite(name="report.html", moment="half", action=kill)),
    ),
)
