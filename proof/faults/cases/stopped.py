"""Runs and studies that get a signal to stop, followed by SIGKILL after ten seconds."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from proof.faults.bench import RUN, STUDY, STUDY_RUNS, Bench, expect
from proof.faults.case import Case
from proof.faults.harm import InWorkers, OnCall, Stand, StandTogether
from proof.faults.outcome import STEPS, updates
from proof.faults.process import left

LOAD = "attngraft.tasks.images.splits:PixelSplit.__getitem__"
AGAIN = "repeat the command"
GRACE = 10.0


def _stopped(
    number: int, *, target: str, call: int, seconds: float, saved: int, more: Sequence[str] = (), worker: bool = False
) -> Callable[[Bench], str]:
    """Send the signal during the `call`-th call of `target`, which takes `seconds`; the run must save `saved` updates."""

    def case(bench: Bench) -> str:
        out = bench.folder()
        here = out.with_name("here")
        harm = OnCall(
            target=target, call=call, action=Stand(here, seconds=seconds), of="worker" if worker else "trainer"
        )
        running = bench.start([*RUN, *more], out, harm)
        running.reach(here)
        while worker and updates(out) < saved:  # until the trainer has used all loaded batches
            time.sleep(0.05)
        ended = running.stop(number, grace=GRACE)
        expect(ended, code=130, says="saved in epoch .* rerun the same command to resume")
        assert updates(out) == saved, updates(out)
        return f"{ended} after {ended.seconds:.1f} s; {bench.goes_on(RUN, out)}"

    return case


def _before(bench: Bench) -> str:
    out = bench.folder()
    here = out.with_name("here")
    running = bench.start(RUN, out, OnCall(target="attngraft.training.loop:prepare_run", action=Stand(here)))
    running.reach(here)
    ended = running.stop(signal.SIGTERM, grace=GRACE)
    expect(ended, code=-signal.SIGTERM)
    return f"{ended} after {ended.seconds:.1f} s; {bench.goes_on(RUN, out)}"


def _program(bench: Bench) -> str:
    """Stop a program that was started in a new interpreter instead of a fork, and wait for its end."""
    out, epochs = bench.folder(), 12
    arguments = [*RUN, "--epochs", str(epochs)]
    command = [sys.executable, "-m", "attngraft", *arguments, "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        while not updates(out) and program.poll() is None:
            time.sleep(0.02)
        begun = time.monotonic()
        program.terminate()
        try:
            _, said = program.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            program.kill()
            raise AssertionError(f"the program is still running {GRACE} s after the signal") from None
        seconds = time.monotonic() - begun
    assert program.returncode == 130, said
    assert "rerun the same command to resume" in said
    return f"exit 130 after {seconds:.1f} s; {bench.goes_on(arguments, out, total=epochs * STEPS)}"


def _twice(bench: Bench) -> str:
    out = bench.folder()
    here = out.with_name("here")
    running = bench.start(RUN, out, OnCall(target="attngraft.training.loop:all_finite", call=7, action=Stand(here)))
    running.reach(here)
    running.send(signal.SIGINT)
    time.sleep(0.3)
    ended = running.stop(signal.SIGINT)
    expect(ended, code=130, says="interrupted")
    assert updates(out) == 4
    return f"{ended} after {ended.seconds:.1f} s; {bench.goes_on(RUN, out)}"


def _study(bench: Bench) -> str:
    out = bench.new_study()
    here = out.with_name("here")
    harm = OnCall(target="attngraft.training.loop:all_finite", call=27, action=Stand(here, seconds=1))
    running = bench.start(STUDY, out, harm)
    running.reach(here)
    ended = running.stop(signal.SIGTERM, grace=GRACE)
    expect(ended, code=130, says="was stopped and everything is kept: rerun the same command to resume")
    assert updates(out / "runs" / "cb_s" / "seed0") == 5
    return f"{ended} after {ended.seconds:.1f} s; {bench.study_goes_on(STUDY, out)}"


def _jobs(bench: Bench) -> str:
    """Send the signal only to the command, whose two processes are each in the seventh update of a run."""
    out, jobs = bench.new_study(), (*STUDY, "--jobs", "2")
    here = out.with_name("here")
    harm = OnCall(target=STEP, call=7, action=StandTogether(here, count=2, seconds=1))
    running = bench.start(jobs, out, InWorkers(harm))
    running.reach(here, within=300)  # two new interpreters must import torch first
    offspring = running.offspring()
    assert len(offspring) >= 2, offspring
    ended = running.stop(signal.SIGTERM, grace=GRACE)
    expect(ended, code=130, says="was stopped and everything is kept: rerun the same command to resume")
    assert not left(offspring), left(offspring)
    saved = [updates(out / "runs" / name / "seed0") for name in STUDY_RUNS]
    assert saved == [7, 7, 0], saved
    return f"{ended} after {ended.seconds:.1f} s, no process left; {bench.study_goes_on(STUDY, out)}"


SAVES = "the run saves after the current update and exits with 130"
STEP = "attngraft.training.loop:all_finite"

CASES = (
    Case(
        name="sigterm-before",
        fault="SIGTERM before training, while data is opened and the model is built",
        happens="the run ends at once",
        kept="earlier checkpoints; nothing was started",
        remedy=AGAIN,
        run=_before,
    ),
    Case(
        name="sigterm-in-step",
        fault="SIGTERM during an update (a scheduler's warning, SIGKILL 10 s later)",
        happens=SAVES,
        kept="everything",
        remedy=AGAIN,
        run=_stopped(signal.SIGTERM, target=STEP, call=7, seconds=1, saved=7),
    ),
    Case(
        name="sigterm-program",
        fault="SIGTERM at any time until the program has exited",
        happens="the run saves, and the program exits without Python's regular shutdown, which would take seconds",
        kept="everything",
        remedy=AGAIN,
        run=_program,
    ),
    Case(
        name="sigterm-slow-data",
        fault="SIGTERM while training waits for an image that takes a minute",
        happens="the run saves without waiting and exits with 130",
        kept="everything",
        remedy=AGAIN,
        run=_stopped(signal.SIGTERM, target=LOAD, call=900, seconds=60, saved=7),
    ),
    Case(
        name="sigterm-slow-workers",
        fault="SIGTERM while training waits for an image from one of two loading processes",
        happens="the run ends these processes without waiting, saves and exits with 130",
        kept="everything",
        remedy=AGAIN,
        run=_stopped(
            signal.SIGTERM, target=LOAD, call=600, seconds=60, saved=8, more=("--set", "train.workers=2"), worker=True
        ),
    ),
    Case(
        name="sigterm-slow-evaluation",
        fault="SIGTERM while an evaluation waits for an image",
        happens="the run saves without the evaluation and exits with 130; the evaluation is repeated",
        kept="everything",
        remedy=AGAIN,
        run=_stopped(signal.SIGTERM, target=LOAD, call=1500, seconds=60, saved=11),
    ),
    Case(
        name="sighup",
        fault="SIGHUP (the terminal is closed; under `nohup` it is ignored)",
        happens=SAVES,
        kept="everything",
        remedy=AGAIN,
        run=_stopped(signal.SIGHUP, target=STEP, call=7, seconds=1, saved=7),
    ),
    Case(
        name="ctrl-c",
        fault="Ctrl-C",
        happens=SAVES,
        kept="everything",
        remedy=AGAIN,
        run=_stopped(signal.SIGINT, target=STEP, call=7, seconds=1, saved=7),
    ),
    Case(
        name="ctrl-c-twice",
        fault="Ctrl-C a second time",
        happens="the run exits at once with 130, without saving",
        kept="everything up to the last checkpoint",
        remedy=AGAIN,
        run=_twice,
    ),
    Case(
        name="sigterm-study",
        fault="SIGTERM to a study",
        happens="the current run saves, and the study exits with 130",
        kept="everything",
        remedy=AGAIN + ", or report on finished runs: `attngraft compare --report-only --out FOLDER`",
        run=_study,
    ),
    Case(
        name="sigterm-jobs",
        fault="SIGTERM to the command of a study with `--jobs 2`, but not to its processes",
        happens="each active run saves, its processes exit, and the study exits with 130",
        kept="everything",
        remedy=AGAIN,
        run=_jobs,
    ),
)
