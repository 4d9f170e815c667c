"""`compare --epochs 0`: models as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from attngraft.cli import main
from attngraft.errors import UsageError
from attngraft.report.figures import study_figures
from attngraft.report.page import report_html
from attngraft.results.study import Cost
from attngraft.study import StudyResult, Tools, compare, load_result, study_from_dict
from attngraft.study.plan import Study
from attngraft.training.evaluate import evaluate_run
from attngraft.training.loop import train
from attngraft.training.recipe import recipe_from_dict

HOST = {
    "name": "vit_tiny_patch16_224",
    "args": {"img_size": 8, "patch_size": 4, "depth": 2, "embed_dim": 24, "num_heads": 3, "in_chans": 1},
}
TRAIN = {"batch_size": 256, "threads": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch on digits."""
    folder = tmp_path_factory.mktemp("trained")
    task = {"name": "classification", "data": {"source": "digits"}}
    plain = {"host": HOST, "task": task, "schedule": {"epochs": 1}, "train": TRAIN, "optimizer": {"lr": 3e-3}}
    train(recipe_from_dict(plain), folder)
    return folder


def study(weights: Path | None, out: Path, tools: Tools | None = None, **more: Any) -> StudyResult:
    plain = {
        "host": {**HOST, **({} if weights is None else {"weights": str(weights)})},
        "grafts": ["identity", "cb"],
        "data": "digits",
        "set": ["train.batch_size=256", "train.threads=1"],
        "seeds": 2,
        "epochs": 0,
        "out": str(out),
        **more,
    }
    return compare(study_from_dict(plain), tools=tools)


def test_models_are_compared_as_they_are(trained: Path, tmp_path: Path) -> None:
    measured: list[list[str]] = []

    def costs(study: Study, *_: Any, **__: Any) -> dict[str, Cost]:
        measured.append([variant.name for variant in study.variants])
        return {}

    study(
        trained / "checkpoints" / "best.safetensors",
        tmp_path,
        tools=Tools(measure_costs=costs, write_report=lambda _, folder: folder),
    )
    result = load_result(tmp_path)
    expected = evaluate_run(trained, weights="best")
    baseline, identity, other = result.variants
    assert [run.last["top1"] for run in baseline.runs] == [expected.metrics["top1"]] * 2
    assert identity.difference is not None and other.difference is not None
    assert identity.difference.mean == 0
    assert identity.difference.verdict == "inside the noise"
    assert identity.other_differences["loss"].mean == 0 != other.other_differences["loss"].mean
    assert measured == [["baseline", "identity", "cb"]]  # costs are measured as ever
    assert result.epochs == 0
    run = tmp_path / baseline.runs[0].folder
    (row,) = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert row["epoch"] == 0
    with np.load(run / "predictions.npz") as a:
        assert np.array_equal(a["logits"], expected.predictions.arrays["logits"])
    kept, given = (load_file(folder / "checkpoints" / "best.safetensors") for folder in (run, trained))
    assert all(torch.equal(kept[name], given[name]) for name in given)
    page = report_html(result)
    assert "Nothing was trained (--epochs 0)" in page
    assert "not trained" in page
    assert not re.search(r"\bnan\b", page, flags=re.IGNORECASE)
    assert "curves" not in study_figures(result)
    assert load_result(tmp_path).variants[1].epochs_to_baseline is None


@pytest.mark.slow
def test_less_data_than_a_training_batch_is_enough(trained: Path, tmp_path: Path) -> None:
    settings = ["train.batch_size=4096", "train.accumulate=4", "train.threads=1"]
    weights = trained / "checkpoints" / "best.safetensors"
    tools = Tools(write_report=lambda _, folder: folder)
    result = study(weights, tmp_path, tools, grafts=["identity"], seeds=1, set=settings)
    assert result.variants[0].runs[0].last["top1"] == evaluate_run(trained, weights="best").metrics["top1"]
    cost = result.variants[1].cost
    assert cost is not None and cost.macs


def test_models_that_need_training(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="has random weights; use --pretrained or --weights FILE"):
        study(None, tmp_path / "random")
    with pytest.raises(UsageError, match="would have a new head"):
        study(
            trained / "checkpoints" / "best.safetensors",
            tmp_path / "classes",
            data={"source": "digits", "classes": ["0", "1", "2"]},
        )
    with pytest.raises(UsageError, match="0 trains nothing; remove halving"):
        study(trained, tmp_path / "halved", halving=3)
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--graft", "cb", "--data", "digits", "--epochs", "-1", "--out", str(tmp_path / "less")])
    assert ended.value.code == 2
    assert "must not be negative" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
