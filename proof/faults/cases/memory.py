"""Batches that do not fit into memory."""

from __future__ import annotations

import json
import re
from pathlib import Path

from proof.faults.bench import NO_COSTS, RUN, SMALL, STUDY, STUDY_RUNS, UPDATES, Bench, expect
from proof.faults.case import Case, NotHere
from proof.faults.harm import FromTheStart, LackOfMemory, LimitMemory, OnCall, kill
from proof.faults.outcome import STEPS, differences, updates

AUTO = (*RUN, "--auto-batch")
CUT = (*RUN, "--set", "train.accumulate=4")  # micro-batches of 32

#: one hidden layer of 128 examples takes 64 MB, and an update stores several of them
_WIDE = (
    "{img_size: 8, patch_size: 1, in_chans: 1, embed_dim: 16, depth: 1, num_heads: 2, mlp_ratio: 128, drop_rate: 0.1}"
)
LARGE = ("train", *SMALL, "--set", f"host.args={_WIDE}", "--epochs", "1", "--set", "train.eval_batch_size=30")
SHORT = OnCall(target="attngraft.training.update:Update.losses", action=LimitMemory(150 * 2**20))

EVALUATED_BY_90 = (*RUN, "--set", "train.eval_batch_size=90")


def _training(bench: Bench) -> str:
    out = bench.folder()
    ended = bench.run(RUN, out, FromTheStart(action=LackOfMemory(training=40)))
    expect(ended, code=1, says=r"a batch of 128 examples does not fit .* 32 fit: use --set train.accumulate=4")
    assert updates(out) == 0
    return f"{ended}; with the suggested settings: {bench.goes_on(CUT, out)}"


def _real(bench: Bench) -> str:
    """Limit the real memory, so that the allocator fails, also while smaller batches are tried and used."""
    if not Path("/proc/self/statm").exists():
        raise NotHere("the memory of a process is read from /proc, which this system lacks")
    out, auto = bench.folder(), bench.folder()
    ended = bench.run(LARGE, out, SHORT)
    expect(ended, code=1, says=r"a batch of 128 examples does not fit .* update \(.*can't allocate memory")
    found = re.search(r"(\d+) fit: use --set train.accumulate=(\d+),", ended.plain)
    assert found, ended.text
    size, count = map(int, found.groups())
    assert size < 128
    assert size * count == 128
    cut = (*LARGE, "--set", f"train.accumulate={count}")
    words = bench.goes_on(cut, out, SHORT, total=STEPS)
    chosen = bench.run((*LARGE, "--auto-batch"), auto, SHORT)
    expect(chosen, code=0, says=f"{size} fit.*Resuming with this size")
    assert f"accumulate: {count}" in (auto / "recipe.yaml").read_text()
    found_too = differences(bench.whole(cut), auto)
    assert not found_too, found_too
    return f"{ended}; {size} of 128 fit; with the suggested settings: {words}; `--auto-batch`: {chosen}, bit-identical"


def _evaluation(bench: Bench) -> str:
    out = bench.folder()
    lack = FromTheStart(action=LackOfMemory(evaluation=100))
    ended = bench.run(RUN, out, lack)
    expect(
        ended, code=1, says=r"a batch of 360 examples .* evaluation .* 90 fit .*: rerun the command with --auto-batch"
    )
    assert updates(out) == 8
    return f"{ended}; with the suggested settings: {bench.goes_on(AUTO, out, lack, whole=EVALUATED_BY_90)}"


def _auto(bench: Bench) -> str:
    out = bench.folder()
    lack = FromTheStart(action=LackOfMemory(training=40))
    ended = bench.run(AUTO, out, lack, OnCall(target="attngraft.training.loop:all_finite", call=18, action=kill))
    assert ended.code == -9, ended.text
    assert "32 fit" in ended.plain
    assert updates(out) == 16
    chosen = json.loads((out / "environment.json").read_text())["chosen_by_memory"]
    assert [(each["epoch"], each["step"], each["accumulate"]) for each in chosen] == [(1, 1, 4)], chosen
    again = bench.run(AUTO, out)  # with enough memory, the chosen value is kept
    expect(again, code=0, says=f"resuming after step 16 of {UPDATES}")
    assert "accumulate: 4" in (out / "recipe.yaml").read_text()
    found = differences(bench.whole(CUT), out)
    assert not found, found
    return f"32 of 128 chosen; killed midway: 16 of {UPDATES} updates kept, final result bit-identical to train.accumulate=4"


def _auto_evaluation(bench: Bench) -> str:
    out = bench.folder()
    ended = bench.run(AUTO, out, FromTheStart(action=LackOfMemory(evaluation=100)))
    expect(ended, code=0, says=f"90 fit.*resuming after step 8 of {UPDATES}")
    found = differences(bench.whole(EVALUATED_BY_90), out)
    assert not found, found
    return f"{ended}: 90 of 360 chosen after 8 of {UPDATES} updates; final result bit-identical to train.eval_batch_size=90"


def _study(bench: Bench) -> str:
    out = bench.new_study()
    auto, lack = (*STUDY, "--auto-batch"), FromTheStart(action=LackOfMemory(training=70))
    ended = bench.run(auto, out, lack, NO_COSTS)
    expect(ended, code=0, says="64 fit")
    for name in STUDY_RUNS:
        assert "accumulate: 2" in (out / "runs" / name / "seed0" / "recipe.yaml").read_text()
    words = bench.study_goes_on(auto, out, whole=(*STUDY, "--set", "train.accumulate=2"))
    return f"{ended}: 64 of 128 chosen; the command again: {words} to train.accumulate=2"


CASES = (
    Case(
        name="memory",
        fault="A batch does not fit into memory during an update",
        happens="the run tries smaller micro-batches, then fails and names the largest one that fits",
        kept="everything up to the last checkpoint",
        remedy="follow the message: raise `train.accumulate`, or use `--auto-batch`",
        run=_training,
    ),
    Case(
        name="memory-real",
        fault="The same, with a real memory limit (`ulimit -v`) instead of a simulation",
        happens="the same; memory is freed before smaller batches are tried",
        kept="everything up to the last checkpoint",
        remedy="the same",
        run=_real,
    ),
    Case(
        name="memory-evaluation",
        fault="A batch does not fit during an evaluation",
        happens="the run fails and names the largest batch that fits",
        kept="everything up to the last checkpoint",
        remedy="repeat the command with `--auto-batch`",
        run=_evaluation,
    ),
    Case(
        name="auto-batch",
        fault="A batch does not fit into memory, with `--auto-batch`",
        happens="`train.accumulate` is raised until the batch fits; the run stores the value and keeps it when it resumes",
        kept="everything",
        remedy="nothing to do",
        run=_auto,
    ),
    Case(
        name="auto-batch-evaluation",
        fault="The same during an evaluation",
        happens="`train.eval_batch_size` is lowered, and the run continues from its last checkpoint",
        kept="everything up to the last checkpoint",
        remedy="nothing to do",
        run=_auto_evaluation,
    ),
    Case(
        name="auto-batch-study",
        fault="The same in a study",
        happens="each run finds its own value; each update still uses the same examples",
        kept="everything",
        remedy="nothing to do",
        run=_study,
    ),
)
