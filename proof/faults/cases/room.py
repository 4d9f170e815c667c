"""Files that cannot be written: a limit on their size, or a full disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from proof.faults.bench import RUN, STUDY, Bench, expect
from proof.faults.case import Case
from proof.faults.harm import FillDisk, LimitFiles, OnWrite
from proof.faults.outcome import updates

ROOM = "free some space and repeat the command"
LIMIT = "raise the limit and repeat the command"


def _limit(name: str, *, time: int, size: int, saved: int) -> Callable[[Bench], str]:
    """Limit the files of a run to `size` bytes from the first write of a file of this name on."""

    def case(bench: Bench) -> str:
        out = bench.folder()
        harm = OnWrite(name=name, moment="before", time=time, action=LimitFiles(size))
        ended = bench.run(RUN, out, harm)
        expect(ended, code=1, says=rf"/{name}: cannot be written: the file would exceed .*; raise the limit")
        assert updates(out) == saved, updates(out)
        return f"{ended}; {bench.goes_on(RUN, out)}"

    return case


def _full(name: str, *, time: int, saved: int) -> Callable[[Bench], str]:
    """Fill the disk of a run before a file of this name is written."""

    def case(bench: Bench) -> str:
        with bench.small_disk(4) as disk:
            out = disk / "run"
            harm = OnWrite(name=name, moment="before", time=time, action=FillDisk(disk))
            ended = bench.run(RUN, out, harm)
            expect(ended, code=1, says=rf"/{name}: cannot be written: the disk is full .*; free some space and rerun")
            assert updates(out) == saved, updates(out)
            (disk / "filler").unlink()
            return f"{ended}; {bench.goes_on(RUN, out)}"

    return case


def _full_from_the_start(bench: Bench) -> str:
    with bench.small_disk(4) as disk:
        FillDisk(disk)()
        ended = bench.run(RUN, disk / "run")
        expect(ended, code=1, says="(the disk is full|No space left)")
        (disk / "filler").unlink()
        return f"{ended}; {bench.goes_on(RUN, disk / 'run')}"


def _study(name: str) -> Callable[[Bench], str]:
    def case(bench: Bench) -> str:
        made = bench.new_study()
        with bench.small_disk(16) as disk:
            out = Path(disk) / "study"
            made.rename(made.with_name("seed"))
            out.mkdir()
            (out / "cost.json").write_bytes((made.with_name("seed") / "cost.json").read_bytes())
            ended = bench.run(STUDY, out, OnWrite(name=name, moment="before", action=FillDisk(disk)))
            expect(ended, code=1, says=rf"/{name}: cannot be written: the disk is full .*; free some space and rerun")
            (disk / "filler").unlink()
            return f"{ended}; {bench.study_goes_on(STUDY, out)}"

    return case


CASES = (
    Case(
        name="limit-checkpoint",
        fault="A checkpoint exceeds the file size limit (`ulimit -f`)",
        happens="the run fails and names file, reason and remedy",
        kept="the previous checkpoint",
        remedy=LIMIT,
        run=_limit("last.pt", time=4, size=50_000, saved=11),
    ),
    Case(
        name="limit-metrics",
        fault="The same for metrics.jsonl",
        happens="the run fails and names file, reason and remedy",
        kept="everything up to the last checkpoint; the old metrics.jsonl is intact",
        remedy=LIMIT,
        run=_limit("metrics.jsonl", time=3, size=300, saved=20),
    ),
    Case(
        name="limit-predictions",
        fault="The same for predictions.npz",
        happens="the run fails and names file, reason and remedy",
        kept="everything up to the last checkpoint",
        remedy=LIMIT,
        run=_limit("predictions.npz", time=1, size=300, saved=32),
    ),
    Case(
        name="full-from-the-start",
        fault="The disk is full before the first file",
        happens="the run fails and names the reason",
        kept="nothing was started",
        remedy=ROOM,
        run=_full_from_the_start,
    ),
    Case(
        name="full-checkpoint",
        fault="The disk is full when a checkpoint is written",
        happens="the run fails and names file, reason, free space, and remedy; the unfinished file is deleted",
        kept="the previous checkpoint",
        remedy=ROOM,
        run=_full("last.pt", time=4, saved=11),
    ),
    Case(
        name="full-metrics",
        fault="The same when metrics.jsonl is written",
        happens="the same",
        kept="everything up to the last checkpoint; the old metrics.jsonl is intact",
        remedy=ROOM,
        run=_full("metrics.jsonl", time=3, saved=20),
    ),
    Case(
        name="full-predictions",
        fault="The same when predictions.npz is written",
        happens="the same",
        kept="everything up to the last checkpoint",
        remedy=ROOM,
        run=_full("predictions.npz", time=1, saved=32),
    ),
    Case(
        name="full-results",
        fault="The same when a study's results.json is written",
        happens="the study fails and names file, reason and remedy",
        kept="every run",
        remedy=ROOM,
        run=_study("results.json"),
    ),
    Case(
        name="full-report",
        fault="The same when its report.html is written",
        happens="the study fails and names file, reason and remedy",
        kept="every run, results.json and results.csv",
        remedy=ROOM,
        run=_study("report.html"),
    ),
)
