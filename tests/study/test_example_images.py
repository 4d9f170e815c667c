from __future__ import annotations

import base64
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attngraft.results.examples import load_examples, save_examples
from attngraft.results.study import StudyResult
from attngraft.study.config import StudyConfig
from attngraft.study.example_images import Answers, choose, example_images
from attngraft.study.runner import compare
from attngraft.tasks.images.sources.splitting import names_digest
from attngraft.tasks.task import Predictions
from attngraft.training.run_folder import RunFolder
from tests.study import fakes

CLASSES = ["cat", "dog"]


def answers(*predicted: list[int], confidence: float = 0.5) -> Answers:
    target = np.array([0, 0, 0, 1, 1, 1])
    found = np.array(predicted)
    return Answers(
        names=np.array([f"{i}.png" for i in range(6)]),
        target=target,
        predicted=found,
        confidence=np.where(found == target, confidence, np.linspace(0.9, 0.4, 6)),
    )


def test_groups_of_one_seed():
    groups = dict(choose(answers([1, 0, 0, 1, 1, 0]), answers([0, 0, 1, 1, 1, 0]), CLASSES, "cb"))
    assert groups["Right with cb, wrong with the baseline"] == [0]
    assert groups["Right with the baseline, wrong with cb"] == [2]
    assert groups["Most confident errors of cb"] == [5]


def test_classes_with_the_largest_differences():
    groups = dict(choose(answers([1, 1, 1, 1, 1, 1]), answers([0, 0, 0, 0, 1, 1]), CLASSES, "cb"))
    assert groups["The class that gains most with cb: cat, recall 0.0% to 100.0%"] == [0, 1, 2]
    assert groups["The class that loses most with cb: dog, recall 100.0% to 66.7%"] == [3]


def test_several_seeds_are_counted():
    before, after = answers([1, 0, 0, 1, 1, 1], [1, 1, 0, 1, 1, 1]), answers([0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1])
    groups = dict(choose(before, after, CLASSES, "cb"))
    assert groups["Right in more seeds with cb"] == [0, 1]
    assert before.of(1, CLASSES).right == 1 and after.of(1, CLASSES).right == 2
    assert before.of(0, CLASSES).predicted == "dog"


def test_the_same_predictions_leave_only_errors():
    same = answers([1, 0, 0, 1, 1, 1])
    assert [title for title, _ in choose(same, same, CLASSES, "cb")] == ["Most confident errors of cb"]


def folder_of_images(root: Path) -> list[str]:
    for split in ("train", "val"):
        for name in CLASSES:
            for index in range(3):
                path = root / split / name / f"{index}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = np.random.default_rng(index).integers(0, 255, (40, 300, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(path)
    return [f"val/{name}/{index}.png" for name in CLASSES for index in range(3)]


@pytest.fixture
def finished(tmp_path: Path) -> tuple[StudyConfig, StudyResult]:
    """A study of a folder of images, whose runs have predictions."""
    names = folder_of_images(tmp_path / "pets")
    config = fakes.study(tmp_path / "study", data=str(tmp_path / "pets"), grafts=["cb_s"])
    result = compare(config, tools=fakes.tools(fakes.FakeTrainer({"cb_s@all": 0.2})))
    for variant in result.variants:
        for run in variant.runs:
            folder = RunFolder(config.out / run.folder)
            data = json.loads(folder.data.read_text())
            counts = {"train": dict.fromkeys(CLASSES, 6)}
            data["facts"] |= {"classes": CLASSES, "counts": counts, "split_digest": names_digest(names)}
            folder.data.write_text(json.dumps(data | {"model_args": {"num_classes": len(CLASSES)}}))
            found = answers([1, 1, 0, 1, 1, 1] if variant.is_baseline else [0, 0, 0, 1, 1, 0])
            arrays = {
                "target": found.target,
                "predicted": found.predicted[0],
                "confidence": found.confidence[0],
            }
            score = (found.predicted[0] == found.target).astype(float)
            folder.write_predictions(Predictions(names=names, score=score, binary=True, arrays=arrays))
    return config, result


def test_thumbnails_of_the_data(finished):
    found = example_images(*finished)
    assert found is not None and (found.variant, found.seeds) == ("cb_s", 2)
    assert [image.name for image in found.groups[0].images] == ["val/cat/0.png", "val/cat/1.png"]
    for group in found.groups:
        for each in group.images:
            with Image.open(io.BytesIO(base64.b64decode(each.jpeg))) as image:
                assert image.format == "JPEG" and image.size == (96, 13)


def test_predictions_of_other_names_are_not_shown(finished, caplog):
    config, result = finished
    for variant in result.variants:
        for run in variant.runs:
            folder = RunFolder(config.out / run.folder)
            data = json.loads(folder.data.read_text())
            data["facts"]["split_digest"] = names_digest(["other"])
            folder.data.write_text(json.dumps(data))
    assert example_images(config, result) is None
    assert "no example images: " in caplog.text and "are not those of its validation images" in caplog.text


def test_without_the_data_the_thumbnails_of_the_last_report_remain(finished, tmp_path):
    config, result = finished
    before = example_images(config, result)
    save_examples(before, config.out)
    shutil.rmtree(tmp_path / "pets")
    assert example_images(config, result) == before
    save_examples(None, config.out)
    assert example_images(config, result) is None
    assert load_examples(config.out) is None


def test_runs_without_predictions_of_classes_have_none(tmp_path):
    config = fakes.study(tmp_path, grafts=["cb_s"])
    result = compare(config, tools=fakes.tools(fakes.FakeTrainer()))
    assert example_images(config, result) is None
    assert example_images(config, replace(result, variants=result.variants[:1])) is None
    assert not (tmp_path / "examples.json").exists()
