"""Numbers of a result against the run folders they come from."""

from __future__ import annotations

import dataclasses
import html
import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from attngraft.errors import ConfigError, DataError, TrainingError
from attngraft.report import write_report
from attngraft.report.tables import study_table
from attngraft.results.measured import MeanScore, SpearmanCorrelation, macro_f1
from attngraft.results.storage import save_result
from attngraft.results.study import StudyResult
from attngraft.study import compare, load_result, verdict
from attngraft.study import predictions as predicting
from attngraft.study.collect import collect
from attngraft.study.predictions import RunStatistics
from attngraft.tasks.task import Task
from attngraft.training.run_folder import RunRecord

from .fakes import EXAMPLES, FakeTrainer, study, tools


def conducted(folder: Path, trainer: FakeTrainer, **changes: object) -> StudyResult:
    return compare(study(folder, **changes), tools=tools(trainer))


def scores(folder: Path, variant: str, seed: int) -> np.ndarray:
    with np.load(folder / "runs" / variant / f"seed{seed}" / "predictions.npz") as arrays:
        return arrays["score"]


def test_spreads_differences_and_curves(tmp_path: Path) -> None:
    result = conducted(tmp_path, FakeTrainer({"cb_s": 0.2, "horizontal": -0.2}), seeds=3)
    baseline, gain, loss = result.variants
    own = [scores(tmp_path, "cb_s", seed).mean() for seed in range(3)]
    base = [scores(tmp_path, "baseline", seed).mean() for seed in range(3)]
    assert gain.last["top1"].mean == pytest.approx(np.mean(own))
    assert gain.last["top1"].deviation == pytest.approx(np.std(own, ddof=1))
    assert gain.difference is not None
    assert loss.difference is not None
    assert gain.difference.mean == pytest.approx(np.mean(own) - np.mean(base))
    assert (gain.difference.verdict, loss.difference.verdict) == ("better", "worse")
    assert gain.difference.p_holm is not None
    assert gain.difference.p_value is not None
    assert gain.difference.p_value <= gain.difference.p_holm <= min(1, 2 * gain.difference.p_value) + 1e-12
    assert baseline.difference is None
    assert gain.runs[0].curve["epoch"] == [1, 2, 3]
    assert set(gain.runs[0].curve) == {"epoch", "train/loss", "val/top1", "val/loss"}
    assert gain.runs[0].last.keys() == {"top1", "loss"}
    assert gain.runs[0].folder == "runs/cb_s/seed0"
    assert gain.runs[0].seconds == 3.0


def test_epochs_to_the_baselines_best(tmp_path: Path) -> None:
    """Accuracy grows in proportion to the epoch: 0.8 reaches 0.6 after three quarters of the epochs, 0.4 never."""
    result = conducted(tmp_path, FakeTrainer({"cb_s": 0.2, "horizontal": -0.2}), epochs=8)
    baseline, gain, loss = (variant.epochs_to_baseline for variant in result.variants)
    assert baseline is not None
    assert gain is not None
    assert loss is not None
    curves = np.array([run.curve["val/top1"] for run in result.variants[0].runs])
    assert gain.target == pytest.approx(curves.mean(axis=0).max())
    assert set(gain.by_seed.values()) <= {6, 7}
    assert gain.of_mean_curve in (6, 7)
    assert loss.by_seed == {0: None, 1: None}
    assert (loss.of_mean_curve, loss.ratio, loss.speed_up) == (None, None, None)
    assert (baseline.baseline_epoch, baseline.of_mean_curve, baseline.ratio) == (8, 8, 1)
    assert gain.ratio == gain.of_mean_curve / 8


def test_best_epoch_is_secondary_and_the_first_of_equals(tmp_path: Path) -> None:
    conducted(tmp_path, FakeTrainer())
    path = tmp_path / "runs" / "baseline" / "seed0" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, value in zip(rows, (0.9, 0.9, rows[2]["val/top1"]), strict=True):
        row["val/top1"] = value
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = collect(study(tmp_path)).variants[0].runs[0]
    assert (run.best_epoch, run.best["top1"]) == (1, 0.9)
    assert run.last["top1"] == rows[2]["val/top1"]


