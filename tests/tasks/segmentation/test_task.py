"""The task: hosts of one size, frozen norms, wrong input, and a whole study."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from attngraft.study import memory
from attngraft.targets.handle import open_handle
from attngraft.tasks.fitting import fitting_task
from attngraft.training.evaluate import evaluate_run
from attngraft.training.freezing import train_mode
from attngraft.training.recipe import recipe_from_dict
from tests.cli.test_export import run
from tests.contract.task_contract import Loaded
from tests.tasks.segmentation.drawings import CLASSES, HOST, drawing, section, write_drawings

ARGS = [f"--host-arg={name}={json.dumps(value)}" for name, value in HOST["args"].items()]
SMALL = ["--host", HOST["name"], *ARGS, "--set", "task.augment.crop=[16,16]", "--set", "task.width=8"]


def loaded(folder: Path, *, host: dict[str, Any] = HOST, **fields: Any) -> Loaded:
    return Loaded(recipe_from_dict({"host": host, "task": section(folder, **fields)}))


def test_a_host_of_one_size_gets_windows_of_the_size_of_the_crops(tmp_path: Path) -> None:
    found = loaded(tmp_path, host={"name": "mixer_s32_224"}, augment={"crop": [32, 64]})
    assert found.data.model_args == {"num_classes": 0, "img_size": [32, 64]}
    assert "windows of 32 x 64" in found.data.facts["notes"][-1]
    masks = found.infer(range(2)).outputs["mask"]
    assert [mask.shape for mask in masks] == [found.data.val[0, index][1].shape for index in range(2)]


def test_boundaries_are_evaluated_during_training_if_they_are_the_primary_metric(tmp_path: Path) -> None:
    for primary, counted in (("miou", False), ("boundary_iou", True)):
        found = loaded(tmp_path, metrics={"primary": primary})
        records = found.task.infer(found.model, found.batch([0]), full=False)
        assert ("boundary_right" in records.statistics) == counted


def test_frozen_norms_are_those_of_the_host(tmp_path: Path) -> None:
    levit = {"name": "levit_128s", "args": {"stem_type": "s8", "embed_dim": [16] * 3, "depth": [1] * 3, "key_dim": 8}}
    host = {**levit, "args": {**levit["args"], "num_heads": [2] * 3}}
    found = loaded(tmp_path, host=host, freeze_norm=True, augment={"crop": [64, 64]})
    model = found.build(graft="bisa@stages.0")
    train_mode(model)
    norms = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)
    }
    frozen = {name for name, module in norms.items() if not module.training}
    assert frozen == {name for name in norms if name.startswith("host.") and ".grafts." not in name} != set()
    assert not any(parameter.requires_grad for name in frozen for parameter in norms[name].parameters())


def test_chance_is_the_most_frequent_class_of_the_training_pixels(tmp_path: Path) -> None:
    found = loaded(tmp_path)
    chance = found.task.chance(found.table, found.data.facts)
    true = found.table.array("true").sum(0)
    assert chance is not None and chance.description == "always ground"
    assert chance.values["aacc"] == pytest.approx(true[0] / true.sum())
    assert chance.values["miou"] == pytest.approx(true[0] / true.sum() / 3)


MISTAKES = {
    "task.width: must be at least 2": ["--set", "task.width=0"],
    "'unet' is not a choice": ["--set", "task.head=unet"],
    "2 numbers for 3 classes": ["--set", "task.loss.class_weights=[1,2]"],
    "task.norm=group": ["--set", "task.head=upernet", "--set", "train.batch_size=1"],
    "no class 'sky'": ["--set", "task.data.ignore=[sky]"],
    "no folders pictures and masks": ["--set", "task.data.images=pictures"],
    "does not support training with a teacher": ["--set", "distill.teacher.name=vit_tiny_patch16_224"],
    "requires images": ["--host", "attngraft:mt_transformer"],
}


@pytest.mark.parametrize("reason", MISTAKES)
def test_mistakes(reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_drawings(tmp_path / "data", train=3, val=2)
    given = [*SMALL, *MISTAKES[reason]]
    if "--host" in MISTAKES[reason]:
        given = MISTAKES[reason]
    assert run("train", "--task", "segmentation", "--data", data, *given, "--out", tmp_path / "run") == 2
    assert reason in capsys.readouterr().err.replace("\n", " ")
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock"]


@pytest.mark.parametrize(
    ("folders", "task"),
    [
        (["images/a.png", "masks/a.png"], "segmentation"),
        (["train/img/a.png", "train/labels/a.png"], "segmentation"),
        (["images/a.png", "labels/a.txt"], "classification"),
        (["images/a.png", "other/a.png"], "classification"),
    ],
)
def test_folders_of_images_and_masks_name_the_task(folders: list[str], task: str, tmp_path: Path) -> None:
    for name in folders:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert fitting_task({"source": str(tmp_path)})[0] == task


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("segmentation")
    data = write_drawings(folder / "data", train=6, val=3, test=3)
    options = ["--seeds", 1, "--epochs", 1, "--set", "train.threads=1"]
    assert run("compare", "--data", data, *SMALL, "--graft", "cb_s(init=1)", *options, "--out", folder / "study") == 0
    return folder / "study"


def test_the_plan_of_a_study_has_the_memory_of_evaluation(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_on", lambda device: 1000)
    data = write_drawings(tmp_path / "data", train=4, val=2)
    options = ["--graft", "cb_s", "--epochs", 1, "--dry-run", "--out", tmp_path / "study"]
    with caplog.at_level("INFO"):
        assert run("compare", "--data", data, *SMALL, *options) == 0
    plan = caplog.text + capsys.readouterr().out
    assert re.search(r"; evaluating the largest image, 2. x 2., takes about [\d.]+ MiB of memory", plan)
    assert re.search(r"takes about [\d.]+ MiB of memory, but 0\.0 MiB are free; use smaller images", plan)


def test_a_study_has_ious_by_class_boundaries_and_overlays(study: Path) -> None:
    result = json.loads((study / "results.json").read_text())
    sections = {each["name"]: each for each in result["variants"][0]["sections"]}
    assert [row[0] for row in sections["classes"]["table"]["rows"]] == ["ground", "square", "stripe"]
    assert len(sections["boundaries"]["table"]["rows"]) == 4
    compared = result["variants"][1]
    intervals, rows = compared["part_differences"]["miou"], compared["sections"][0]["table"]["rows"]
    assert "part_differences" not in result["variants"][0]
    for interval, row, before in zip(intervals, rows, sections["classes"]["table"]["rows"], strict=True):
        assert interval["low"] <= interval["point"] <= interval["high"]
        assert interval["point"] == pytest.approx(row[2] - before[2])
    examples = json.loads((study / "examples.json").read_text())
    page = (study / "report.html").read_text()
    assert examples["masks"]
    for group in examples["groups"]:
        for image in group["images"]:
            assert image["name"].startswith("images/test/") and image["jpeg"] in page
    assert "at most so many rows and columns" in page
    assert "with its 95% interval over seeds and examples" in page
    assert "mIoU %, by distance. At the end: baseline " in page


def test_masks_and_overlays(study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, out = study / "runs" / "baseline" / "seed0", tmp_path / "masks"
    names = []
    for index in range(2):
        names.append(tmp_path / f"drawing{index}.png")
        drawing(index)[0].save(names[-1])
    assert run("predict", model, *names, "--out", out) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        f"drawing{index}{end}" for index in range(2) for end in ("-overlay.jpg", ".png")
    ]
    mask = Image.open(out / "drawing0.png")
    assert mask.mode == "P" and mask.size == drawing(0)[0].size and np.asarray(mask).max() < 3
    capfd.readouterr()
    assert run("predict", model, names[0], "--format", "json") == 0
    shares = json.loads(capfd.readouterr().out)["inputs"][0]["prediction"]
    classes = ("ground", "square", "stripe")
    assert shares == {
        classes[label]: pytest.approx((np.asarray(mask) == label).mean(), abs=1e-6)
        for label in np.unique(np.asarray(mask))
    }
    (tmp_path / "other").mkdir()
    names[0].rename(tmp_path / "other" / "drawing1.png")
    for given, reason in (
        ([names[1], tmp_path / "other" / "drawing1.png", "--out", out], "would both write drawing1.png"),
        ([names[1], "--out", tmp_path], "would replace an image"),
        ([names[1], "--top", 2], "has other outputs"),
        ([names[1], "--format", "text"], "does not write text"),
    ):
        assert run("predict", model, *given) == 2
        assert reason in capfd.readouterr().err
    (tmp_path / "cut.png").write_bytes(names[1].read_bytes()[:99])
    assert run("predict", model, tmp_path / "cut.png", names[1], "--out", out) == 1
    assert "1 of 2 images could not be read" in capfd.readouterr().err


def test_other_images_without_splits_are_all_evaluated(study: Path, tmp_path: Path) -> None:
    flat = write_drawings(tmp_path / "flat", train=5, val=0)
    for kind in ("images", "masks"):
        for path in (flat / kind / "train").iterdir():
            path.rename(flat / kind / path.name)
        (flat / kind / "train").rmdir()
    evaluation = evaluate_run(study / "runs" / "baseline" / "seed0", data=str(flat))
    assert evaluation.split == "all" and len(evaluation.predictions.names) == 5


def test_the_card_of_an_exported_model(study: Path, tmp_path: Path) -> None:
    [grafted] = [path for path in (study / "runs").iterdir() if path.name != "baseline"]
    assert run("export", grafted / "seed0", "--out", tmp_path / "out") == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "pipeline_tag: image-segmentation" in card and "predict THIS_FOLDER IMAGES... --out masks" in card
    assert "colors" not in card and str(tmp_path.parent) not in card


def test_analyses_and_the_explorer(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [grafted] = [path / "seed0" for path in (study / "runs").iterdir() if path.name != "baseline"]
    assert run("analyze", "distance", "curves", "--study", study, "--limit", 2) == 0
    assert 'id="analysis-distance"' in (study / "report.html").read_text()
    assert run("export", grafted, "--out", tmp_path / "model") == 0
    image = study.parent / "data" / "images" / "val" / "6.png"
    page = tmp_path / "page.html"
    assert run("explore", "--run", grafted, "--model", tmp_path / "model", "--image", image, "--out", page) == 0
    text = page.read_text()
    assert text.count('"predicted mask": "data:image/') == 2 and text.count('"true mask": "data:image/') == 1
    assert text.count("image resized and cropped to 32 ") == 2
    capsys.readouterr()
    assert run("analyze", "confusion", "--run", grafted, "--out", tmp_path / "out") == 2
    assert "predicts one per pixel; give classifiers" in capsys.readouterr().err.replace("\n", " ")
    assert run("analyze", "distance", "--model", tmp_path / "model", "--image", image, "--out", tmp_path / "out") == 0


def test_a_run_and_its_export_are_the_same_model(study: Path, tmp_path: Path) -> None:
    model = study / "runs" / "baseline" / "seed0"
    assert run("export", model, "--out", tmp_path / "model") == 0
    first, second = open_handle(str(model)), open_handle(str(tmp_path / "model"))
    views = [each.view(drawing(0)[0]) for each in (first, second)]
    assert views[0].shape == (3, 32, 32) and torch.equal(*views)
    logits = [each.model(each.inputs([view])) for each, view in zip((first, second), views, strict=True)]
    assert logits[0].shape[:2] == (1, 3)
    torch.testing.assert_close(*logits)
    assert first.serving is None and first.masks is not None and first.masks.classes == CLASSES
