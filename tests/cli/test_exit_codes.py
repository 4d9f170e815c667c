"""Wrong commands exit with 2, say what to type, and write nothing; a run that fails exits with 1."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from attngraft.cli import main
from tests.evaluation.suites.making import run_with_images
from tests.export.runs import VIT
from tests.tasks.images.datasets import make_folder

HOST = ["--host", VIT["name"], *(f"--host-arg={name}={value}" for name, value in VIT["args"].items())]
COMPARE = ["compare", *HOST, "--graft", "cb_s", "--data", "images", "--seeds", "1", "--epochs", "1"]
TRAIN = ["train", *HOST, "--data", "images", "--epochs", "1", "--set", "train.batch_size=4"]
RUN = "study/runs/cb_s/seed0"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, a run of a study that has not ended, a file, and an empty folder."""
    folder = tmp_path_factory.mktemp("place")
    run_with_images(folder / RUN, "cb_s")
    (folder / RUN / ".lock").touch()
    make_folder(folder / "images", {part: {"cat": 4, "dog": 4} for part in ("train", "val")}, size=(16, 16))
    (folder / "file").touch()
    (folder / "empty").mkdir()
    make_folder(folder / "damaged", {part: {"cat": 4, "dog": 4} for part in ("train", "val")}, size=(16, 16))
    for part in ("train", "val"):
        (folder / "damaged" / part / "dog" / "0.png").write_bytes(b"not an image")
    (folder / "damaged.csv").write_bytes(b"path,label\n\xff\xfe\x00,a\n")
    np.savez_compressed(folder / "whole.npz", x=np.zeros((8, 16, 16, 3), np.uint8), y=np.arange(8) % 2)
    (folder / "damaged.npz").write_bytes((folder / "whole.npz").read_bytes()[:200])
    (folder / "whole.npz").unlink()
    (folder / "damaged.json").write_text('{"images": [')
    (folder / "damaged.tar").write_bytes(b"not a tar" * 100)
    (folder / "mine.py").write_text("def make(image_size=32): ...\n")
    return folder


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")  # --device sets it
    return place