def test_what_is_said_of_the_data_is_a_note(tmp_path: Path) -> None:
    conducted(tmp_path, FakeTrainer())
    changed = "The runs were trained on different examples: the data changed during the study."
    paths = sorted((tmp_path / "runs").glob("*/seed*/data.json"))
    for path in paths:
        held = json.loads(path.read_text())
        held["facts"] |= {"notes": ["Leak: 1 validation image."], "check": {"train_digest": "0"}}
        path.write_text(json.dumps(held))
    found = collect(study(tmp_path)).notes
    assert found.count("Leak: 1 validation image.") == 1
    assert changed not in found
    paths[-1].write_text(paths[-1].read_text().replace('"train_digest": "0"', '"train_digest": "1"'))
    assert changed in collect(study(tmp_path)).notes


def test_one_seed(tmp_path: Path) -> None:
    result = conducted(tmp_path, FakeTrainer({"cb_s": 0.2}), seeds=1)
    found = result.variants[1].difference
    assert found is not None
    assert (found.verdict, found.t, found.p_source) == ("inside the noise", None, "exact McNemar")
    assert result.variants[1].last["top1"].deviation is None
    assert any("noise between seeds is unknown" in note for note in result.notes)


def test_examples_are_paired_by_name(tmp_path: Path) -> None:
    trainer = FakeTrainer({"cb_s": 0.2})
    plain = conducted(tmp_path / "plain", trainer)
    trainer.shuffled = True
    shuffled = conducted(tmp_path / "shuffled", trainer)
    one, other = plain.variants[1].difference, shuffled.variants[1].difference
    assert one is not None
    assert other is not None
    assert one.mcnemar == other.mcnemar
    assert one.mean == pytest.approx(other.mean)


def test_all_metrics_are_compared_each_in_its_direction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are no means; one is undefined, and another takes too long for all resamples."""
    conducted(tmp_path, FakeTrainer({"cb_s": 0.2, "horizontal": 0.1}), seeds=3)
    read = predicting.read_statistics

    def with_more(run: RunRecord, task: Task) -> RunStatistics:
        found = read(run, task)
        score = found.statistics["top1"]
        assert isinstance(score, MeanScore)
        target = np.arange(EXAMPLES) % 2
        f1 = macro_f1(np.where(score.score > 0, target, 1 - target), target, classes=2)
        loss, constant = MeanScore(1 - score.score), SpearmanCorrelation(np.ones(EXAMPLES), score.score)
        more = {"loss": loss, "macro_f1": f1, "constant": constant, "other": f1}
        comparable = {"other": run.recipe.graft or "none"}
        return dataclasses.replace(found, statistics={**found.statistics, **more}, comparable=comparable)

    monkeypatch.setattr(predicting, "read_statistics", with_more)
    monkeypatch.setattr(verdict, "affordable_resamples", lambda *_: 300)
    result = collect(study(tmp_path, seeds=3))
    gain = result.variants[1]
    assert gain.difference is not None
    assert (gain.difference.verdict, gain.difference.resamples) == ("better", 2000)
    assert gain.other_differences.keys() == {"loss", "macro_f1"}
    loss, f1 = gain.other_differences["loss"], gain.other_differences["macro_f1"]
    assert (loss.verdict, loss.mean) == ("better", pytest.approx(-gain.difference.mean))
    assert (f1.verdict, f1.resamples, f1.mcnemar) == ("better", 300, [])
    assert f1.p_value is not None and f1.p_holm is not None
    assert f1.p_value < f1.p_holm <= 2 * f1.p_value + 1e-12
    assert any("intervals of macro_f1 are from 300 resamples, not 2,000" in note for note in result.notes)
    assert "constant of cb_s or of the baseline is undefined for a seed; it is not compared." in result.notes
    assert (
        "other of cb_s is measured in other units than the baseline's (cb_s, not none); it is not compared."
        in result.notes
    )
    save_result(result, tmp_path)
    assert load_result(tmp_path) == result


def test_a_primary_metric_in_other_units_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `--metric perplexity` of hosts with other tokenizers: one sentence, in the report and on the terminal."""
    conducted(tmp_path, FakeTrainer({"cb_s": 0.2}), seeds=2)
    read = predicting.read_statistics

    def by_tokenizer(run: RunRecord, task: Task) -> RunStatistics:
        units = {"top1": "per token of BERT's" if run.recipe.graft == "cb_s" else "per token of GPT-2's"}
        return dataclasses.replace(read(run, task), comparable=units)

    monkeypatch.setattr(predicting, "read_statistics", by_tokenizer)
    result = collect(study(tmp_path, seeds=2))
    _, other, same = result.variants
    reason = (
        "top1 of cb_s is measured in other units than the baseline's (per token of BERT's, not per token of GPT-2's); it "
        "is not compared."
    )
    assert (other.difference, other.epochs_to_baseline, other.not_compared) == (None, None, reason)
    assert same.difference is not None
    assert same.not_compared == ""
    assert reason in result.notes
    page = html.unescape(write_report(result, tmp_path).read_text())
    assert page.count(reason) == 2
    assert "shares a seed" not in page
    text = io.StringIO()
    Console(width=100, file=text).print(study_table(result))
    assert "not compared" in text.getvalue()


