"""Two processes in one folder, and locks that killed processes left behind."""

from __future__ import annotations

import json
import os
import socket

from proof.faults.bench import RUN, STUDY, Bench, expect
from proof.faults.case import Case
from proof.faults.harm import Answer, FromTheStart, OnCall, Stand, kill
from proof.faults.outcome import differences, study_differences

STEP = "attngraft.training.loop:all_finite"


def _two_runs(bench: Bench) -> str:
    out = bench.folder()
    here, go = out.with_name("here"), out.with_name("go")
    first = bench.start(RUN, out, OnCall(target=STEP, call=18, action=Stand(here, go)))
    first.reach(here)
    second = bench.run(RUN, out)
    expect(second, code=1, says=r"another run is using this folder \(process \d+ on this machine")
    go.touch()
    ended = first.finish()
    expect(ended, code=0)
    found = differences(bench.whole(RUN), out)
    assert not found, found
    return f"the second: {second}; the first: {ended}, bit-identical"


def _two_studies(bench: Bench) -> str:
    out = bench.new_study()
    here, go = out.with_name("here"), out.with_name("go")
    first = bench.start(STUDY, out, OnCall(target=STEP, call=27, action=Stand(here, go)))
    first.reach(here)
    second = bench.run(STUDY, out)
    expect(second, code=1, says=r"another run is using this folder \(process \d+ on this machine")
    go.touch()
    ended = first.finish()
    expect(ended, code=0)
    found = study_differences(bench.whole(STUDY), out)
    assert not found, found
    return f"the second: {second}; the first: {ended}, bit-identical"


def _left(bench: Bench) -> str:
    """Resume with the lock of a killed run: unchanged, with the ID of another running process, and of another host."""
    out = bench.folder()
    said = []
    living = {"process": os.getpid(), "host": socket.gethostname()}
    for call, note in ((3, None), (5, living), (4, {"process": 1, "host": "elsewhere"})):
        if note is not None:
            (out / ".lock").write_text(json.dumps(note))
        ended = bench.run(RUN, out, OnCall(target=STEP, call=call, action=kill))
        expect(ended, code=-9)
        said.append(ended.plain)
    assert "taken over from process 1 on host elsewhere" in said[2]
    assert "taken over" not in said[0] + said[1]
    return f"taken over 3 of 3 times; {bench.goes_on(RUN, out)}"


def _no_locks(bench: Bench) -> str:
    out = bench.folder()
    unknown = FromTheStart(action=Answer(target="attngraft.training.lock:_acquire", value="unsupported"))
    expect(bench.run(RUN, out, unknown, OnCall(target=STEP, call=7, action=kill)), code=-9)
    # this run ignores the dead process of this host
    expect(bench.run(RUN, out, unknown, OnCall(target=STEP, call=3, action=kill)), code=-9)
    note = (out / ".lock").read_text()
    (out / ".lock").write_text(json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
    expect(bench.run(RUN, out, unknown), code=1, says="another run is using this folder")
    (out / ".lock").write_text(json.dumps(json.loads(note) | {"host": "elsewhere"}))
    ended = bench.run(RUN, out, unknown)
    expect(ended, code=1, says=r"host elsewhere was using .* if the process has ended, delete .*\.lock")
    (out / ".lock").unlink()
    return f"{ended}; {bench.goes_on(RUN, out)}"


CASES = (
    Case(
        name="two-runs",
        fault="A second process is started in the folder of a run",
        happens="the second fails and names the process and host that are using the folder",
        kept="the first continues undisturbed",
        remedy="wait, or choose another folder",
        run=_two_runs,
    ),
    Case(
        name="two-studies",
        fault="The same in the folder of a study",
        happens="the second fails and names the process and host that are using the folder",
        kept="the first continues undisturbed",
        remedy="wait, or choose another folder",
        run=_two_studies,
    ),
    Case(
        name="stale-lock",
        fault="A killed process left a lock: on this host, even if its process ID is in use again, or on another host",
        happens="the lock is taken over, since the system has released it; with a warning if it belonged to another host",
        kept="everything up to the last checkpoint",
        remedy="nothing to do",
        run=_left,
    ),
    Case(
        name="no-locks",
        fault="The file system does not support locks",
        happens="the content of `.lock` decides: a dead process of this host is ignored, one of another host is respected",
        kept="everything up to the last checkpoint",
        remedy="if the other host's process has ended, delete `.lock`, as the message says",
        run=_no_locks,
    ),
)
