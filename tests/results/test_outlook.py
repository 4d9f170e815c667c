"""When a study is too short to tell, at the edges of its thresholds, and what is recommended in each case."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.report.page import report_html
from attngraft.results import outlook, wording
from attngraft.results.outlook import judged, late_gain, next_steps, updates
from attngraft.results.storage import read_study, save_result
from attngraft.results.study import (
    Chance,
    Decision,
    HalvingResult,
    Interval,
    Round,
    RoundVariant,
    StudyResult,
    UntilResult,
    VariantResult,
)
from tests.report import studies
from tests.report.studies import table_text

CHANCE = Chance(description="always the class with the most training images", values={"top1": 0.2})


def study(
    *,
    curve: Any = None,
    batch: int = 50,
    chance: float = 0.2,
    changes: dict[str, float] | None = None,
    names: tuple[str, ...] = ("none", "cb", "cb_s"),
    **fields: Any,
) -> StudyResult:
    """A study of 12 epochs with 1,500 training images; its baseline follows `curve` in every seed."""
    result = studies.usual(names=names)
    variants = []
    for variant in result.variants:
        runs = variant.runs
        if curve is not None:
            epochs = [float(epoch) for epoch in range(1, len(curve) + 1)]
            curves = {"epoch": epochs, "val/top1": [float(value) for value in curve]}
            runs = [replace(run, curve=curves) for run in runs]
        change = (changes or {}).get(variant.name, 0.5)
        cost = variant.cost and replace(variant.cost, parameters_ratio=1.0 if variant.is_baseline else 1.01)
        relative_change = None if variant.is_baseline else change
        variants.append(replace(variant, runs=runs, cost=cost, relative_change=relative_change))
    recipe = result.recipe | {"train": {"batch_size": batch, "parameters": "all"}}
    known = replace(CHANCE, values={"top1": chance})
    return replace(result, **{"variants": variants, "recipe": recipe, "chance": known, **fields})


def with_baseline(result: StudyResult, mean: float) -> StudyResult:
    base = result.variants[0]
    base = replace(base, last=base.last | {"top1": replace(base.last["top1"], mean=mean)})
    return replace(result, variants=[base, *result.variants[1:]])


def verdicts(result: StudyResult) -> list[str]:
    return [wording.verdict_text(result, variant) for variant in result.variants]


def test_a_long_study_keeps_its_verdicts() -> None:
    result = judged(study())
    assert result.too_short == []
    assert verdicts(result) == ["baseline", "inside the noise", "better"]
    assert wording.headline(result) == (
        "Of 2 grafts compared, 1 is better and 1 is inside the noise (no significant difference)."
    )


@pytest.mark.parametrize(("batch", "short"), [(200, True), (167, True), (166, False)])
def test_few_updates(batch: int, short: bool) -> None:
    """12 epochs of 1500 // 167 = 8 updates are 96."""
    result = judged(study(batch=batch, names=("none", "cb")))
    assert updates(result) == 12 * (1500 // batch)
    assert bool(result.too_short) == short == (updates(result) < outlook.FEWEST_UPDATES)
    assert verdicts(result)[1] == ("too short to tell" if short else "inside the noise")
    if short:
        assert wording.headline(result) == "This study is too short to tell."
        assert "use --epochs 24, or a smaller batch (--set train.batch_size)" in result.too_short[0]


def test_updates_are_counted_where_the_recipe_counts_them() -> None:
    result = study(steps=40)
    runs = [
        replace(run, curve=run.curve | {"step": [float(n) for n in range(29, 41)]}) for run in result.variants[0].runs
    ]
    result = replace(result, variants=[replace(result.variants[0], runs=runs), *result.variants[1:]])
    assert updates(result) == 40
    assert "only 40 updates, fewer than 100; use --set schedule.steps=120." in judged(result).too_short[0]
    unknown = replace(result, data={}, variants=study().variants)
    assert updates(unknown) is None


def test_more_epochs_than_a_time_budget_allows() -> None:
    result = study(batch=200, command="attngraft compare --graft cb --time-budget 1h30m --out x")
    assert "use --epochs 24 --time-budget 10800s," in judged(result).too_short[0]


def test_a_baseline_that_rises_in_a_line_is_too_short() -> None:
    """From chance, a line of 12 epochs gains a third of its whole gain in a third more epochs."""
    line = 0.2 + 0.03 * np.arange(1, 13)
    result = judged(study(curve=line, names=("none", "cb")))
    assert late_gain(result) == pytest.approx(1 / 3)
    assert "would add 33% of its whole gain in top-1 accuracy; use --epochs 24." in result.too_short[0]
    assert wording.outcome(result) == ["This study is too short to tell.", *result.too_short]


@pytest.mark.parametrize(("slope", "short"), [(0.0099, False), (0.0101, True)])
def test_the_slope_at_the_end(slope: float, short: bool) -> None:
    """Chance is zero and the last value 0.4, so that 4 epochs of slope 0.01 are 10% of the gain."""
    curve = np.append(np.full(8, 0.3), 0.4 + slope * np.arange(-3, 1))
    result = study(curve=curve, chance=0.0, names=("none", "cb"))
    assert late_gain(result) == pytest.approx(4 * slope / 0.4)
    assert bool(judged(result).too_short) == short


def test_noise_at_the_end_is_no_rise() -> None:
    curve = [0.3, 0.4, 0.5, 0.55, 0.6, 0.6, 0.6, 0.6, 0.52, 0.64, 0.58, 0.63]
    assert late_gain(study(curve=curve)) == 0
    assert late_gain(study(curve=[0.3, 0.2, 0.1])) is None  # below chance, no gain
    assert late_gain(study(curve=[0.3])) is None


def test_without_chance_the_gain_is_from_the_first_evaluation() -> None:
    line = 0.3 + 0.05 * np.arange(5)  # five evaluations
    result = replace(study(curve=line), chance=None)
    assert late_gain(result) == pytest.approx(0.05 * 5 / 3 / 0.2)
    assert late_gain(replace(study(curve=line[:3]), chance=None)) is None


def test_lower_is_better() -> None:
    curve = 2.0 - 0.1 * np.arange(1, 13)
    result = replace(study(curve=curve, chance=2.0), higher_is_better=False)
    assert late_gain(result) == pytest.approx(1 / 3)
    assert outlook.above_chance(with_baseline(result, 1.5)) == pytest.approx(0.25)


def test_runs_that_patience_ended_do_not_rise() -> None:
    line = 0.2 + 0.03 * np.arange(1, 9)
    result = study(curve=line)
    runs = [
        replace(run, curve=run.curve | {"step": [10.0 * (i + 1) for i in range(8)]}) for run in result.variants[0].runs
    ]
    stopped = replace(result, variants=[replace(v, runs=runs) for v in result.variants])
    assert late_gain(stopped) is None


@pytest.mark.parametrize(("mean", "short"), [(0.15, True), (0.2399, True), (0.2401, False)])
def test_the_margin_above_chance(mean: float, short: bool) -> None:
    """5% of the way from 0.2 to 1 is 0.24."""
    result = judged(with_baseline(study(names=("none", "cb")), mean))
    assert bool(result.too_short) == short
    if short:
        assert "is hardly better than chance, 20.00% (always the class with the most" in result.too_short[0]
        assert "use --epochs 48, or another learning rate" in result.too_short[0]


@pytest.mark.parametrize(("change", "short"), [(0.0, True), (0.0499, True), (0.05, False), (None, False)])
def test_a_graft_that_hardly_changed_the_predictions(change: float | None, short: bool) -> None:
    result = judged(study(changes={"cb": change, "cb_s": 0.0}))
    assert verdicts(result) == ["baseline", "too short to tell" if short else "inside the noise", "better"]
    assert bool(result.too_short) == short
    if short:
        assert result.too_short[0].startswith(f"cb ({100 * change:.1f}%) has hardly changed the baseline's predictions")
        assert wording.headline(result) == (
            "Of 2 grafts compared, 1 is better and for 1 the study is too short to tell."
        )


def test_what_training_cannot_change_is_not_too_short() -> None:
    result = study(changes={"cb": 0.0}, names=("none", "cb"))
    base, cb = result.variants
    no_parameters = replace(cb, cost=replace(cb.cost, parameters_ratio=1.0))
    for each in (no_parameters, replace(cb, spec="none"), replace(cb, recipe={"train.parameters": "head"})):
        assert judged(replace(result, variants=[base, each])).too_short == []
    frozen = replace(result, recipe=result.recipe | {"train": {"batch_size": 50, "parameters": "head"}})
    assert judged(frozen).too_short == []


def test_clear_differences_of_a_short_study_are_kept() -> None:
    result = judged(study(batch=200, names=("none", "cb", "cb_s", "vertical")))
    assert verdicts(result) == ["baseline", "too short to tell", "better", "worse"]
    assert wording.headline(result) == (
        "Of 3 grafts compared, 1 is better, 1 is worse and for 1 the study is too short to tell."
    )


def test_identical_predictions_are_checked_for_length_first() -> None:
    zero = Interval(point=0.0, low=0.0, high=0.0)
    result = study(changes={"cb": 0.0}, names=("none", "cb"))
    base, cb = result.variants
    same = replace(cb, difference=replace(cb.difference, mean=0.0, bootstrap=zero, t=zero))
    assert wording.headline(judged(replace(result, variants=[base, same]))) == "This study is too short to tell."
    bare = replace(same, cost=replace(cb.cost, parameters_ratio=1.0))
    headline = wording.headline(judged(replace(result, variants=[base, bare])))
    assert headline == "No difference could be seen in 5,000 examples: the graft has exactly the baseline's scores."


def test_models_without_training_and_a_lone_baseline_are_not_too_short() -> None:
    assert judged(study(epochs=0, batch=2000)).too_short == []
    assert judged(study(batch=2000, names=("none",))).too_short == []


def test_short_studies_on_terminal_page_and_notebook() -> None:
    result = judged(study(batch=200, names=("none", "cb", "horizontal")))
    for text in (table_text(result).replace("\n", " "), report_html(result), result._repr_html_()):
        assert "This study is too short to tell." in text
        assert "fewer than 100" in text.replace("  ", " ")
        assert "chance 20.00" in text or "Chance: 20.00%" in text
        assert "are inside the noise" not in text


# --- what to do next --------------------------------------------------------------------------------------------------


def steps(result: StudyResult) -> list[tuple[str, str]]:
    return [(step.text, step.command) for step in next_steps(replace(result, folder=Path("out dir")))]


def test_take_the_best() -> None:
    (text, command), (seeds, again) = steps(judged(study()))
    assert (
        text == "Take cb_s, which is better than the baseline, at 1.02× the training time and 1.01× the inference time."
    )
    assert command.startswith("attngraft export 'out dir/runs/cb_s/seed")
    assert command.endswith("' --out model")
    assert seeds == "Add seeds to decide on cb; finished runs are kept."
    assert again == "attngraft compare --study 'out dir/study.yaml' --until decided"


def test_train_longer() -> None:
    [(text, command)] = steps(judged(study(batch=200, names=("none", "cb"))))
    assert text == "Train longer: the study is too short to tell for all variants."
    assert command == "attngraft compare --study 'out dir/study.yaml' --epochs 24 --out 'out dir-longer'"
    texts = [text for text, _ in steps(judged(study(changes={"cb": 0.0}, names=("none", "cb", "horizontal"))))]
    assert texts == [
        "Train longer: the study is too short to tell for cb.",
        "Add seeds to decide on horizontal; finished runs are kept.",
    ]


def test_add_seeds() -> None:
    result = judged(study(names=("none", "cb", "horizontal")))
    (text, command), (keep, export) = steps(result)
    assert text == "Add seeds to decide on cb and horizontal; finished runs are kept."
    assert command.endswith("--until decided")
    assert keep == "Keep the baseline for now: no variant is better."
    assert "'out dir/runs/none/seed" in export
    assert steps(replace(result, folds=5))[0][1].endswith("--seeds 10")
    named = steps(replace(result, seeds=[3, 0, 7], folds=5))
    assert named[0][1].endswith("--seeds 3,0,7,1,2,4,5,6,8,9")
    loss = replace(result.variants[1].difference, verdict="better")
    hinted = replace(result.variants[1], other_differences={"loss": loss})
    told = steps(replace(result, variants=[result.variants[0], hinted, result.variants[2]]))
    assert told[0][0].endswith("finished runs are kept. The loss is already better for cb.")


def in_rounds(decision: Decision, **fields: Any) -> StudyResult:
    """cb_s is better after the first round of 3 seeds; horizontal has this decision after the second, of 4."""
    result = judged(study(names=("none", "cb_s", "horizontal")))

    def tested(name: str, decision: Decision) -> RoundVariant:
        return RoundVariant(variant=name, tests=2, level=0.001, interval=None, p_value=None, decision=decision)

    first = Round(seeds=3, runs=9, spent=0.0075, variants=[tested("cb_s", "better"), tested("horizontal", "undecided")])
    second = Round(seeds=4, runs=11, spent=0.01, variants=[tested("horizontal", decision)])
    more = [replace(v, runs=[*v.runs, replace(v.runs[0], seed=3)]) for v in result.variants if v.name != "cb_s"]
    until = UntilResult(rounds=[first, second], most_seeds=20, **fields)
    return replace(result, variants=[more[0], result.variants[1], more[1]], seeds=[0, 1, 2, 3], until=until)


def test_rounds_of_seeds() -> None:
    (take, _), (more, again) = steps(in_rounds("undecided", budget=3600.0))
    assert take.startswith("Take cb_s")
    assert more == "Add seeds to decide on horizontal; finished runs are kept."
    assert again == "attngraft compare --study 'out dir/study.yaml' --budget 7200s"
    assert [text for text, _ in steps(in_rounds("unlikely to be decided"))] == [take]
    failed = steps(in_rounds("undecided", failed=["horizontal"]))
    assert [text for text, _ in failed] == ["Some runs are missing. Train them first.", take]


def test_the_export_of_a_study_with_folds_names_a_fold() -> None:
    (_, command), *_ = steps(replace(judged(study()), folds=5))
    assert command.endswith("/fold0' --out model")


def test_a_sentence_names_few_variants() -> None:
    result = judged(study(names=("none", "cb")))
    many = [replace(result.variants[1], name=f"cb{i}") for i in range(6)]
    text, _ = steps(replace(result, variants=[result.variants[0], *many]))[0]
    assert text.startswith("Add seeds to decide on cb0, cb1, cb2, cb3 and 2 more;")


def test_keep_the_baseline() -> None:
    [(text, _)] = steps(judged(study(names=("none", "vertical"))))
    assert text == "Keep the baseline: no variant is better."
    result = replace(judged(study(names=("none", "cb"))), seeds=list(range(10)))
    runs = [[replace(v.runs[0], seed=seed) for seed in range(10)] for v in result.variants]
    ten = replace(result, variants=[replace(v, runs=r) for v, r in zip(result.variants, runs, strict=True)])
    assert [text for text, _ in steps(ten)] == ["Keep the baseline: no variant is better."]


def test_other_cases() -> None:
    assert steps(study(names=("none",)))[0][1].endswith("--graft cb_s")
    assert steps(study(epochs=0))[0][1].endswith("--epochs 30 --out 'out dir-trained'")
    failed = studies.with_failed_runs()
    assert steps(failed)[0] == (
        "Some runs are missing. Train them first.",
        "attngraft compare --study 'out dir/study.yaml'",
    )
    none = replace(failed, variants=[replace(failed.variants[0], runs=[]), failed.variants[4]])
    assert len(steps(none)) == 1
    halving = HalvingResult(
        eta=3, rungs=[2], epochs=12, metric="top1", higher_is_better=True, stopped={"horizontal": 2, "vertical": 2}
    )
    assert not any("missing" in text for text, _ in steps(replace(failed, halving=halving)))


def test_no_folder_is_named_by_a_placeholder() -> None:
    assert next_steps(study())[0].command.startswith("attngraft export STUDY/runs/cb_s/")


@pytest.mark.parametrize("make", studies.ALL.values(), ids=list(studies.ALL))
def test_every_study_has_a_next_step(make: Any) -> None:
    found = next_steps(judged(make()))
    assert 1 <= len(found) <= 3
    assert all(step.command.startswith("attngraft ") for step in found)


def _variant(result: StudyResult, name: str) -> VariantResult:
    return next(variant for variant in result.variants if variant.name == name)


def test_the_loss_stands_beside_the_metric() -> None:
    result = studies.with_other_metrics()
    sentence = wording.loss_sentence(result, _variant(result, "cb_s"))
    assert sentence.endswith(" better") or "lower is better): better" in sentence
    page = report_html(result)
    assert wording.minus(sentence) in page
    assert "often shows a difference with fewer seeds and examples" in page
    assert wording.loss_sentence(result, _variant(result, "cb")) == ""
    assert "often shows a difference with fewer" not in report_html(studies.usual())


def test_costs_that_were_not_measured_say_why() -> None:
    result = studies.without_costs()
    reasons = {"training time": "a batch takes 40 s, too long for 5 of every variant"}
    variants = [replace(v, cost=v.cost and replace(v.cost, not_measured=reasons)) for v in result.variants]
    result = replace(result, variants=variants)
    sentence = "Not measured: training time (a batch takes 40 s, too long for 5 of every variant)."
    assert wording.not_measured(result) == sentence
    assert sentence in " ".join(table_text(result).split())
    assert sentence in report_html(result)


def test_results_of_now_and_of_earlier_versions_are_read(tmp_path: Path) -> None:
    result = judged(study(batch=200, changes={"cb": 0.01}))
    save_result(result, tmp_path)
    assert read_study(tmp_path) == result
    path = tmp_path / "results.json"
    content = json.loads(path.read_text())
    del content["chance"], content["too_short"]
    for variant in content["variants"]:
        del variant["relative_change"], variant["too_short"], variant["cost"]["not_measured"]
    path.write_text(json.dumps(content))
    earlier = read_study(tmp_path)
    assert wording.headline(earlier) == wording.headline(study())
    assert wording.chance_text(earlier) == ""
