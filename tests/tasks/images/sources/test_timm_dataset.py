"""Data sets that timm opens: its readers, torchvision's classes, and why some are refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import timm.data
import torch
from timm.data import ImageDataset
from torch.utils.data import IterableDataset

from attngraft.errors import DataError
from tests.tasks.images.datasets import load, make_folder, picture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path, {"train": {"a": 3, "b": 2}, "validation": {"a": 1, "b": 2}})


def test_a_torchvision_folder(folder: Path) -> None:
    data = load("torch/image_folder", data={"root": str(folder)})
    ours = load(folder)
    assert data.facts["counts"] == ours.facts["counts"]
    assert data.train.name(0) == "a/0.png"
    for i in range(3):
        assert torch.equal(data.val[(0, i)][0], ours.val[(0, i)][0])


class _Column:
    """The part of a Hugging Face reader that is used."""

    label_key = "label"
    class_to_idx = {"cat": 0, "dog": 1}  # noqa: RUF012

    def __init__(self, labels: list[int]) -> None:
        self.dataset = {"label": labels}

    def __len__(self) -> int:
        return len(self.dataset["label"])

    def __getitem__(self, index: int) -> tuple[io.BytesIO, int]:
        data = io.BytesIO()
        picture(index).save(data, "png")
        data.seek(0)
        return data, self.dataset["label"][index]

    def filenames(self, basename: bool, absolute: bool) -> list[Any]:
        return [None] * len(self)


class _Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(())


def test_a_reader_with_a_column_of_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {"train": [0, 1, 1, 0], "test": [1, 0]}
    monkeypatch.setattr(
        timm.data, "create_dataset", lambda name, root, split: ImageDataset(root, reader=_Column(splits[split]))
    )
    data = load("timm:hfds/pets", data={"val_split": "test"})
    assert data.facts["counts"] == {"train": {"cat": 2, "dog": 2}, "val": {"cat": 1, "dog": 1}}
    assert data.train.name(3) == "train/3"
    assert data.val[(0, 0)][0].shape == (3, 16, 16)
    assert load("timm:hfds/pets", data={"val_fraction": 0.5}).facts["sizes"] == {"train": 2, "val": 2}


@pytest.mark.parametrize(
    ("labels", "message"),
    [([0.5, 1.0], "got float64"), ([[0, 1], [1, 0]], "one integer label per image"), ([0, -1], "have no label")],
)
def test_labels_that_are_no_classes(monkeypatch: pytest.MonkeyPatch, labels: list[Any], message: str) -> None:
    monkeypatch.setattr(timm.data, "create_dataset", lambda *_, **__: ImageDataset("", reader=_Column(labels)))
    with pytest.raises(DataError, match=message):
        load("timm:hfds/pets")


def test_streams_and_failures_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"timm:torch/nothing: timm cannot open the split 'train' \(.*nothing\)"):
        load("timm:torch/nothing")
    with pytest.raises(DataError, match=r"timm:torch/cifar10: timm cannot open the split 'train' .*not found"):
        load("torch/cifar10", data={"root": "/nowhere"})
    monkeypatch.setattr(timm.data, "create_dataset", lambda *_, **__: _Stream())
    with pytest.raises(DataError, match="can only be streamed"):
        load("timm:wds/shards")
