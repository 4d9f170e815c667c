"""Batches that do not fit."""

from __future__ import annotations

import json

from proof.faults.bench import NO_COSTS, RUN, STUDY, STUDY_RUNS, UPDATES, Bench, expect
from proof.faults.case import Case
from proof.faults.harm import FromTheStart, LackOfMemory, OnCall, kill
from proof.faults.outcome import differences, updates

AUTO = (*RUN, "--auto-batch")
CUT = (*RUN, "--set", "train.accumulate=4")  # micro-batches of 32
EVALUATED_BY_90 = (*RUN, "--set", "train.eval_batch_size=90")


def _training(bench: Bench) -> str:
    out = bench.folder()
    ended = bench.run(RUN, out, FromTheStart(action=LackOfMemory(training=40)))
    expect(ended, code=1, says=r"a batch of 128 examples does not fit .* 32 fit: use --set train.accumulate=4")
    assert updates(out) == 0
    return f"{ended}; the advice taken: {bench.goes_on(CUT, out)}"


def _evaluation(bench: Bench) -> str:
    out = bench.folder()
    lack = FromTheStart(action=LackOfMemory(evaluation=100))
    ended = bench.run(RUN, out, lack)
    expect(
        ended, code=1, says=r"a batch of 360 examples .* evaluation .* 90 fit .*: repeat the command with --auto-batch"
    )
    assert updates(out) == 8
    return f"{ended}; the advice taken: {bench.goes_on(AUTO, out, lack, whole=EVALUATED_BY_90)}"


def _auto(bench: Bench) -> str:
    out = bench.folder()
    lack = FromTheStart(action=LackOfMemory(training=40))
    ended = bench.run(AUTO, out, lack, OnCall(target="attngraft.training.loop:all_finite", call=18, action=kill))
    assert ended.code == -9, ended.text
    assert "32 fit" in ended.plain
    assert updates(out) == 16
    chosen = json.loads((out / "environment.json").read_text())["chosen_by_memory"]
    assert [(each["epoch"], each["step"], each["accumulate"]) for each in chosen] == [(1, 1, 4)], chosen
    again = bench.run(AUTO, out)  # with all the memory that it could want: what was chosen stays
    expect(again, code=0, says=f"going on after step 16 of {UPDATES}")
    assert "accumulate: 4" in (out / "recipe.yaml").read_text()
    found = differences(bench.whole(CUT), out)
    assert not found, found
    return f"32 of 128 chosen; killed on the way: 16 of {UPDATES} updates kept, the end bit-identical to train.accumulate=4"


def _auto_evaluation(bench: Bench) -> str:
    out = bench.folder()
    ended = bench.run(AUTO, out, FromTheStart(action=LackOfMemory(evaluation=100)))
    expect(ended, code=0, says=f"90 fit.*going on after step 8 of {UPDATES}")
    found = differences(bench.whole(EVALUATED_BY_90), out)
    assert not found, found
    return f"{ended}: 90 of 360 chosen after 8 of {UPDATES} updates; the end bit-identical to train.eval_batch_size=90"


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
        fault="A batch does not fit in an update",
        happens="the run ends and names the largest micro-batch that does, found by trying",
        kept="all up to the last checkpoint",
        remedy="as the message says: more `train.accumulate`, or `--auto-batch`",
        run=_training,
    ),
    Case(
        name="memory-evaluation",
        fault="A batch does not fit in an evaluation",
        happens="the run ends and names the largest that does",
        kept="all up to the last checkpoint",
        remedy="repeat the command with `--auto-batch`",
        run=_evaluation,
    ),
    Case(
        name="auto-batch",
        fault="A batch does not fit, with `--auto-batch`",
        happens="`train.accumulate` is raised until it fits, written into the run, and kept when it goes on",
        kept="everything",
        remedy="nothing to do",
        run=_auto,
    ),
    Case(
        name="auto-batch-evaluation",
        fault="The same in an evaluation",
        happens="`train.eval_batch_size` is lowered, and the run goes on from its last checkpoint",
        kept="all up to the last checkpoint",
        remedy="nothing to do",
        run=_auto_evaluation,
    ),
    Case(
        name="auto-batch-study",
        fault="The same in a study",
        happens="each run finds its own; updates are of the same examples",
        kept="everything",
        remedy="nothing to do",
        run=_study,
    ),
)
