"""`attngraft data check`, as a user runs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attngraft import cache
from attngraft.cli import main
from tests.tasks.images.datasets import load, make_folder, picture


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Class folders; one image is there twice."""
    make_folder(tmp_path / "birds", {"owl [red]": 10, "wren": 5}, size=(40, 30))
    shutil.copy(tmp_path / "birds" / "wren" / "0.png", tmp_path / "birds" / "wren" / "0 copy.png")
    return tmp_path / "birds"


def check(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["data", "check", *map(str, arguments)])
    return int(stop.value.code or 0)


def test_what_is_found_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(folder) == 0
    shown = capsys.readouterr().out
    assert f"{folder}: folder, 2 classes, for classification" in shown
    assert "0.2 of each class of the class folders for validation, at random with split_seed 0" in shown
    assert "40x30, 40x30, 40x30" in shown
    assert "RGB 13" in shown
    assert "owl [red]" in shown, "no markup"
    assert "Note: 1 image is a duplicate within a split" in shown or "Note: Leak: 1 validation image" in shown
    assert f"Ready: attngraft compare --data {folder}" in shown
    assert "\x1b" not in shown


def test_everything_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wren" / "bad.png").write_bytes(b"")
    assert check(folder, "--json", "--set", "max_corrupt=3") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ready"] is True
    assert found["refusals"] == []
    assert found["classes"] == ["owl [red]", "wren"]
    assert [part["images"] for part in found["parts"].values()] == [13, 3]
    assert sum(part["counts"]["wren"] for part in found["parts"].values()) == 6
    assert found["parts"]["train"]["sizes"]["median"] == [40, 30]
    assert found["parts"]["train"]["modes"] == {"RGB": 13}
    assert [(entry["name"], entry["reason"]) for entry in found["unreadable"]] == [
        ("wren/bad.png", "the file is empty")
    ]
    twins = found["leaks"] + found["repeated"]
    assert sorted(twin["name"] for twin in twins[0]) == ["wren/0 copy.png", "wren/0.png"]


def test_what_training_would_refuse_ends_with_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = folder / "wren" / "bad.png"
    picture(1, size=(40, 30)).save(bad)
    bad.write_bytes(bad.read_bytes()[:200])
    assert check(folder) == 2
    shown = capsys.readouterr().out
    assert "1 unreadable" in shown
    assert "wren/bad.png: " in shown
    assert "Training would be refused: " in shown
    assert "Ready" not in shown
    assert check(folder, "--json") == 2
    assert json.loads(capsys.readouterr().out)["ready"] is False
    assert check(folder, "--set", "max_corrupt=1", "--task", "multilabel") == 2
    assert "images have one label each, but the task multilabel requires lists of labels" in capsys.readouterr().out


def test_one_image_of_a_class_is_told_with_all_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path / "data", {"a": 4, "b": 1, "c": 1})
    assert check(tmp_path / "data") == 2
    shown = capsys.readouterr().out
    assert "2 classes ('b', 'c') have a single image, which cannot be split" in shown
    assert "12x12" in shown


def test_a_saved_split_is_used(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = tmp_path / "split.csv"
    assert check(folder, "--val-fraction", 0.4, "--split-seed", 5, "--save-split", split, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert load(folder, data={"split_file": str(split)}).facts["split_digest"] == first["split_digest"]
    assert check(folder, "--set", f"split_file={split}", "--json") == 0
    assert json.loads(capsys.readouterr().out)["split_digest"] == first["split_digest"]
    (folder / "wren" / "1.png").write_bytes(b"")
    assert check(folder, "--set", "max_corrupt=2", "--save-split", split) == 0
    assert check(folder, "--set", "max_corrupt=2", "--set", f"split_file={split}") == 0, (
        "unreadable ones are named, too"
    )
    capsys.readouterr()
    make_folder(tmp_path / "own", {"train": {"a": 3, "b": 3}, "val": {"a": 1, "b": 1}})
    assert check(tmp_path / "own", "--save-split", tmp_path / "other.csv") == 2
    assert "already have a validation split" in capsys.readouterr().err
    assert not (tmp_path / "other.csv").exists()
    assert check(folder, "--save-split", tmp_path / "a.png") == 2
    assert "a.png: give a file that ends in .csv" in capsys.readouterr().err


def test_files_of_the_data_are_not_replaced(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, picture = tmp_path / "table.csv", folder / "wren/0.png"
    table.write_text("path,label\n")
    before = picture.read_bytes()
    assert check(table, "--save-split", table) == 2
    assert "table.csv: is read, and would be replaced" in capsys.readouterr().err
    assert check(folder, "--contact-sheet", picture) == 2
    assert "0.png: is a file of the data, which would be replaced; choose another path" in capsys.readouterr().err
    assert (table.read_text(), picture.read_bytes()) == ("path,label\n", before)


def test_a_contact_sheet(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path / "parts", {"train": {"a": 9, "b": 2}, "val": {"a": 1, "b": 1}}, size=(8, 8))
    shutil.copy(tmp_path / "parts" / "train" / "a" / "0.png", tmp_path / "parts" / "val" / "a" / "same.png")
    sheet = tmp_path / "sheet.png"
    assert check(tmp_path / "parts", "--contact-sheet", sheet) == 0
    assert f"Contact sheet: {sheet}" in capsys.readouterr().err
    with Image.open(sheet) as image:
        assert image.size == (150 + 8 * 100, 3 * 100 + 4), "two classes, and images of both parts"
        pixels = np.asarray(image.convert("RGB"))
    tile = pixels[4:100, 150:246]
    assert np.array_equal(tile[::12, ::12], np.asarray(picture(0, size=(8, 8)))), "enlarged by whole pixels"
    assert (pixels[104:200, 350:] == 255).all(), "the second class has two images"
    assert check(folder, "--contact-sheet", tmp_path / "sheet.jpg") == 2
    assert "give a file that ends in .png" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 2, "no such file or folder"),
        (["digits", "--set", "colour=1"], 2, "task.data.colour: unknown field"),
        (["digits", "--val-fraction", "2"], 2, "task.data.val_fraction: must lie between 0.000001 and 1"),
        (["digits", "--set", "classes=[cat, dog]"], 2, "digits has no class 'cat'"),
        (["digits", "--task", "multilable"], 2, "did you mean multilabel"),
        ([], 2, "Missing argument"),
    ],
)
def test_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str) -> None:
    assert check(*arguments) == code
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_the_command_that_is_given_says_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("digits", "--val-fraction", 0.5, "--set", "split_seed=3") == 0
    shown = capsys.readouterr().out
    assert "compare --data digits --set task.data.val_fraction=0.5 --set task.data.split_seed=3 --host" in shown


