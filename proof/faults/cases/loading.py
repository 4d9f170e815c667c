"""Data loading processes that are killed."""

from __future__ import annotations

import shutil

from proof.faults.bench import RUN, Bench, expect
from proof.faults.case import Case
from proof.faults.harm import OnCall, kill
from proof.faults.outcome import updates

TWO = (*RUN, "--set", "train.workers=2")
ONE = (*RUN, "--set", "train.workers=1")


def _killed(bench: Bench) -> str:
    out, other = bench.folder(), bench.folder()
    harm = OnCall(target="attngraft.tasks.images.splits:PixelSplit.__getitem__", call=700, action=kill, of="worker")
    ended = bench.run(TWO, out, harm)
    expect(ended, code=1, says="a process that loads data died .* memory ran out, .* --set train.workers=1")
    assert updates(out) >= 4
    shutil.copytree(out, other)
    same = bench.goes_on(TWO, out, whole=RUN)
    assert bench.goes_on(ONE, other, whole=RUN) == same
    return f"{ended}; {same}, by the same command and by one worker"


CASES = (
    Case(
        name="worker-killed",
        fault="A process that loads data is killed (usually out of memory)",
        happens="the run fails with an error that names the likely cause",
        kept="everything up to the last checkpoint",
        remedy="repeat the command, with fewer `train.workers` if needed; their number does not affect the results",
        run=_killed,
    ),
)
