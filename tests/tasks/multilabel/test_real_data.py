"""COCO as images of several labels: opened, divided, compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attngraft.study import Tools, load_result, runner
from attngraft.tasks.images.splits import LabelledSplit
from attngraft.tasks.multilabel import MultiLabel
from attngraft.tasks.task import TaskData
from tests.tasks.classification.test_real_data import TINY, run_command
from tests.tasks.images.datasets import host_config


@pytest.fixture
def coco(shared: Path) -> Path:
    folder = shared / "data" / "coco_small"
    if not folder.is_dir():
        pytest.skip("coco_small is not among the reference data")
    return folder


def _load(source: Path, **data: object) -> TaskData:
    task = MultiLabel.from_config({"name": "multilabel", "data": {"source": str(source), **data}}, seed=0)
    return task.load(model_data_config=host_config(32))


def test_loads(coco: Path) -> None:
    data = _load(coco)
    assert data.facts["sizes"] == {"train": 209, "val": 79}
    assert data.facts["kind"] == "coco"
    assert data.facts["classes"][0] == "person"
    assert data.model_args["num_classes"] == len(data.facts["classes"]) > 40
    assert "split_file" not in data.facts, "it has parts of its own"
    batch = data.train.collate([data.train[(0, i)] for i in range(0, 209, 20)])
    assert batch["image"].shape == (11, 3, 32, 32)
    assert batch["target"].shape == (11, data.model_args["num_classes"])


def test_a_drawn_part_has_its_share_of_frequent_and_rare_categories(coco: Path) -> None:
    drawn = _load(coco, val_fraction=0.2)
    assert isinstance(drawn.train, LabelledSplit) and isinstance(drawn.val, LabelledSplit)
    train, val = drawn.train.labels.sum(0), drawn.val.labels.sum(0)
    counts = train + val
    assert counts.sum() == _load(coco).train.labels.sum()  # type: ignore[attr-defined]
    assert (train > 0).all()
    assert (val[counts > 1] > 0).all()
    assert np.abs(val - 0.2 * counts)[counts > 1].mean() < 1.0
    assert abs(val[0] / counts[0] - 0.2) < 0.1, "person, on half of the images: the last that is served"


@pytest.mark.product
def test_it_is_compared(coco: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "Tools", lambda: Tools(measure_costs=lambda *_, **__: {}))
    out = tmp_path / "study"
    given = [*TINY, "--recipe", "multilabel", "--data", coco, "--set", "train.batch_size=32", "--out", out]
    assert run_command("compare", *given) == 0
    result = load_result(out)
    assert (result.task, result.metric, result.data["sizes"]) == ("multilabel", "image_ap", {"train": 209, "val": 79})
    assert [len(variant.runs) for variant in result.variants] == [1, 1]
    (table,) = [section.table for section in result.variants[1].sections if section.name == "classes"]
    assert table is not None
    assert [row[0] for row in table.rows] == result.data["classes"]
    assert "Class by class" in (out / "report.html").read_text(encoding="utf-8")
