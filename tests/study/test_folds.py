"""Cross-validation: a study of two variants, two seeds and three folds, resumed, reported and refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.cli import main
from attngraft.errors import ConfigError, DataError, FolderError, TrainingError, UsageError
from attngraft.export.run import export_run
from attngraft.results.crossed import components
from attngraft.results.records import open_records
from attngraft.results.storage import load_result
from attngraft.study import StudyConfig, Tools, compare, incomplete, report_only, study_from_dict
from attngraft.study.plan import resolve_runs
from attngraft.training.run_folder import RunFolder, read_run, runs_below
from tests.study.fakes import FakeTrainer
from tests.tasks.images.datasets import make_folder

TOOLS = Tools(write_report=lambda result, folder: folder)
IMAGES = 24


def folded(out: Path, data: Path | str, **changes: Any) -> StudyConfig:
    plain = {
        "host": {
            "name": "vit_tiny_patch16_224",
            "args": {"img_size": 8, "patch_size": 4, "depth": 1, "embed_dim": 12, "num_heads": 2},
        },
        "grafts": ["cb_s"],
        "data": str(data),
        "set": ["train.batch_size=8", "train.threads=1", "optimizer.lr=3e-3", "schedule.warmup_epochs=0"],
        "seeds": 2,
        "folds": 3,
        "epochs": 1,
        "out": str(out),
    }
    return study_from_dict({**plain, **changes})


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("images"), {"cat": 14, "dog": 10}, size=(8, 8))


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "out"
    compare(folded(out, data), costs=False)
    return out


def test_every_image_is_judged_once_per_seed(trained: Path) -> None:
    result = load_result(trained)
    assert not incomplete(result)
    assert (result.folds, len(runs_below(trained))) == (3, 12)
    assert (result.recipe["task"]["data"]["folds"], result.recipe["task"]["data"]["fold"]) == (3, None)
    assert result.data["sizes"] == {"train": 16, "val": IMAGES}
    assert result.data["counts"]["val"] == {"cat": 14, "dog": 10}
    partitions, tables = [], []
    for variant in result.variants:
        scores = []
        for run in variant.runs:
            of_fold = []
            for fold in range(3):
                with open_records(trained / run.folder / f"fold{fold}" / "predictions.npz") as table:
                    assert table.score is not None
                    of_fold.append(dict(zip(table.names.tolist(), table.score.tolist(), strict=True)))
            together = {name: score for each in of_fold for name, score in each.items()}
            assert len(together) == sum(map(len, of_fold)) == IMAGES
            assert run.last["top1"] == pytest.approx(np.mean([*together.values()]))
            assert len(run.curve["val/top1"]) == 1
            partitions.append([sorted(each) for each in of_fold])
            scores.append([together[name] for name in sorted(together)])
        tables.append(np.array(scores))
    assert all(each == partitions[0] for each in partitions), "all variants and seeds share the folds"
    difference = result.variants[1].difference
    assert difference is not None
    expected = components(tables[1] - tables[0])
    assert difference.mean == pytest.approx(expected.mean)
    assert difference.interval == expected.with_folds(3).interval()
    assert expected.with_folds(3).examples == pytest.approx(expected.examples * 2.5)
    assert expected.with_folds(None) == expected
    assert any("Cross-validation with 3 folds" in note for note in result.notes)
    assert not any("different examples" in note or "mean score" in note for note in result.notes)
    page = (trained / "report.html").read_text(encoding="utf-8")
    assert "2 seeds &times; 3 folds" in page
    assert (trained / "examples.json").is_file()


def test_resuming_trains_only_what_is_missing(trained: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(trained, out)
    before = load_result(out)
    missing = out / "runs" / "cb_s" / "seed1" / "fold2"
    shutil.rmtree(missing)
    partly = report_only(folded(out, data), tools=TOOLS)
    assert incomplete(partly)
    assert [len(variant.runs) for variant in partly.variants] == [2, 1]
    assert "cb_s: unfinished folds (of 3) of seed 1; its numbers are of the other seeds." in partly.notes
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    again = compare(folded(out, data), costs=False, tools=TOOLS)
    assert [[run.last for run in variant.runs] for variant in again.variants] == [
        [run.last for run in variant.runs] for variant in before.variants
    ]
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert len(list(out.rglob("metrics.jsonl"))) == 12


def test_the_run_of_a_fold_is_a_run(trained: Path, tmp_path: Path) -> None:
    folder = trained / "runs" / "cb_s" / "seed1" / "fold2"
    assert RunFolder(folder).study == trained.resolve()
    assert read_run(folder).recipe.task["data"]["fold"] == 2
    assert export_run(folder, tmp_path / "model").folder.is_dir()
    assert "cb_s/seed1/fold2" in (tmp_path / "model" / "attngraft.json").read_text(encoding="utf-8")
    with pytest.raises(FolderError, match=r"seed1 is a seed with folds; give one of its runs: .*fold0"):
        read_run(folder.parent)


def test_the_plan_counts_runs(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--host", "vit_tiny_patch16_224", "--host-arg", "img_size=16", "--host-arg", "depth=1", "--seeds", "2"]
    arguments += [
        "--graft",
        "cb_s",
        "--data",
        str(data),
        "--folds",
        "5",
        "--epochs",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    with pytest.raises(SystemExit):
        main(["compare", *arguments, "--dry-run", "--json"])
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert len(runs) == 20
    assert [(run["seed"], run["fold"], run["variant"]) for run in runs[:3]] == [
        (0, 0, "baseline"),
        (0, 0, "cb_s"),
        (0, 1, "baseline"),
    ]
    assert runs[-1]["folder"].endswith("runs/cb_s/seed1/fold4")
    assert not (tmp_path / "out").exists()


def test_the_file_keeps_the_folds(tmp_path: Path) -> None:
    config = folded(tmp_path, "digits")
    assert study_from_dict(config.to_dict()).folds == 3
    assert "folds" not in study_from_dict({**config.to_dict(), "folds": None}).to_dict()
    task = {"set": ["task.data.split_seed=4"], "grafts": [{"graft": "cb_s", "set": {"task.loss.smoothing": 0.1}}]}
    run = resolve_runs(folded(tmp_path, "digits", **task)).runs[-1]
    assert (run.label, run.recipe.task["data"]["fold"]) == ("cb_s with task.loss.smoothing=0.1, seed 1, fold 2", 2)
    assert run.recipe.task["loss"]["smoothing"] == 0.1


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"folds": 1}, UsageError, r"folds: must be at least 2, got 1"),
        ({"folds": 10**9}, UsageError, r"folds: must be at most 10,000, got"),
        ({"folds": 11}, DataError, r"11 folds need at least 11 images of each class, which 'dog' \(10\) does not have"),
        ({"halving": 2, "epochs": 4}, UsageError, "--halving compares runs on one split"),
        ({"suites": ["clean"]}, UsageError, "--suite evaluates runs on one split"),
        ({"set": ["task.data.val_fraction=0.3"]}, ConfigError, "cannot be combined with folds"),
        ({"set": ["task.data.group_column=patient"]}, DataError, "group_column requires a table"),
    ],
)
def test_refusals(data: Path, tmp_path: Path, changes: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        compare(folded(tmp_path / "out", data, **changes), costs=False, tools=TOOLS)
    assert not (tmp_path / "out").exists()


def test_predictions_of_another_fold_are_refused(trained: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(trained, out)
    runs = out / "runs" / "cb_s" / "seed0"
    other = RunFolder(runs / "fold2")
    shutil.copy(runs / "fold1" / "predictions.npz", other.predictions)
    content = json.loads(other.finished.read_text())
    other.write_finished({name: value for name, value in content.items() if name not in ("files", "sha256")})
    with pytest.raises(TrainingError, match=r"fold2/predictions\.npz: contains .*, which is also in .*fold1/pred"):
        report_only(folded(out, data), tools=TOOLS)


def test_other_folds_in_the_folder_are_refused(trained: Path, data: Path, tmp_path: Path) -> None:
    before = sorted(trained.rglob("*"))
    for folds, reason in ((None, "contains a run of 3 folds, but the study has no folds"), (2, "of 3 folds, but")):
        with pytest.raises(FolderError, match=reason):
            compare(folded(trained, data, folds=folds), costs=False, tools=TOOLS)
    with pytest.raises(FolderError, match=r"task\.data\.folds"):
        compare(folded(trained, data, folds=4), costs=False, tools=TOOLS)
    assert sorted(trained.rglob("*")) == before
    out = tmp_path / "out"
    tools = Tools(train=FakeTrainer(), write_report=TOOLS.write_report)
    compare(folded(out, "digits", folds=None), costs=False, tools=tools)
    with pytest.raises(FolderError, match="contains a run without folds, but the study has 3 folds"):
        report_only(folded(out, "digits"), tools=tools)
