"""What a suite is evaluated on: folders of class folders, and what is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from attngraft.errors import DataError
from attngraft.evaluation.suites import parse_suites
from attngraft.evaluation.suites.context import EvaluationContext, open_context
from attngraft.training.evaluate import open_split, run_target
from attngraft.training.run_folder import read_run
from tests.evaluation.suites.making import NAMES, run_with_images
from tests.tasks.images.datasets import Tree, make_folder, picture


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_with_images(tmp_path_factory.mktemp("run") / "run")


def opened(run: Path, folder: Path, **more: str) -> EvaluationContext:
    (choice,) = parse_suites([f"clean={folder}"])
    return open_context(run_target(read_run(run), "last"), choice, **more)  # type: ignore[arg-type]


FLAT = dict.fromkeys(NAMES, 2)


def test_all_images_of_class_folders(run: Path, tmp_path: Path) -> None:
    """Whatever else lies there that is no image."""
    make_folder(tmp_path, {**FLAT, "owl/more": 1, "empty": 0})
    (tmp_path / "README.txt").write_text("no image")
    (tmp_path / ".hidden.png").write_bytes(b"")
    assert len(opened(run, tmp_path).split) == 7
    for path in (tmp_path / "cat").iterdir():
        path.unlink()
    assert len(opened(run, tmp_path).split) == 5  # not every class need be there


@pytest.mark.parametrize(
    ("outside", "told"), [({"": 1}, r"1 image outside of them \(0.png\)"), ({"bat": 2}, r"2 images .* \(bat/0.png\)")]
)
def test_images_outside_of_class_folders_are_not_passed_over(
    run: Path, tmp_path: Path, outside: Tree, told: str
) -> None:
    make_folder(tmp_path, {**FLAT, **outside})
    with pytest.raises(
        DataError, match=f"{tmp_path}: contains folders of the run's classes, but also {told}; move .* elsewhere$"
    ):
        opened(run, tmp_path)


def test_parts_beside_class_folders(run: Path, tmp_path: Path) -> None:
    make_folder(tmp_path, {**FLAT, "train": FLAT, "held": dict.fromkeys(NAMES, 3)})
    with pytest.raises(
        DataError, match=r"15 images .* \(held/cat/0.png\); .* elsewhere, or select a split with --split$"
    ):
        opened(run, tmp_path)
    assert len(opened(run, tmp_path, split="held").split) == 9


def test_parts_are_no_class_folders(run: Path, tmp_path: Path) -> None:
    parts = make_folder(tmp_path / "parts", {"train": FLAT, "val": dict.fromkeys(NAMES, 1)})
    picture(0).save(parts / "beside.png")
    assert len(opened(run, parts).split) == 3


def test_parts_called_like_classes(tmp_path: Path) -> None:
    """`train` may be a vehicle."""
    run = run_with_images(tmp_path / "run", classes=("car", "train"))
    parts = make_folder(tmp_path / "parts", {"train": {"car": 2, "train": 2}, "test": {"car": 1, "train": 1}})
    assert len(opened(run, parts).split) == 2
    assert len(opened(run, make_folder(tmp_path / "flat", {"car": 2, "train": 3})).split) == 5


def test_the_crop_is_the_runs_however_the_data_lie(run: Path, tmp_path: Path) -> None:
    """Images as small as the input, of which data by themselves would have nothing cut away."""
    flat = make_folder(tmp_path / "flat", FLAT)
    for part in ("train", "val"):
        shutil.copytree(flat, tmp_path / "parts" / part)
    in_folders, in_parts = opened(run, flat).split, opened(run, tmp_path / "parts").split
    assert len(in_folders) == len(in_parts) == 6
    for index in range(6):
        assert torch.equal(in_folders[(0, index)][0], in_parts[(0, index)][0])


def test_the_crop_is_the_runs_with_several_labels(tmp_path: Path) -> None:
    make_folder(tmp_path / "small", FLAT)
    files = [path for path in sorted((tmp_path / "small").rglob("*.png")) for _ in range(2)]
    rows = [f"{path},{path.parent.name}|owl,{part}" for path, part in zip(files, ["train", "val"] * 6, strict=True)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,labels,split", *rows]) + "\n")
    task = {"name": "multilabel", "data": {"source": str(tmp_path / "labels.csv")}}
    record = read_run(run_with_images(tmp_path / "run", task=task))
    split = open_split(run_target(record, "last"), data=str(tmp_path / "labels.csv"), split=None).split
    assert split.transform.transforms[0].size == 17  # type: ignore[attr-defined]  # of which 16, the run's nine tenths
