"""A study's runs under suites: real ones of two tiny variants on the little images."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attngraft.errors import DataError, UsageError
from attngraft.evaluation.suites.cache import read_columns, write_suite_checksums
from attngraft.report.page import report_html
from attngraft.report.suites import suite_comparison, suite_views
from attngraft.results.measured import MeanScore
from attngraft.results.statistics import t_interval
from attngraft.results.storage import suites_csv
from attngraft.results.study import StudyResult, SuiteResult
from attngraft.study import StudyConfig, Tools, compare, load_result, report_only, study_from_dict
from attngraft.study.predictions import RunStatistics, aligned
from attngraft.study.progress import StudyLog
from attngraft.study.suites import evaluate_finished
from attngraft.study.verdict import compare_statistics
from attngraft.tasks.calibration import calibration_statistic, reliability
from attngraft.training.evaluate import weights_file
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import read_run
from tests.evaluation.suites.making import TREE
from tests.export.runs import VIT
from tests.study.fakes import FakeTrainer, study, tools
from tests.tasks.images.datasets import make_folder

BARE = Tools(write_report=lambda result, folder: folder)


def small(out: Path, **changes: Any) -> StudyConfig:
    """Two variants with two seeds on little colored images, trained for an epoch."""
    data = out / "images"
    if not data.exists():
        make_folder(data, TREE, size=(16, 16))
    plain = {"host": VIT, "grafts": ["cb"], "data": str(data), "set": ["train.batch_size=6"], "seeds": 2, "epochs": 1}
    return study_from_dict({**plain, "out": str(out / "study"), **changes})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyResult]:
    """Without suites."""
    place = tmp_path_factory.mktemp("plain")
    return place / "study", compare(small(place), costs=False, tools=BARE)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyResult]:
    place = tmp_path_factory.mktemp("suites")
    result = compare(small(place, suites=["fgsm,noise", "patches", "calibration"]), costs=False, tools=BARE)
    return place / "study", result


def by_name(result: StudyResult) -> dict[str, SuiteResult]:
    return {suite.name: suite for suite in result.suites}


def test_runs_and_results_are_those_without_suites(
    plain: tuple[Path, StudyResult], found: tuple[Path, StudyResult]
) -> None:
    for folder in ("runs/baseline/seed0", "runs/cb/seed1"):
        first, other = (read_run(out / folder) for out, _ in (plain, found))
        rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in run.epochs] for run in (first, other)]
        assert rows[0] == rows[1]
        arrays = [np.load(run.predictions) for run in (first, other) if run.predictions]
        assert all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0].files)
    assert "suites" not in json.loads((plain[0] / "results.json").read_text())
    assert "suites" not in (plain[0] / "study.yaml").read_text()
    assert not (plain[0] / "suites.csv").exists()
    assert plain[1].variants[1].difference == found[1].variants[1].difference
    assert report_html(replace(found[1], suites=[])) != report_html(found[1])


def test_they_are_kept_read_back_and_not_made_again(found: tuple[Path, StudyResult]) -> None:
    out, result = found
    assert load_result(out) == result
    assert list(by_name(result)) == ["fgsm", "noise", "patches", "calibration"]
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}
    assert before
    again = compare(small(out.parent, suites=["fgsm,noise", "patches", "calibration"]), costs=False, tools=BARE)
    assert again.suites == result.suites
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")} == before
    assert report_only(small(out.parent, suites=["noise"]), tools=BARE).suites == [by_name(result)["noise"]]


def test_a_suite_with_images_of_its_own(found: tuple[Path, StudyResult]) -> None:
    out, _ = found
    folder = f"{out.parent / 'images' / 'train'}/"
    result = compare(small(out.parent, suites=[f"clean={folder}"]), costs=False, tools=BARE)
    (suite,) = result.suites
    assert (suite.name, suite.data, suite.examples) == ("clean", folder, 12)
    assert suite.conditions[0].variants[1].difference is not None


def test_scores_are_averaged_over_noise_seeds_and_paired(found: tuple[Path, StudyResult]) -> None:
    out, result = found
    noise = by_name(result)["noise"]
    condition = next(each for each in noise.conditions if each.name == "gaussian_noise-10")
    assert condition.noise_seeds == 5
    scores: dict[str, dict[int, np.ndarray]] = {}
    for variant in ("baseline", "cb"):
        scores[variant] = {}
        for seed in (0, 1):
            folder = out / "runs" / variant / f"seed{seed}" / "evaluation" / "last" / "noise"
            files = [read_columns(folder / f"gaussian_noise-10-seed{each}.parquet") for each in range(5)]
            assert all(each["name"].tolist() == files[0]["name"].tolist() for each in files)
            scores[variant][seed] = np.mean([each["score"] for each in files], axis=0)
    runs = ({seed: MeanScore(score) for seed, score in scores[name].items()} for name in ("baseline", "cb"))
    assert condition.variants[1].difference == compare_statistics(*runs, higher_is_better=True)
    means = [each.mean() for each in scores["cb"].values()]
    assert condition.variants[1].value is not None
    assert condition.variants[1].value.mean == pytest.approx(np.mean(means))
    assert condition.variants[1].value.deviation == pytest.approx(np.std(means, ddof=1))
    assert any("mean over 5 noise seeds" in note for note in noise.notes)
    fgsm = by_name(result)["fgsm"].conditions[0].variants[1].difference
    assert fgsm is not None
    assert len(fgsm.mcnemar) == 2  # scores of one evaluation are right or wrong
    assert any("salience: the class token's row" in note for note in by_name(result)["patches"].notes)


def test_calibration_is_the_difference_of_the_errors(found: tuple[Path, StudyResult]) -> None:
    out, result = found
    (condition,) = by_name(result)["calibration"].conditions
    errors = []
    for variant in ("baseline", "cb"):
        for seed in (0, 1):
            kept = read_columns(out / f"runs/{variant}/seed{seed}/evaluation/last/clean/clean.parquet")
            right = kept["predicted"] == kept["target"]
            errors.append(reliability([kept["confidence"]], [right]).error_by_seed[0])
    difference = condition.variants[1].difference
    assert difference is not None
    assert difference.mean == pytest.approx(np.mean(errors[2:]) - np.mean(errors[:2]), abs=1e-6)
    assert not by_name(result)["calibration"].higher_is_better


def test_the_page_the_table_and_the_rows_say_all(found: tuple[Path, StudyResult]) -> None:
    _, result = found
    page = report_html(result)
    assert '<section id="suites">' in page
    assert "There is no correction for the number of conditions" in page
    assert "FGSM, 8/255" in page and "shot noise, 60 photons" in page
    rows = list(csv.DictReader(io.StringIO(suites_csv(result))))
    assert len(rows) == sum(len(suite.conditions) * 2 for suite in result.suites)
    views = {view["anchor"]: view for view in suite_views(result)}
    assert views["suite-calibration"]["about"].endswith("lower is better")
    from rich.console import Console

    console = Console(width=100, record=True)
    console.print(suite_comparison(result, by_name(result)["fgsm"]))
    shown = console.export_text()
    assert "bootstrap" not in shown and "FGSM, 1/255" in shown
    hostile = replace(by_name(result)["fgsm"], title="<script>", notes=["<b>"], data="[red]x")
    assert report_html(replace(result, suites=[hostile])).count("<script>") == 1


@pytest.mark.slow
def test_severities_are_averaged_example_by_example(tmp_path: Path) -> None:
    result = compare(small(tmp_path, suites=["corruptions"], seeds=1), costs=False, tools=BARE)
    (suite,) = result.suites
    conditions = {each.name: each for each in suite.conditions}
    assert len(conditions) == 9 * 5 + 9 + 1
    severities = [conditions[f"contrast-{severity}"].variants[1].difference for severity in range(1, 6)]
    mean = conditions["contrast-mean"].variants[1].difference
    assert mean is not None
    assert mean.mean == pytest.approx(np.mean([each.mean for each in severities if each is not None]))
    whole = conditions["mean"].variants[1]
    kinds = [each.variants[1].value for each in suite.conditions if each.kind not in ("", "mean") and not each.severity]
    assert whole.value is not None
    assert whole.value.mean == pytest.approx(np.mean([each.mean for each in kinds if each is not None]))
    assert whole.difference is not None


def test_a_primary_metric_that_is_no_mean_of_scores(tmp_path: Path) -> None:
    recipe = ["train.batch_size=6", "task.metrics.primary=macro_f1"]
    result = compare(small(tmp_path, suites=["noise"], seeds=1, set=recipe), costs=False, tools=BARE)
    (suite,) = result.suites
    assert suite.metric == "macro_f1"
    for condition in suite.conditions:
        baseline, variant = condition.variants
        assert variant.difference is not None
        assert variant.difference.mean == pytest.approx(variant.value.mean - baseline.value.mean, abs=1e-6)
        assert variant.difference.mcnemar == []


def test_calibration_by_brute_force() -> None:
    """Resampling rows one by one gives the interval; names may stand in another order."""
    random = np.random.default_rng(0)
    names = np.array([f"image {index}" for index in range(60)])
    runs = []
    for sharpness in (1.0, 1.0, 1.6, 1.7):
        stated = np.clip(random.random((60, 1)) * sharpness, 0, 1)
        runs.append((stated, random.random((60, 1)) < 0.5))
    statistics = [calibration_statistic(*run) for run in runs]
    found = compare_statistics(dict(enumerate(statistics[:2])), dict(enumerate(statistics[2:])), higher_is_better=False)

    def error(run: tuple[np.ndarray, np.ndarray], rows: np.ndarray) -> float:
        return reliability([run[0][rows, 0]], [run[1][rows, 0]]).error_by_seed[0]

    by_seed = [error(runs[2 + s], np.arange(60)) - error(runs[s], np.arange(60)) for s in range(2)]
    assert found.mean == pytest.approx(np.mean(by_seed), abs=1e-6)
    t = t_interval(by_seed)
    assert found.t is not None and t is not None
    assert (found.t.low, found.t.high) == pytest.approx((t.low, t.high), abs=1e-5)
    one = compare_statistics({0: statistics[0]}, {0: statistics[2]}, higher_is_better=False)
    draws = []
    for _ in range(600):
        rows = random.integers(60, size=60)
        draws.append(error(runs[2], rows) - error(runs[0], rows))
    low, high = np.quantile(draws, [0.025, 0.975])
    assert (one.bootstrap.low, one.bootstrap.high) == pytest.approx((low, high), abs=0.025)
    order = random.permutation(60)
    first = RunStatistics(folder=Path("a"), names=names, statistics={"ece": statistics[0]})
    moved = RunStatistics(folder=Path("b"), names=names[order], statistics={"ece": statistics[2].take(order)})
    back = aligned([first, moved])[1].statistics["ece"]
    assert compare_statistics({0: statistics[0]}, {0: back}, higher_is_better=False) == one
    fewer = RunStatistics(folder=Path("b"), names=names[:59], statistics={})
    with pytest.raises(DataError, match="different examples"):
        aligned([first, fewer])


def test_what_is_wrong_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    with pytest.raises(UsageError, match="unknown suite 'fgms'.*did you mean fgsm"):
        study(tmp_path, suites=["fgms"])
    with pytest.raises(DataError, match="suite v2: download imagenetv2-matched-frequency"):
        compare(study(tmp_path, suites=["v2"]), tools=tools(trainer))
    with pytest.raises(DataError, match="no such folder"):
        compare(study(tmp_path, suites=[f"a={tmp_path / 'nowhere'}"]), tools=tools(trainer))
    with pytest.raises(DataError, match="suite clean=.*nowhere: no such folder or file"):
        compare(study(tmp_path, suites=[f"clean={tmp_path / 'nowhere'}"]), tools=tools(trainer))
    assert trainer.calls == []


def test_one_failing_suite_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = SimpleNamespace(folder=tmp_path, recipe=Recipe())
    monkeypatch.setattr("attngraft.study.suites.finished_runs", lambda config: {"cb_s": {0: record}})
    asked = []

    def evaluate(folder: Path, choices: list[Any], **_: Any) -> None:
        asked.append(choices[0].text)
        if choices[0].text == "fgsm":
            raise RuntimeError("not enough memory")

    monkeypatch.setattr("attngraft.study.suites.evaluate_suites", evaluate)
    failed = evaluate_finished(study(tmp_path, suites=["fgsm", "noise"]), progress=StudyLog())
    assert asked == ["fgsm", "noise"]
    assert failed == ["cb_s seed 0: its evaluation under suite fgsm failed: not enough memory"]


def test_the_file_of_a_study_keeps_its_suites(tmp_path: Path) -> None:
    config = study(tmp_path, suites=["robustness", "a=/data/imagenet-a"])
    assert study_from_dict(config.to_dict()) == config
    assert "suites" not in study(tmp_path).to_dict()


def test_failures_of_suites_are_notes_and_ctrl_c_goes_through(tmp_path: Path) -> None:
    def fails(config: StudyConfig, *, progress: Any) -> list[str]:
        return ["cb_s seed 0: its evaluation under suites failed: no room"]

    def pressed(config: StudyConfig, *, progress: Any) -> list[str]:
        raise KeyboardInterrupt

    fake = replace(tools(FakeTrainer()), evaluate_suites=fails)
    result = compare(study(tmp_path, suites=["noise"]), tools=fake)
    assert any("under suites failed: no room" in note for note in result.notes)
    assert result.suites == []
    timed = compare(study(tmp_path, suites=["throughput"]), tools=tools(FakeTrainer()))
    assert any("Suite throughput: see Costs" in note for note in timed.notes)
    with pytest.raises(KeyboardInterrupt):
        compare(study(tmp_path, suites=["noise"]), tools=replace(fake, evaluate_suites=pressed))
    without = compare(study(tmp_path), tools=replace(fake, evaluate_suites=pressed))
    assert without.suites == []


@pytest.fixture
def copied(found: tuple[Path, StudyResult], tmp_path: Path) -> Path:
    """The study with suites and its images, at a place of its own."""
    shutil.copytree(found[0].parent, tmp_path, dirs_exist_ok=True)
    return tmp_path


def of_copy(place: Path, suite: str) -> SuiteResult:
    """What a report of what is there says."""
    config = replace(small(place), out=place / "study", suites=(suite,))
    (result,) = report_only(config, tools=BARE).suites
    return result


def test_results_of_other_weights_are_left_out(copied: Path) -> None:
    assert not any("left out" in note for note in of_copy(copied, "fgsm").notes)
    folder = copied / "study/runs/cb/seed1"
    path = weights_file(folder, "last")
    path.write_bytes(path.read_bytes() + b" ")
    result = of_copy(copied, "fgsm")
    assert (
        "cb seed 1 is left out: its results were computed with different weights from the run's current ones"
        in " ".join(result.notes)
    )
    value = result.conditions[0].variants[1].value
    assert value is not None
    assert value.deviation is None, "one seed is left"


def test_results_on_other_examples_are_left_out(copied: Path) -> None:
    path = copied / "study/runs/baseline/seed0/evaluation/last/fgsm/results.json"
    found = json.loads(path.read_text())
    assert found["digest"]
    path.write_text(json.dumps(found | {"digest": "0" * 64}))
    write_suite_checksums(path.parent, path.name)
    result = of_copy(copied, "fgsm")
    assert "baseline seed 0 is left out: it was evaluated on different examples from most runs" in " ".join(
        result.notes
    )


def test_results_that_are_not_those_of_their_predictions_are_left_out(copied: Path) -> None:
    path = copied / "study/runs/baseline/seed0/evaluation/last/fgsm/results.json"
    found = json.loads(path.read_text())
    next(group for group in found["groups"] if group["files"])["metrics"]["top1"]["mean"] = 0.987
    path.write_text(json.dumps(found))
    write_suite_checksums(path.parent, path.name)
    notes = " ".join(of_copy(copied, "fgsm").notes)
    assert "baseline seed 0 is left out: its top1 is not that of its predictions" in notes


def test_results_whose_predictions_are_gone_or_of_something_else_are_left_out(copied: Path) -> None:
    """As where an evaluation stopped between writing predictions and results."""
    folder = copied / "study/runs"
    (folder / "cb/seed0/evaluation/last/fgsm/fgsm-2.parquet").unlink()
    other = folder / "baseline/seed0/evaluation/last/fgsm/fgsm-2.parquet"
    shutil.copy(other, folder / "baseline/seed1/evaluation/last/fgsm/fgsm-2.parquet")
    for run in ("cb/seed0", "baseline/seed1"):
        (folder / run / "evaluation/last/fgsm/checksums.json").unlink()
    notes = " ".join(of_copy(copied, "fgsm").notes)
    for name in ("cb seed 0", "baseline seed 1"):
        assert f"{name} is left out: its prediction files do not belong" in notes
    assert evaluate_finished(replace(small(copied), suites=("fgsm",)), progress=StudyLog()) == []
    assert not any("left out" in note for note in of_copy(copied, "fgsm").notes)


def test_results_that_do_not_tell_their_examples_and_runs_without_weights_are_taken_at_their_word(copied: Path) -> None:
    before = of_copy(copied, "fgsm")
    for path in copied.glob("study/runs/*/seed*/evaluation/last/fgsm/results.json"):
        found = json.loads(path.read_text())
        del found["digest"]
        path.write_text(json.dumps(found))
        write_suite_checksums(path.parent, path.name)
    weights_file(copied / "study/runs/cb/seed1", "last").unlink()
    assert of_copy(copied, "fgsm") == before


def test_a_suite_of_which_nothing_is_left_says_why(copied: Path) -> None:
    for folder in copied.glob("study/runs/*/seed*"):
        path = weights_file(folder, "last")
        path.write_bytes(path.read_bytes() + b" ")
    result = of_copy(copied, "fgsm")
    assert sum("is left out" in note for note in result.notes) == 4
    assert all(each.value is None for condition in result.conditions for each in condition.variants)
