"""The task: hosts of one size, wrong input, a whole study, predictions and export, and learning."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from attngraft.errors import DataError
from attngraft.results.records import RecordTable
from attngraft.study import example_objects
from attngraft.study.example_objects import object_examples
from attngraft.tasks.detection import Detection
from attngraft.tasks.detection.metrics import measure
from attngraft.tasks.detection.split import ObjectSplit
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.task import StepContext
from attngraft.training.build import build_model, model_data_config, task_of
from attngraft.training.recipe import recipe_from_dict
from attngraft.training.run_folder import read_run
from tests.cli.test_export import run
from tests.contract.task_contract import Loaded, total
from tests.tasks.detection.scenes import SMALL, scene, write_coco, write_masks, write_yolo
from tests.tasks.segmentation.drawings import HOST

OPTIONS = [
    "--host",
    HOST["name"],
    *(f"--host-arg={name}={json.dumps(value)}" for name, value in HOST["args"].items()),
    *(part for name, value in SMALL.items() for part in ("--set", f"task.{name}={json.dumps(value)}")),
]


def loaded(data: Path, *, host: dict[str, Any] = HOST, **fields: Any) -> Loaded:
    task = {
        "name": "detection",
        "data": {"source": str(data)},
        "augment": {"size": [], "hflip": 0.0},
        **SMALL,
        **fields,
    }
    return Loaded(recipe_from_dict({"host": host, "task": {"test": {"size": None}, **task}}))


def test_a_host_of_one_size_gets_images_that_fit_into_it(tmp_path: Path) -> None:
    data = write_coco(tmp_path, {"train": 4, "val": 2})
    found = loaded(data, host={"name": "mixer_s32_224"}, augment={"size": [], "crop": [32, 64]})
    assert found.data.model_args == {"num_classes": 0, "img_size": [32, 64]}
    assert "32 x 64" in found.data.facts["notes"][-1]
    assert found.data.val[0, 0]["image"].shape[-2:] == (32, 42)  # of 36 x 47
    records = found.infer([0, 1])
    for box, size in zip(records.outputs["box"], [found.data.val[0, index]["size"] for index in range(2)], strict=True):
        assert (box >= 0).all() and (box <= np.array([*size[::-1], *size[::-1]])).all()
    losses = found.task.step(
        found.model.train(),
        found.task.prepare(found.data.train.collate([found.data.train[0, 1], found.data.train[0, 2]]), epoch=0, step=0),
        StepContext(seed=0, epoch=0, step=0, model=found.model),
    )
    assert all(torch.isfinite(each.mean) for each in losses.values())


def test_light_inference_leaves_out_boundaries_and_the_floor(tmp_path: Path) -> None:
    found = loaded(write_masks(tmp_path))
    full, light = (found.task.infer(found.model, found.batch([0, 1]), full=full) for full in (True, False))
    only = full.statistics.keys() - light.statistics.keys()
    assert {name.partition("_")[0] for name in only} == {"boundary", "floor"}
    assert full.outputs.keys() == light.outputs.keys() == {"box", "mask", "mask_length"}


def test_boxes_alone(tmp_path: Path) -> None:
    found = loaded(write_yolo(tmp_path), head="faster_rcnn")
    assert found.task.primary == "box_ap"
    records = found.infer([0, 1])
    assert not any(name.startswith(("mask", "boundary", "floor")) for name in {**records.statistics, **records.outputs})


MISTAKES = {
    "objects have no masks, which mask_rcnn predicts; add --set task.head=faster_rcnn": [],
    "predicts no masks": ["--set", "task.head=faster_rcnn", "--set", "task.metrics.primary=mask_ap"],
    "must be five positive numbers": ["--set", "task.anchors=[8,16]"],
    "does not support training with a teacher": ["--set", "distill.teacher.name=vit_tiny_patch16_224"],
    "requires images": ["--host", "attngraft:mt_transformer"],
}


@pytest.mark.parametrize("reason", MISTAKES)
def test_mistakes(reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [*OPTIONS, *MISTAKES[reason]]
    if "--host" in MISTAKES[reason]:
        given = MISTAKES[reason]
    assert (
        run("train", "--data", write_yolo(tmp_path / "data"), "--task", "detection", *given, "--out", tmp_path / "run")
        == 2
    )
    assert reason in " ".join(capsys.readouterr().err.split())
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != ".lock"]


def test_more_objects_than_detections_are_noted(tmp_path: Path) -> None:
    found = loaded(write_coco(tmp_path, {"train": 4, "val": 4}), test={"size": None, "detections": 2})
    assert any("more than 2 objects" in note and "task.test.detections=3" in note for note in found.data.facts["notes"])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detection")
    data = write_masks(folder / "data")
    options = ["--seeds", 1, "--epochs", 1, "--set", "train.threads=1", "--set", "task.test.min_score=0.01"]
    options += ["--set", "task.augment.crop=[48,48]", "--set", "task.test.detections=20"]
    grafts = ["--graft", "cb_s(init=1)"]
    assert (
        run("compare", "--task", "detection", "--data", data, *OPTIONS, *grafts, *options, "--out", folder / "study")
        == 0
    )
    return folder / "study"


def test_a_study_has_classes_errors_the_floor_and_pictures(study: Path) -> None:
    result = json.loads((study / "results.json").read_text())
    assert result["metric"] == "mask_ap"
    sections = {each["name"]: each for each in result["variants"][0]["sections"]}
    assert [row[0] for row in sections["errors"]["table"]["rows"]][:2] == ["right", "missed objects"]
    floor = {row[0]: row[1:] for row in sections["floor"]["table"]["rows"]}
    assert floor["mask AP50"][0] > 0.5  # bright shapes on a dark ground
    assert len(sections["classes"]["table"]["rows"]) == 1
    page = (study / "report.html").read_text()
    for text in (
        "at most 20 detections of an image (maxDets)",
        "Without training",
        "mask AP small",
    ):
        assert text in page, text


def test_pictures_show_objects_and_both_models(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter(([0.2, 0.5, 0.9], [0.8, 0.5, 0.1]))

    def two_of_each(columns: Any) -> tuple[list[np.ndarray], np.ndarray]:
        return [np.arange(min(2, len(each))) for each in columns["label"]], np.array(next(scores))

    monkeypatch.setattr(example_objects, "best_detections", two_of_each)
    columns = example_objects._columns
    first, second = (read_run(path / "seed0") for path in sorted((study / "runs").iterdir()))
    found = object_examples(task_of(first), first, second, "other")  # type: ignore[arg-type]
    assert found is not None and "of the baseline and of other" in found.panels
    assert [group.title for group in found.groups] == ["Higher F1 with other", "Higher F1 with the baseline"]
    for group in found.groups:
        [image] = group.images
        picture = Image.open(io.BytesIO(base64.b64decode(image.jpeg)))
        assert picture.size[0] == 4 * example_objects.WIDTH + 6

    def damaged(table: Any) -> dict[str, Any]:
        return {**columns(table), "mask": [np.full_like(each, 255) for each in table["mask"]]}

    scores = iter(([0.2, 0.5, 0.9], [0.8, 0.5, 0.1]))
    monkeypatch.setattr(example_objects, "_columns", damaged)
    with pytest.raises(DataError, match=r"predictions\.npz of one of them is damaged"):
        object_examples(task_of(first), first, second, "other")  # type: ignore[arg-type]


def test_predictions_export_and_the_card(study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    [grafted] = [path / "seed0" for path in (study / "runs").iterdir() if path.name != "baseline"]
    image = tmp_path / "cells.png"
    Image.fromarray(scene(2)[0]).save(image)
    assert run("export", grafted, "--out", tmp_path / "model") == 0
    card = (tmp_path / "model" / "README.md").read_text()
    assert "pipeline_tag: object-detection" in card and "predict THIS_FOLDER IMAGES... --out boxes" in card
    found = []
    for number, model in enumerate((grafted, tmp_path / "model")):
        out = tmp_path / f"boxes{number}"
        assert run("predict", model, image, "--out", out) == 0
        assert sorted(path.name for path in out.iterdir()) == ["cells-objects.jpg", "cells.json"]
        found.append(json.loads((out / "cells.json").read_text()))
    assert found[0] == found[1]
    assert found[0]["images"] == [{"id": 1, "file_name": "cells.png", "width": 48, "height": 38}]
    assert all(
        {"bbox", "score", "category_id", "segmentation", "area"} <= each.keys() for each in found[0]["annotations"]
    )
    from faster_coco_eval import COCO

    annotations = COCO(str(tmp_path / "boxes0" / "cells.json"))
    for each in annotations.loadAnns(annotations.getAnnIds())[:3]:
        assert annotations.annToMask(each).shape == (38, 48)
    capfd.readouterr()
    assert run("predict", grafted, image, "--format", "json") == 0
    listed = json.loads(capfd.readouterr().out)["inputs"][0]["prediction"]
    assert [each["score"] for each in listed] == [each["score"] for each in found[0]["annotations"]]
    assert run("export", grafted, "--to", "onnx", "--out", tmp_path / "onnx") == 2
    assert "--to onnx: only for models that classify images" in capfd.readouterr().err
    assert not (tmp_path / "onnx").exists()


@pytest.mark.slow
def test_overfits_four_images_of_nuclei(shared: Path) -> None:
    """Half-size images with few nuclei; AP50 of the training images above 0.9."""
    fields = {"width": 32, "box_width": 64, "samples": 64, "anchors": [6, 12, 24, 48, 96], "test": {"size": 128}}
    found = loaded(shared / "data/nuclei", host={"name": "resnet10t"}, augment={"size": [128], "hflip": 0.0}, **fields)
    task, model = found.task, build_model(found.recipe, found.data.model_args, facts=found.data.facts).train()
    assert isinstance(task, Detection)
    images = task.open_source().train
    images = images.take(np.array([index for index in range(len(images)) if 5 <= len(images.objects(index)) <= 15][:4]))
    host = HostInput.from_model(model_data_config(found.recipe))
    splits = {
        augment is None: ObjectSplit(
            images, host=host, classes=["nucleus"], masks=True, test=task.config.test, augment=augment
        )
        for augment in (task.config.augment, None)
    }
    batches = {judged: split.collate([split[0, index] for index in range(4)]) for judged, split in splits.items()}
    batch = task.prepare(batches[False], epoch=0, step=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    torch.manual_seed(0)
    for step in range(100):
        loss = total(task.step(model, batch, StepContext(seed=0, epoch=0, step=step, model=model)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5)
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        records = task.infer(model.eval(), batches[True])
    values = measure(RecordTable(names=np.arange(4).astype(str), columns=records.statistics), classes=1).values
    assert values["mask_ap50"] > 0.9 and values["box_ap50"] > 0.9, values