def test_several_labels_lead_to_their_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path, {"images": 10})
    rows = [f"images/{i}.png,{'red round' if i % 2 else 'red'}" for i in range(10)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,tags", *rows]))
    assert check(tmp_path / "labels.csv") == 0
    shown = capsys.readouterr().out
    assert "2 classes, for multilabel" in shown
    assert f"Ready: attngraft compare --data {tmp_path}/labels.csv --recipe multilabel --host" in shown
    assert check(tmp_path / "labels.csv", "--task", "classification") == 2
    assert "use --recipe multilabel" in capsys.readouterr().out
    assert check("digits", "--task", "token_labeling") == 0
    assert "10 classes, for token_labeling" in (shown := capsys.readouterr().out)
    assert "--recipe elsa-volo-imagenet --host" in shown


def test_what_is_ready_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path / "data", {"a": 40, "b": 36}, size=(20, 20))
    assert check(tmp_path / "data") == 0
    assert "Note: Batches of 128 are cut to the 61 training images." in capsys.readouterr().out
    host = [f"--host-arg={each}" for each in ("img_size=16", "patch_size=8", "embed_dim=24", "depth=1", "num_heads=3")]
    run = ["train", "--data", tmp_path / "data", *host, "--epochs", 1, "--out", tmp_path / "run", "--json"]
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in run])
    assert not ended.value.code
    shown = capsys.readouterr()
    assert shown.err.startswith(f"Task: classification (class folders in {tmp_path}/data; --task NAME for another)")
    assert json.loads(shown.out)["finished"] is True
    assert check(tmp_path / "data", "--set", "order=shards") == 2
    assert "task.data.order=shards is only for tars" in " ".join(capsys.readouterr().out.split())


def test_the_task_follows_from_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(tmp_path, {".": 10})
    (tmp_path / "ages.csv").write_text("\n".join(["path,age", *(f"{i}.png,{i}.5" for i in range(10))]))
    assert check(tmp_path / "ages.csv") == 0
    assert "numbers: age, for regression" in (shown := capsys.readouterr().out)
    assert f"Ready: attngraft compare --data {tmp_path}/ages.csv --recipe regression --host" in shown
    rows = [f"a text of {'joy' if i % 2 else 'pain'} {i},{i % 2}" for i in range(10)]
    (tmp_path / "texts.csv").write_text("\n".join(["review,label", *rows]))
    assert check(tmp_path / "texts.csv") == 0
    assert "--recipe text --host" in capsys.readouterr().out


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--help") == 0
    shown = capsys.readouterr().out
    assert "attngraft data check ./flowers" in shown
    assert "--save-split" in shown


@pytest.mark.parametrize("name", ["ca\rt", "ca\nt", "\x1b[31mcat", "dog ", "x" * 200 + "\t"])
def test_classes_that_results_cannot_name_are_not_ready(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path / "data", {part: {name: 4, "dog": 4} for part in ("train", "val")})
    assert check(tmp_path / "data") == 2
    out, error = capsys.readouterr()
    assert "Ready" not in out
    assert "rename" in error
    assert error.count("\n") <= 2  # the error, and perhaps that PyTorch is being loaded
    assert not {"\r", "\x1b", "\t"} & {*out, *error}


def test_images_without_pixels_are_not_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((20, 0, 0, 3), np.uint8), y=np.arange(20) % 2)
    assert check(tmp_path / "a.npz") == 2
    out, error = capsys.readouterr()
    assert "Ready" not in out
    assert "images without pixels, (20, 0, 0, 3)" in error
