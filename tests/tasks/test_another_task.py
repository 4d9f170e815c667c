"""A task of another package: trained, compared and reported like the built-in ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.errors import ConfigError
from attngraft.report.page import report_html
from attngraft.study import StudyConfig, Tools, compare, incomplete, load_result, runner, study_from_dict
from attngraft.tasks.task import known_tasks, load_task

RECIPE = """
host:
  name: vit_tiny_patch16_224
  args: {img_size: 8, patch_size: 1, in_chans: 1, embed_dim: 24, depth: 2, num_heads: 3}
task: {name: toy_dense, size: 48}
optimizer: {lr: 5.0e-3}
schedule: {epochs: 1, warmup_epochs: 0}
train: {batch_size: 8, threads: 1}
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The toy task as an installed package would declare it."""
    info = tmp_path / "site" / "toy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[attngraft.tasks]\ntoy_dense = tests.tasks.toy_dense:ToyDense\nbroken = tests.tasks.nowhere:Nothing\n"
        "classification = tests.tasks.nowhere:Nothing\n"
    )
    monkeypatch.syspath_prepend(str(info.parent))
    return tmp_path


def test_entry_points_are_found_and_ours_come_first(installed: Path) -> None:
    assert known_tasks()["toy_dense"] == "tests.tasks.toy_dense:ToyDense"
    assert load_task("toy_dense").__name__ == "ToyDense"
    assert load_task("classification").__module__ == "attngraft.tasks.classification.task"
    with pytest.raises(ConfigError, match=r"task broken: cannot import tests\.tasks\.nowhere:Nothing"):
        load_task("broken")
    with pytest.raises(
        ConfigError, match=r"'toy_dens' \(did you mean toy_dense\?\).*classification, .*multilabel, .*toy_dense"
    ):
        load_task("toy_dens")


def _conducted(folder: Path, **changes: Any) -> StudyConfig:
    (folder / "dense.yaml").write_text(RECIPE)
    plain = {"recipe": str(folder / "dense.yaml"), "grafts": ["cb_s"], "seeds": 2, "out": str(folder / "study")}
    return study_from_dict({**plain, **changes})


def test_a_dense_task_is_trained_compared_and_reported(installed: Path) -> None:
    result = compare(_conducted(installed), costs=False, tools=Tools(write_report=lambda result, folder: folder))
    assert not incomplete(result)
    assert load_result(installed / "study") == result
    assert (result.task, result.metric) == ("toy_dense", "image_iou")
    assert result.title == (
        "vit_tiny_patch16_224 (img_size=8, patch_size=1, in_chans=1, embed_dim=24, depth=2, num_heads=3) "
        "on drawings: 1 graft"
    )
    for variant in result.variants:
        for run in variant.runs:
            with np.load(installed / "study" / run.folder / "predictions.npz") as arrays:
                assert run.last["image_iou"] == pytest.approx(arrays["score"].mean())
                assert arrays["union"].shape == (48, 3)
            assert run.curve["train/loss"][-1] < 1.1  # ln 3 is what a guess costs
        assert [section.name for section in variant.sections] == ["classes"]
    found = result.variants[1].difference
    assert found is not None
    assert found.mcnemar == []
    assert not any("mean score" in note for note in result.notes)
    assert json.loads((installed / "study" / "results.json").read_text())["metrics"]["miou"]["share"]
    assert "last_image_iou_mean" in (installed / "study" / "results.csv").read_text()
    page = report_html(result)
    for said in ("mean IoU by drawing", "Pixels by class", "square", "IoU %"):
        assert said in page
    assert "McNemar tests" not in page


@pytest.mark.slow
def test_its_costs_are_measured(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "COST_SECONDS", 0.1)
    result = compare(_conducted(installed, grafts=["horizontal"], seeds=1))
    baseline, variant = (each.cost for each in result.variants)
    assert baseline is not None
    assert variant is not None
    assert variant.macs
    assert baseline.macs
    assert variant.macs > baseline.macs > 0
    assert (installed / "study" / "report.html").is_file()
