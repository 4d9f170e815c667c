"""`attngraft predict` as a user types it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from attngraft.export.run import export_run
from tests.cli.test_export import run
from tests.export.runs import CLASSES, make_run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    export_run(make_run(folder / "run", "cb"), folder / "out")
    return folder / "out"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    stream = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for place in range(3):
        Image.fromarray(stream.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(tmp_path / f"photos/{place}.png")
    return tmp_path / "photos"


def test_a_folder_to_standard_output(model: Path, photos: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run("predict", model, photos) == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    assert lines[0] == "image,label,probability,error"
    assert [line.split(",")[0] for line in lines[1:]] == [str(photos / f"{place}.png") for place in range(3)]
    assert all(any(name in line for name in CLASSES) for line in lines[1:])


def test_a_run_to_a_file_by_its_ending(model: Path, photos: Path, tmp_path: Path) -> None:
    for name, source in (("run.json", model.parent / "run"), ("model.json", model)):
        assert run("predict", source, photos / "*.png", "--out", tmp_path / name, "--top", 2, "--batch", 1) == 0
    found = [json.loads((tmp_path / name).read_text()) for name in ("run.json", "model.json")]
    assert found[0] == found[1]
    assert [len(image["top"]) for image in found[0]["images"]] == [2, 2, 2]


def test_unreadable_images_are_named_counted_and_in_the_exit_code(
    model: Path, photos: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (photos / "1.png").write_bytes(b"")
    assert run("predict", model, photos, "gone.jpg", "--format", "jsonl") == 1
    told = capfdbinary.readouterr()
    answers = [json.loads(line) for line in told.out.splitlines()]
    assert ["error" in answer for answer in answers] == [False, True, False, True]
    assert b"1.png: the file is empty" in told.err
    assert b"gone.jpg: No such file" in told.err
    assert b"2 of 4 images could not be read" in told.err


def test_names_from_standard_input(
    model: Path, photos: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = f"{photos / '2.png'}\n{photos / '0.png'}\n".encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(listed)))
    assert run("predict", model, "-", "--format", "jsonl") == 0
    answers = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [Path(answer["image"]).name for answer in answers] == ["2.png", "0.png"]


def test_mistakes(model: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict", model, photos, "--out", tmp_path / "answers.xml") == 2
    assert "--format" in capsys.readouterr().err
    assert run("predict", tmp_path / "nothing", photos) == 2
    assert "does not exist" in capsys.readouterr().err
    assert run("predict", model, tmp_path / "*.jpg") == 2
    assert "no image matches" in capsys.readouterr().err
    assert run("predict", model, photos, "--device", "abacus") == 2
    assert "abacus" in capsys.readouterr().err
    (table := tmp_path / "photo.csv").write_bytes((photos / "0.png").read_bytes())
    assert run("predict", model, table, "--out", table) == 2
    assert "photo.csv: is read, and would be replaced" in capsys.readouterr().err
    assert table.read_bytes() == (photos / "0.png").read_bytes()
