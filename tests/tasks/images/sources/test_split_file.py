"""A drawn split, kept on file."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngraft.errors import ConfigError, DataError
from attngraft.tasks.images.sources.splitting import save_split
from attngraft.tasks.images.splits import LabelledSplit
from attngraft.tasks.task import TaskData
from tests.tasks.images.datasets import load, make_folder


def saved(data: TaskData, path: Path) -> Path:
    train, val = data.train, data.val
    assert isinstance(train, LabelledSplit)
    assert isinstance(val, LabelledSplit)
    return save_split(path, {"train": train.images, "val": val.images})


def names(data: TaskData, part: str = "val") -> set[str]:
    split = getattr(data, part)
    return {split.name(i) for i in range(len(split))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data", {"ä, b": 10, 'c "d"': 10})


def test_a_saved_split_is_the_split(folder: Path, tmp_path: Path) -> None:
    drawn = load(folder, data={"val_fraction": 0.4, "split_seed": 3})
    path = saved(drawn, tmp_path / "split.csv")
    again = load(folder, data={"split_file": str(path)})
    for part in ("train", "val"):
        assert names(again, part) == names(drawn, part)
    assert again.facts["split_digest"] == drawn.facts["split_digest"]
    assert again.facts["split"] == "the class folders, split by split.csv"
    assert load(folder, data={"split_seed": 4}).facts["split_digest"] != drawn.facts["split_digest"]


def test_it_stays_when_images_go_and_names_those_that_come(folder: Path, tmp_path: Path) -> None:
    drawn = load(folder)
    path = saved(drawn, tmp_path / "split.csv")
    gone = sorted(names(drawn))[0]
    (folder / gone).unlink()
    again = load(folder, data={"split_file": str(path)})
    assert names(again) == names(drawn) - {gone}
    assert "1 image listed in the split file is not in the data." in again.facts["notes"]
    make_folder(folder, {"ä, b": 12})
    with pytest.raises(DataError, match=r"split\.csv: does not list 2 of 21 images .* \(ä, b/10\.png, ä, b/11"):
        load(folder, data={"split_file": str(path)})


def test_a_split_by_hand(folder: Path, tmp_path: Path) -> None:
    rows = [
        f'"{name.replace(chr(34), chr(34) * 2)}",{"val" if "1." in name else "train"}'
        for name in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    ]
    (tmp_path / "x.csv").write_text("\ufeffname,part\r\n" + "\r\n".join(rows) + "\r\n\r\n", encoding="utf-8")
    assert names(load(folder, data={"split_file": str(tmp_path / "x.csv")})) == {"ä, b/1.png", 'c "d"/1.png'}


def test_a_split_that_leaves_a_class_nothing_to_learn_from_is_refused(folder: Path, tmp_path: Path) -> None:
    path = saved(load(folder), tmp_path / "split.csv")
    lines = path.read_text(encoding="utf-8").splitlines()
    moved = [line if "ä" in line else line.replace(",train", ",val") for line in lines]
    path.write_text("\n".join(["name,part", *moved[1:]]), encoding="utf-8")
    with pytest.raises(DataError, match=r"no training images of class 'c \"d\"'"):
        load(folder, data={"split_file": str(path)})


def test_it_divides_the_training_part_and_leaves_the_other_unused(tmp_path: Path) -> None:
    make_folder(tmp_path / "data", {"train": {"a": 6, "b": 6}, "val": {"a": 1, "b": 1}})
    drawn = load(tmp_path / "data", data={"val_fraction": 0.5})
    path = saved(drawn, tmp_path / "split.csv")
    assert names(load(tmp_path / "data", data={"split_file": str(path)})) == names(drawn)


def test_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"split_file: .*nowhere\.csv cannot be opened .*data check --save-split"):
        load(folder, data={"split_file": str(tmp_path / "nowhere.csv")})
    (tmp_path / "x.csv").write_text("path,label\n")
    with pytest.raises(DataError, match=r"x\.csv: not a split file; its first line must be name,part"):
        load(folder, data={"split_file": str(tmp_path / "x.csv")})
    (tmp_path / "x.csv").write_text("name,part\na/0.png,test\n")
    with pytest.raises(DataError, match=r"x\.csv: line 2: expected a name and train or val, found a/0\.png,test"):
        load(folder, data={"split_file": str(tmp_path / "x.csv")})
    with pytest.raises(ConfigError, match=r"split_file: already defines the validation split; remove val_split"):
        load(folder, data={"split_file": "x.csv", "val_fraction": 0.5})


@pytest.mark.parametrize("other", ["'=a", "b"])
def test_names_that_are_formulas_read_back(other: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data", {"=a": 6, other: 6, "-1": 6})
    drawn = load(folder)
    path = saved(drawn, tmp_path / "split.csv")
    lines = path.read_text().splitlines()
    assert all(line[:1] not in "=-" for line in lines)
    assert names(load(folder, data={"split_file": str(path)})) == names(drawn)
    if other == "b":
        path.write_text("".join(f"{line.removeprefix(chr(39))}\n" for line in lines))  # as earlier releases wrote it
        assert names(load(folder, data={"split_file": str(path)})) == names(drawn)


def test_other_files_are_not_overwritten(folder: Path, tmp_path: Path) -> None:
    data, path = load(folder), tmp_path / "data.csv"
    path.write_text("path,label\n")
    with pytest.raises(
        DataError, match=r"data.csv: is not a split file, so it is not overwritten; choose another name"
    ):
        saved(data, path)
    assert path.read_text() == "path,label\n"
    path.write_text("name,part\n")
    assert saved(data, path).read_text() != "name,part\n"
