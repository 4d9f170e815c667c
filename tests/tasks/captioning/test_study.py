"""A study of captioning from the command line: report, predictions, export, and data check."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.test_export import run
from tests.tasks.captioning.scenes import HOST, captions, features, write_scenes

ARGS = [f"--host-arg={name}={value}" for name, value in HOST["args"].items()]
SET = ["--set", "task.vocabulary.min_count=1", "--set", "task.max_length=8", "--set", "train.threads=1"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captioning")
    data = write_scenes(folder / "data", train=20, val=5, test=7, images=True)
    options = ["--host", HOST["name"], *ARGS, *SET, "--seeds", 1, "--epochs", 20, "--set", "optimizer.lr=0.01"]
    words = ["compare", "--task", "captioning", "--data", data, *options, "--graft", "vertical"]
    assert run(*words, "--out", folder / "study") == 0
    return folder / "study"


def test_the_report_has_metrics_floors_and_captions(study: Path) -> None:
    result = json.loads((study / "results.json").read_text())
    assert result["metric"] == "cider" and result["judged_split"] == "test"
    assert set(result["variants"][0]["last"]) >= {"cider", "bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "loss"}
    sections = {each["name"]: each for each in result["variants"][1]["sections"]}
    assert [len(sections[name]["table"]["rows"]) for name in ("captioning", "images")] == [4, 7]
    page = (study / "report.html").read_text()
    for text in ("constant caption", "METEOR", "Captions of images", "Example images", "/ the bird is"):
        assert text in page, text


def test_images_and_features_are_predicted(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (25, 26):
        np.save(tmp_path / f"{number}.npy", features(number))
    model, names = study / "runs/vertical/seed0", [str(tmp_path / f"{number}.npy") for number in (25, 26)]
    capsys.readouterr()
    assert run("predict", model, *names, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    [entries] = [found[name] for name in ("inputs", "images") if name in found]
    with np.load(model / "predictions.npz") as saved:
        assert [each["prediction"] for each in entries] == saved["caption"][:2].tolist()
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    assert run("predict", model, tmp_path / "x.png") == 1
    assert "features of another model, such as a detector" in capsys.readouterr().err
    assert run("export", model, "--out", tmp_path / "out") == 0
    card = (tmp_path / "out/README.md").read_text()
    assert "image-to-text" in card and "captioning" in card
    capsys.readouterr()
    assert run("predict", tmp_path / "out", names[0], "--format", "json") == 0
    assert entries[0]["prediction"] in capsys.readouterr().out


def test_data_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_scenes(tmp_path / "data", images=True)
    sheet = tmp_path / "sheet.png"
    assert run("data", "check", data, "--set", "task.vocabulary.min_count=1", "--contact-sheet", sheet) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "images with captions, 20 words, for captioning" in shown
    assert "--recipe tiny-captioning" in shown and "--host attngraft:m2_transformer" in shown
    with Image.open(sheet) as image:
        assert image.size == (960, 960)
    assert run("data", "check", data, "--set", "task.vocabulary.min_count=1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sizes"] == {"train": 20, "val": 9} and found["refusals"] == []
    assert found["input"]["channels"] == 12 and found["captions"]["train"] == 20 * len(captions(0))
    (data / "features.h5").unlink()
    assert run("data", "check", data) == 2
    assert "Training would be refused" in capsys.readouterr().out
