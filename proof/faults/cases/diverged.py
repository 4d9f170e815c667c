"""A loss that is not finite."""

from __future__ import annotations

from proof.faults.bench import RUN, STUDY, Bench, expect
from proof.faults.case import Case
from proof.faults.harm import FromTheStart, LossIsNaN
from proof.faults.outcome import STEPS, updates


def _run(bench: Bench) -> str:
    out = bench.folder()
    ended = bench.run(RUN, out, FromTheStart(action=LossIsNaN(18)))
    says = "the loss is not finite in epoch 2, step 7 .* checkpoint is from before this step and intact. A lower"
    expect(ended, code=1, says=says)
    assert (out / "failure.json").exists()
    assert updates(out) == 16
    return f"{ended}; {bench.goes_on(RUN, out)} once the cause is gone"


def _study(bench: Bench) -> str:
    out = bench.new_study()
    ended = bench.run(STUDY, out, FromTheStart(action=LossIsNaN(2 * STEPS + 14)))  # the second run's epoch 2, step 3
    expect(
        ended, code=1, says="cb_s, seed 0: failed.* the loss is not finite in epoch 2, step 3 .* runs .* are missing"
    )
    assert updates(out / "runs" / "cb_s" / "seed0") == STEPS
    for name in ("baseline", "horizontal"):
        assert (out / "runs" / name / "seed0" / "finished.json").exists()
    assert (out / "report.html").exists()
    return f"{ended}; {bench.study_goes_on(STUDY, out)} once the cause is gone"


CASES = (
    Case(
        name="nan",
        fault="The loss is NaN or infinite",
        happens="the run fails before the optimizer step and names step, examples, gradients and remedies",
        kept="everything up to the last checkpoint, which is intact",
        remedy="in a new folder, a lower learning rate, `train.clip_grad` or a different `train.amp`; or remove broken data",
        run=_run,
    ),
    Case(
        name="nan-in-a-study",
        fault="The same in one run of a study",
        happens="the run is marked as failed, the others are trained, results and report are written; the exit code is 1",
        kept="finished runs, and the failed run up to its last checkpoint",
        remedy="the same; repeating the command retries the failed run",
        run=_study,
    ),
)