def call(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


WRONG: list[tuple[list[str], str]] = [
    # output
    ([*COMPARE, "--out", "file"], "file: cannot be used as a folder: it is a file; choose another folder"),
    ([*COMPARE, "--out", "file", "--dry-run"], "file: cannot be used as a folder: it is a file"),
    ([*COMPARE, "--out", "file/x"], "file/x: cannot be used as a folder: file is a file"),
    ([*TRAIN, "--out", "file"], "file: cannot be used as a folder: it is a file"),
    ([*TRAIN, "--out", 300 * "x"], "too long for a path; correct it"),
    (["doctor", "--verify", 300 * "x"], "too long for a path; correct it"),
    (
        [*COMPARE, "--out", "new", "--cache", "4"],
        "--cache: expected auto, off, or a size such as 500MB or 4GB; got '4'",
    ),
    (
        [*TRAIN, "--out", "new", "--cache", "no"],
        "--cache: expected auto, off, or a size such as 500MB or 4GB; got 'no'",
    ),
    ([*TRAIN, "--out", RUN], "the run in this folder has a different recipe"),
    (["eval", RUN, "--out", "file"], "file: cannot be used as a folder: it is a file"),
    (["eval", RUN, "--out", "study/runs/cb_s/seed0"], "is the folder of a run; give another folder"),
    (["predict", RUN, "images", "--out", "labels.xlsx"], "--out labels.xlsx: unknown extension"),
    (["predict", RUN, "images", "--out", "file/x.csv"], "file: cannot be used as a folder: it is a file"),
    (["analyze", "entropy", "--model", RUN, "--out", "file"], "file: cannot be used as a folder: it is a file"),
    (["analyze", "entropy", "--model", RUN, "--out", RUN], "is the folder of a run; give another folder"),
    (["explore", "--model", RUN, "--image", "x.png", "--out", "empty"], "empty: is a folder; give the name of a file"),
    (["export", RUN, "--out", "file"], "file: is a file; --out must be a folder"),
    (["data", "check", "images", "--save-split", "empty"], "empty: is a folder; give the name of a file"),
    (["compare", "--report-only", "--out", "nowhere"], "nowhere contains no study"),
    (["compare", "--report-only", "--out", "empty"], "(empty/study.yaml does not exist); use --out FOLDER of a study"),
    (["compare", "--report-only"], "no study is given"),
    # recipe fields
    ([*COMPARE, "--out", "x", "--set", "lr=1e-3"], "lr: unknown field; use optimizer.lr"),
    ([*COMPARE, "--out", "x", "--set", "optimizer.learning_rate=1e-3"], "unknown field; use optimizer.lr"),
    ([*COMPARE, "--out", "x", "--set", "train.epochs=3"], "train.epochs: unknown field; use schedule.epochs"),
    ([*COMPARE, "--out", "x", "--set", "augment.mixup=0.2"], "unknown field; use task.augment.mixup"),
    ([*COMPARE, "--out", "x", "--set", "optimizer={optimizer.lr: 1}"], "optimizer.optimizer.lr: unknown field; use"),
    ([*COMPARE, "--out", "x", "--set", "task.data.batch_size=8"], "unknown field; use train.batch_size"),
    ([*COMPARE, "--out", "x", "--set", "image_size=32"], "use host.args.img_size (--host-arg img_size=VALUE)"),
    ([*COMPARE, "--out", "x", "--set", "train.device=cuda"], "choose it with --device cpu, --device cuda:1"),
    ([*TRAIN, "--out", "x", "--set", "num_workers=2"], "num_workers: unknown field; use train.workers"),
    ([*TRAIN, "--out", "x", "--set", "optimizer.lrr=1"], "unknown field (did you mean lr?)"),
    # devices
    ([*COMPARE, "--out", "x", "--device", "cuda:99"], "--device cuda:99: this machine has no such device"),
    ([*TRAIN, "--out", "x", "--device", "toaster"], "--device toaster: not a device; use cpu, cuda, cuda:N or mps"),
    ([*COMPARE, "--out", "x", "--device", "cpu", "--ray", "local"], "use --gpus-per-run"),
    # hosts
    ([*COMPARE, "--out", "x", "--host-arg", "imgsize=32"], "(did you mean img_size?)"),
    (["plan", VIT["name"], "cb", "--host-arg", "imgsize=32"], "(did you mean img_size?)"),
    (["plan", "torchvision:vit_b_16", "cb", "--host-arg", "imagesize=32"], "(did you mean image_size?)"),
    (["plan", "module:mine:make", "cb", "--host-arg", "imgsize=32"], "'imgsize'; its arguments: image_size"),
    (["plan", "resnet18", "cb"], "register_host"),
    # data
    (["train", *HOST, "--data", "nowhere", "--out", "x"], "nowhere: no such file or folder"),
    (["eval", RUN, "--data", "nowhere"], "nowhere: no such file or folder"),
    ([*COMPARE, "--suite", "occlusion=nowhere", "--out", "x"], "occlusion=nowhere: nowhere: no such folder or file"),
    *(
        ([*verb, "--data", data], f"{data}: ")
        for data in ("damaged", "damaged.csv", "damaged.npz", "damaged.json", "damaged.tar")
        for verb in (
            [*COMPARE[:-6], "--seeds", "1", "--out", "x"],
            ["train", *HOST, "--out", "x"],
            ["eval", RUN],
            ["eval", RUN, "--suite", "clean"],
            ["analyze", "entropy", "--model", RUN],
        )
    ),
    (
        ["analyze", "entropy", "--model", RUN, "--image", "damaged/val/dog/0.png"],
        "dog/0.png: cannot be read as an image",
    ),
    (["eval", RUN, "--suite", "occlusion=damaged/val"], "damaged/val/dog/0.png: cannot be read as an image"),
    # folders of another kind
    *(
        ([*verb.split(), "study", *rest.split()], f"study is a study; give one of its runs: {RUN}")
        for verb, rest in (("predict", "images"), ("eval", ""), ("export", "--out x"), ("analyze gates --model", ""))
    ),
    (["predict", "empty", "images"], "empty: not a run folder (no recipe.yaml), and not an exported model"),
    (["export", "nowhere", "--out", "x"], "nowhere: no such folder; give the folder of a run"),
    (["eval", RUN, "--weights", "ema"], "has no moving average"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[" ".join(arguments[-3:]) for arguments, _ in WRONG])
def test_wrong_commands(here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    before = files(here)
    assert call(arguments) == 2
    shown = capsys.readouterr().err
    assert message in " ".join(shown.split())
    assert "Traceback" not in shown
    assert files(here) == before


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_folder_that_cannot_be_created(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([*COMPARE, "--out", "/proc/x"]) == 2
    assert "/proc/x: cannot be used as a folder" in capsys.readouterr().err


def test_a_missing_package_is_found_before_anything_is_timed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(here)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert call([*COMPARE, "--suite", "noise", "--out", "x"]) == 2
    shown = capsys.readouterr().err
    assert "pip install 'attngraft[data]'" in shown
    assert "timing" not in shown and "opening" not in shown
    assert files(here) == before


@pytest.mark.parametrize("data", ["damaged", "damaged.csv", "damaged.npz", "damaged.json", "damaged.tar"])
def test_data_check_exits_as_training_does(here: Path, capsys: pytest.CaptureFixture[str], data: str) -> None:
    before = files(here)
    assert call(["data", "check", data]) == 2
    shown = capsys.readouterr()
    assert data in shown.out + shown.err
    assert "Traceback" not in shown.err
    assert files(here) == before


@pytest.mark.skipif(sys.platform == "win32", reason="links")
@pytest.mark.parametrize(("broken", "code"), [("content", 2), ("link", 1)])
def test_data_that_break_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: str, code: int
) -> None:
    """Damaged content is the user's mistake, also if training finds it; a file that cannot be opened is not."""
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path / "images", {part: {"cat": 4, "dog": 4} for part in ("train", "val")}, size=(16, 16))
    image = tmp_path / "images" / "train" / "dog" / "0.png"
    image.unlink()
    if broken == "link":
        image.symlink_to("gone.png")
    else:
        image.write_bytes(b"not an image")
    assert call([*TRAIN, "--set", "task.data.check=off", "--out", "run"]) == code
    assert "dog/0.png: cannot be" in capsys.readouterr().err


def test_a_run_that_fails(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        call(
            [*TRAIN, "--set", "optimizer.lr=1e30", "--set", "schedule.warmup_epochs=0", "--out", str(tmp_path / "run")]
        )
        == 1
    )
    assert "not finite" in capsys.readouterr().err


def test_the_cpu_as_the_device(here: Path, tmp_path: Path) -> None:
    assert call([*TRAIN, "--out", str(tmp_path / "run"), "--device", "cpu"]) == 0
    assert os.environ["ACCELERATE_USE_CPU"] == "true"


@pytest.mark.parametrize("command", [["predict", RUN, "--text"], ["explore", "--model", RUN, "--text"]])
def test_text_in_another_encoding(
    place: Path, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(SystemExit) as ended:
        main([*command, "ein \udcff"])
    assert ended.value.code == 2
    assert "--text: the text is not UTF-8" in capsys.readouterr().err
