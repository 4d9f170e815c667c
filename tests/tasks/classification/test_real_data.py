"""Real data sets, as a user would name them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attngraft.cli import main
from attngraft.errors import DataError
from attngraft.study import Tools, load_result, runner
from tests.tasks.images.datasets import host_config, load, normalized

#: a comparison that takes seconds
TINY = ["--host", "vit_tiny_patch16_224", "--graft", "cb_s", "--seeds", "1", "--epochs", "1"]
for _argument in ("img_size=32", "patch_size=8", "embed_dim=24", "depth=1", "num_heads=3"):
    TINY += ["--host-arg", _argument]

CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SETS: dict[str, tuple[str, int, dict[str, int], list[str]]] = {
    "cifar10": ("cifar10/cifar10_train10k_test2k.npz", 32, {"train": 10000, "val": 2000}, CIFAR),
    "flowers5": ("flowers5", 32, {"train": 500, "val": 150}, ["daisy", "dandelion", "rose", "sunflower", "tulip"]),
    "tiny_imagenet20": ("tiny_imagenet20", 64, {"train": 6000, "val": 1000}, []),
    "one tar": ("tiny_imagenet20/val.tar", 32, {"train": 800, "val": 200}, []),
    "ants_bees": ("ants_bees", 32, {"train": 244, "val": 77}, ["ants", "bees"]),
}


@pytest.mark.parametrize("name", SETS)
def test_loads(shared: Path, name: str) -> None:
    path, size, sizes, classes = SETS[name]
    if not (shared / "data" / path).exists():
        pytest.skip(f"{path} is not among the reference data")
    data = load(shared / "data" / path, size=size)
    assert data.facts["sizes"] == sizes
    assert data.facts["classes"] == classes or (not classes and data.model_args["num_classes"] == 20)
    for split in (data.train, data.val):
        step = max(1, len(split) // 24)
        batch: Any = split.collate([split[(0, i)] for i in range(0, len(split), step)])
        assert batch["image"].shape[1:] == (3, size, size)
        images = normalized(batch["image"], host_config(size))
        assert torch.isfinite(images).all()
        assert 0.3 < images.std() < 2.0, "normalized pixels"
        assert len(batch["target"].unique()) >= min(5, len(data.facts["classes"]))
    assert Path(data.val.name(0)).suffix in (".jpg", ".JPEG")


def _there(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"{path.name} is not among the reference data")
    return path


def run_command(*arguments: object) -> int:
    """`attngraft` with these arguments; the exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_a_hundred_classes_of_one_image_each_are_refused_with_the_remedy(shared: Path) -> None:
    folder = _there(shared / "data" / "imagenet_samples")
    message = (
        f"{folder}/labels.csv: 100 classes ('0', '10', '20', '30', '40' and 95 more) have a single image, which cannot be "
        "split into training and validation; add images, or choose the classes to use with --set 'task.data.classes=[a,b]'"
    )
    with pytest.raises(DataError) as refused:
        load(folder)
    assert str(refused.value) == message


def test_data_check_says_what_is_there_before_it_says_why_not(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _there(shared / "data" / "imagenet_samples")
    assert run_command("data", "check", folder, "--json") == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["ready"], found["task"], found["kind"]) == (False, "classification", "table")
    assert found["classes"] == [str(index) for index in range(0, 1000, 10)]
    assert (found["parts"]["train"]["images"], found["parts"]["train"]["modes"]) == (100, {"RGB": 100})
    assert set(found["parts"]["train"]["counts"].values()) == {1}
    assert (found["unreadable"], found["leaks"], found["conflicting"]) == ([], [], [])
    assert found["notes"] == [
        "Labels are read from column 'class_index'.",
        "Paths are relative to images/, next to the table.",
    ]
    assert run_command("data", "check", folder) == 2
    shown = capsys.readouterr().out
    assert "labels.csv: table, 100 classes, for classification" in shown
    assert "Training would be refused" in shown and "have a single image" in shown
    assert "Ready" not in shown


@pytest.mark.product
def test_ants_and_bees_are_compared(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "Tools", lambda: Tools(measure_costs=lambda *_, **__: {}))
    out = tmp_path / "study"
    given = [*TINY, "--data", _there(shared / "data" / "ants_bees"), "--set", "train.batch_size=32", "--out", out]
    assert run_command("compare", *given) == 0
    result = load_result(out)
    assert result.data["split"] == "the folders train and val"
    assert result.data["counts"] == {"train": {"ants": 123, "bees": 121}, "val": {"ants": 35, "bees": 42}}
    assert [section.name for section in result.variants[1].sections] == ["classes", "confusion", "reliability"]
    assert [len(variant.runs) for variant in result.variants] == [1, 1]
    assert "Split:" not in capsys.readouterr().out, "nothing was drawn"
    assert "Class by class" in (out / "report.html").read_text(encoding="utf-8")
