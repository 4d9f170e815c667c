"""Folds: a partition, stratified within one example, with whole groups, of any source."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngraft.errors import ConfigError, DataError
from attngraft.strict import read
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.opening import OpenedImages, open_images
from attngraft.tasks.images.sources.folds import draw_folds
from attngraft.tasks.images.sources.splitting import save_split
from attngraft.tasks.images.sources.table import LabelTable, read_groups
from attngraft.tasks.text.config import TextDataConfig
from attngraft.tasks.text.source import open_texts
from tests.tasks.images.datasets import make_folder, picture

CLASSES = ("a", "b", "c", "d")


def draw(labels: np.ndarray, folds: int, groups: list[str] | None = None, seed: int = 0) -> np.ndarray:
    return draw_folds(labels, folds, seed=seed, classes=CLASSES, where="x.csv", groups=groups)


@given(folds=st.integers(2, 6), extra=st.lists(st.integers(0, 20), min_size=2, max_size=4), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_classes_are_spread_within_one_example(folds: int, extra: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(len(extra)), folds + np.array(extra))
    fold_of = draw(labels, folds, seed=seed)
    table = np.stack([np.bincount(labels[fold_of == fold], minlength=len(extra)) for fold in range(folds)])
    assert table.sum() == len(labels)
    assert (np.ptp(table, axis=0) <= 1).all()
    assert np.ptp(table.sum(axis=1)) <= 1
    assert (draw(labels, folds, seed=seed) == fold_of).all()


@given(data=st.data(), folds=st.integers(2, 5))
@settings(max_examples=60, deadline=None)
def test_groups_stay_whole_and_no_fold_is_empty(data: st.DataObject, folds: int) -> None:
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=folds, max_size=14))
    groups = [f"g{number}" for number, size in enumerate(sizes) for _ in range(size)]
    labels = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(groups), max_size=len(groups))))
    try:
        fold_of = draw(labels, folds, groups)
    except DataError:
        counts = np.bincount(labels, minlength=2)
        owners = [{g for g, label in zip(groups, labels, strict=True) if label == each} for each in (0, 1)]
        rare = ((counts > 0) & (counts < folds)).any()
        assert rare or any(len(names) == 1 for names in owners), "refused without a reason"
        return
    assert set(fold_of) == set(range(folds))
    for group in set(groups):
        assert len({int(fold) for name, fold in zip(groups, fold_of, strict=True) if name == group}) == 1
    for fold in range(folds):
        assert set(labels[fold_of != fold]) == set(labels), "every class can be learned in every fold"


def test_several_labels_and_numbers() -> None:
    labels = np.array([[1, 0], [1, 1], [0, 1], [1, 0], [0, 1], [1, 1], [0, 0], [1, 0], [0, 1]], dtype=np.uint8)
    fold_of = draw_folds(labels, 3, seed=0, classes=("x", "y"), where="x.csv")
    counts = np.stack([labels[fold_of == fold].sum(axis=0) for fold in range(3)])
    assert (np.ptp(counts, axis=0) <= 1).all()
    numbers = np.linspace(0, 1, 10)[:, None]
    assert sorted(np.bincount(draw(numbers, 4))) == [2, 2, 3, 3]
    grouped = draw(numbers, 2, groups=list("aaabbbcccc"))
    assert len({*grouped[:3]}) == len({*grouped[3:6]}) == 1


@pytest.mark.parametrize(
    ("labels", "folds", "groups", "reason"),
    [
        (
            [0, 0, 0, 1, 1],
            3,
            None,
            r"x\.csv: 3 folds need at least 3 images of each class, which 'b' \(2\) .*; use at most 2 folds",
        ),
        ([0, 0, 0, 1], 2, None, r"which 'b' \(1\) does not have; add images"),
        ([0, 1], 3, None, "3 folds need at least 3 images, and there are 2"),
        ([0, 0, 0, 1, 1, 1], 3, list("aabbbb"), "3 folds need at least 3 groups, and there are 2"),
        (
            [0, 0, 0, 0, 1, 1],
            2,
            list("aabbcc"),
            "class 'b' has images of a single group, so one fold has nothing to train",
        ),
    ],
)
def test_refusals(labels: list[int], folds: int, groups: list[str] | None, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        draw(np.array(labels), folds, groups)


def opened(source: Path, fold: int, folds: int = 3, **changes: object) -> OpenedImages:
    return open_images(DataConfig(source=str(source), folds=folds, fold=fold, **changes))  # type: ignore[arg-type]


def test_training_and_validation_are_pooled_but_never_test(tmp_path: Path) -> None:
    tree = {"train": {"cat": 4, "dog": 5}, "val": {"cat": 2, "dog": 1}, "test": {"cat": 3, "dog": 3}}
    make_folder(tmp_path, tree)  # type: ignore[arg-type]
    parts = [opened(tmp_path, fold) for fold in range(3)]
    names = sorted(name for part in parts for name in part.val.names)
    assert len(names) == 12
    assert {name.split("/")[0] for name in names} == {"train", "val"}
    for part in parts:
        assert part.source.test is None
        assert not {*part.val.names} & {*part.source.train.names}
        assert any("are pooled" in note for note in part.facts["notes"])
        assert any("The test split test is not used" in note for note in part.facts["notes"])
    (tmp_path / "val").rename(tmp_path / "other")
    assert len(opened(tmp_path, 0).val) == 3, "a test split does not become validation"


def test_arrays_are_pooled(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 3), dtype=np.uint8)
    labels = np.array([0, 1] * 5)
    np.savez(tmp_path / "x.npz", x_train=pixels[:6], y_train=labels[:6], x_val=pixels[6:], y_val=labels[6:])
    parts = [opened(tmp_path / "x.npz", fold, folds=2) for fold in range(2)]
    found = [(part.val.open(index), part.val.labels[index]) for part in parts for index in range(len(part.val))]
    assert len(found) == 10
    by_pixels = {array.tobytes(): label for array, label in zip(pixels, labels, strict=True)}
    assert all(by_pixels.pop(np.asarray(image).tobytes()) == label for image, label in found)
    assert pickle.loads(pickle.dumps(parts[0].val)).names == parts[0].val.names


def table(folder: Path, *, patients: int = 6) -> Path:
    rows = []
    for number in range(4 * patients):
        picture(number).save(folder / f"{number}.png")
        rows.append([f"{number}.png", "ill" if number % 2 else "well", f"p{number // 4}"])
    with (folder / "scans.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "label", "patient"], *rows])
    return folder / "scans.csv"


def test_groups_of_a_table(tmp_path: Path) -> None:
    path = table(tmp_path)
    for fold in range(3):
        part = opened(path, fold, group_column="patient")
        train, val = ({int(name[:-4]) // 4 for name in images.names} for images in (part.source.train, part.val))
        assert not train & val
        assert len(train) == 4
        assert "groups of column 'patient' kept whole" in part.source.origin
    alone = open_images(DataConfig(source=str(path), group_column="patient", val_fraction=0.5))
    assert len({int(name[:-4]) // 4 for name in alone.val.names}) == 3, "a random split keeps groups, too"
    with pytest.raises(
        DataError, match=r"10 folds need at least 10 groups, .* \(with group_column, .*val_fraction=0\.1\)"
    ):
        open_images(DataConfig(source=str(path), group_column="patient", val_fraction=0.1))
    with pytest.raises(ConfigError, match=r"group_column: .* has no column 'patent' .did you mean patient"):
        opened(path, 0, group_column="patent")


def test_groups_that_are_equal_numbers_are_one() -> None:
    entries = LabelTable(where="a.jsonl", columns={"patient": [1, 1.0, "1", " 2"]}, numbers=range(4))
    assert read_groups(entries, "patient") == ["1", "1", "1", "2"]


def test_a_file_of_folds(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", {"cat": 6, "dog": 6})
    drawn = opened(data, 1)
    assert drawn.random_split is not None
    path = save_split(tmp_path / "folds.csv", drawn.random_split)
    again = opened(data, 1, split_file=str(path))
    assert list(again.val.names) == list(drawn.val.names)
    assert "split by folds.csv into 3 folds" in again.source.origin
    with pytest.raises(DataError, match=r"folds\.csv: line \d+: expected a name and a fold from 0 to 1, found .*,2"):
        opened(data, 1, folds=2, split_file=str(path))
    twice = tmp_path / "twice.csv"
    twice.write_text(path.read_text() + path.read_text().splitlines()[1] + "\n")
    with pytest.raises(DataError, match=r"twice\.csv: line 14: .* is listed twice; remove a line"):
        opened(data, 1, split_file=str(twice))
    with pytest.raises(DataError, match="assigns no image to fold 3 of 4"):
        opened(data, 1, folds=4, split_file=str(path))
    single = open_images(DataConfig(source=str(data)), saved_split=None).random_split
    assert single is not None
    with pytest.raises(DataError, match="expected a name and a fold from 0 to 2, found .*,train"):
        opened(data, 1, split_file=str(save_split(tmp_path / "split.csv", single)))


def test_texts(tmp_path: Path) -> None:
    rows = [[f"text number {i}", "good" if i % 2 else "bad", f"author {i // 3}"] for i in range(18)]
    with (tmp_path / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label", "author"], *rows])
    config = {"source": str(tmp_path / "texts.csv"), "folds": 3, "group_column": "author"}
    parts = [open_texts(read(TextDataConfig, {**config, "fold": fold}, where="task.data")) for fold in range(3)]
    held_out = [{text.rsplit(" ", 1)[-1] for text in part.val.texts} for part in parts]
    assert sum(map(len, held_out)) == len(set.union(*held_out)) == 18
    assert all(len({int(number) // 3 for number in numbers}) == 2 for numbers in held_out)
    assert sorted(parts[0].drawn) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"folds": 1, "fold": 0}, "folds: must be from 2 to 10,000"),
        ({"folds": 10**9, "fold": 0}, "folds: must be from 2 to 10,000"),
        ({"folds": 3}, "folds: requires task.data.fold; attngraft compare --folds trains all folds"),
        ({"folds": 3, "fold": 3}, "fold: must be at least 0 and below task.data.folds"),
        ({"fold": 0}, "fold: must be at least 0 and below task.data.folds"),
        ({"folds": 3, "fold": 0, "val_fraction": 0.2}, "val_fraction: cannot be combined with folds"),
        ({"group_column": "patient", "val_fraction": 0.6}, "val_fraction: must be at most 0.5 with group_column"),
    ],
)
def test_settings(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read(DataConfig, {"source": "x", **settings}, where="task.data")