def test_what_the_bootstrap_holds_fixed_stands_beside_the_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conducted(tmp_path, FakeTrainer({"cb_s": 0.2}), seeds=2)
    read = predicting.read_statistics

    def weighted(run: RunRecord, task: Task) -> RunStatistics:
        found = read(run, task)
        score = found.statistics["top1"]
        assert isinstance(score, MeanScore)
        fixed = dataclasses.replace(score, held_fixed="the weight of each class")
        return dataclasses.replace(
            found, statistics={"top1": score, "balanced_accuracy": fixed.take(np.arange(EXAMPLES))}
        )

    monkeypatch.setattr(predicting, "read_statistics", weighted)
    result = collect(study(tmp_path, seeds=2))
    difference = result.variants[1].other_differences["balanced_accuracy"]
    assert difference.held_fixed == "the weight of each class"
    page = write_report(result, tmp_path).read_text()
    assert page.count("The bootstrap interval of balanced accuracy holds the weight of each class fixed.") == 1


def test_other_examples_are_refused(tmp_path: Path) -> None:
    conducted(tmp_path, FakeTrainer())
    path = tmp_path / "runs" / "cb_s" / "seed1" / "predictions.npz"
    names = [f"other/{index}" for index in range(EXAMPLES)]
    np.savez(path, name=names, score=np.zeros(EXAMPLES), binary=True)
    with pytest.raises(DataError, match="different examples"):
        collect(study(tmp_path))


def test_damaged_predictions_are_named(tmp_path: Path) -> None:
    conducted(tmp_path, FakeTrainer())
    path = tmp_path / "runs" / "cb_s" / "seed1" / "predictions.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TrainingError, match=r"cb_s/seed1/predictions\.npz"):
        collect(study(tmp_path))


def test_results_of_a_newer_version_or_damaged_ones_are_refused(tmp_path: Path) -> None:
    conducted(tmp_path, FakeTrainer())
    path = tmp_path / "results.json"
    content = json.loads(path.read_text())
    (tmp_path / "checksums.json").unlink()
    path.write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(ConfigError, match="format 99"):
        load_result(path)
    path.write_text(json.dumps({**content, "extra": 1}))
    with pytest.raises(ConfigError, match="extra"):
        load_result(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="not a valid study result"):
        load_result(tmp_path)


def test_another_environment_is_noted(tmp_path: Path) -> None:
    conducted(tmp_path, FakeTrainer())
    file = tmp_path / "runs" / "cb_s" / "seed0" / "environment.json"
    file.write_text(json.dumps({"device_name": "other", "threads": 1, "packages": {}}))
    assert any("device_name" in note for note in collect(study(tmp_path)).notes)
