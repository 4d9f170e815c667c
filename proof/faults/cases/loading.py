"""Processes that load data, killed."""

from __future__ import annotations

from proof.faults.bench import RUN, Bench, expect
from proof.faults.case import Case
from proof.faults.harm import OnCall, kill
from proof.faults.outcome import updates


def _killed(bench: Bench) -> str:
    out = bench.folder()
    harm = OnCall(target="attngraft.tasks.images.splits:PixelSplit.__getitem__", call=700, action=kill, of="worker")
    ended = bench.run([*RUN, "--set", "train.workers=2"], out, harm)
    expect(ended, code=1, says="a process that loads data is gone .* memory ran short, .* --set train.workers=1")
    assert updates(out) >= 4
    return f"{ended}; {bench.goes_on([*RUN, '--set', 'train.workers=1'], out, whole=RUN)}"


CASES = (
    Case(
        name="worker-killed",
        fault="A process that loads data is killed (most often for want of memory)",
        happens="the run ends with an error that names the likely cause",
        kept="all up to the last checkpoint",
        remedy="repeat the command, with fewer `train.workers` if need be: their number changes no outcome",
        run=_killed,
        quick=True,
    ),
)
