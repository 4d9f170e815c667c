"""Test splits of every kind of source, in the classes of training and validation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources import ImageSource, open_source
from tests.tasks.images.datasets import make_folder, make_tar, picture

PARTS = {"train": {"cat": 2, "dog": 2}, "val": {"cat": 1, "dog": 1}, "test": {"dog": 2, "cat": 1}}


def as_npz(folder: Path) -> Path:
    arrays: dict[str, Any] = {"classes": np.array(["cat", "dog"])}
    for number, (part, counts) in enumerate(PARTS.items()):
        labels = np.array([0] * counts["cat"] + [1] * counts["dog"])
        arrays |= {f"y_{part}": labels, f"x_{part}": np.full((len(labels), 8, 8), number, np.uint8)}
    np.savez(folder / "x.npz", **arrays)
    return folder / "x.npz"


def as_tars(folder: Path) -> Path:
    for part, counts in PARTS.items():
        make_tar(folder / f"{part}.tar", counts)
    return folder


def as_tables(folder: Path) -> Path:
    for part, counts in PARTS.items():
        make_folder(folder / "images", {part: counts})
        rows = [f"{part}/{name}/{i}.png,{name}" for name, count in counts.items() for i in range(count)]
        (folder / f"{part}.csv").write_text("\n".join(["path,label", *rows]))
    return folder


def as_column(folder: Path) -> Path:
    make_folder(folder, PARTS)
    rows = [
        f"{part}/{name}/{i}.png,{name},{part}"
        for part, counts in PARTS.items()
        for name, count in counts.items()
        for i in range(count)
    ]
    (folder / "t.csv").write_text("\n".join(["path,label,split", *rows]))
    return folder / "t.csv"


def as_hugging_face(folder: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    splits = {}
    for part, counts in PARTS.items():
        labels = ["dog"] * counts["dog"] + ["cat"] * counts["cat"]
        images = [picture(index) for index in range(len(labels))]
        splits[part] = datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)
    datasets.DatasetDict(splits).save_to_disk(str(folder / "hf"))
    return folder / "hf"


@pytest.mark.parametrize("make", [as_npz, as_tars, as_tables, as_column, as_hugging_face])
def test_every_kind_of_source_has_one(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    source = open_source(DataConfig(source=str(make(tmp_path))))
    assert counts(source) == {"cat": 1, "dog": 2}
    assert not any("not used" in note for note in source.notes)
    assert source.val is not None
    assert len(source.val) == 2
    assert open_source(DataConfig(source=source.where, test_split="none")).test is None


def counts(source: ImageSource) -> dict[str, int]:
    assert source.test is not None
    return dict(zip(source.classes, np.bincount(source.test.labels).tolist(), strict=True))


@pytest.mark.parametrize("label", ["", "cow"])
def test_rows_of_a_test_split_that_cannot_be_used_do_not_matter(tmp_path: Path, label: str) -> None:
    path = as_column(tmp_path)
    path.write_text(path.read_text().replace("cat,test", f"{label},test"))
    source = open_source(DataConfig(source=str(path)))
    assert (source.classes, len(source.train), source.test) == (("cat", "dog"), 4, None)
    assert any("The split test is not used as a test split" in note for note in source.notes)
    with pytest.raises(DataError, match="the test split test cannot be used"):
        open_source(DataConfig(source=str(path), test_split="test"))


def test_a_test_split_alone_is_not_validation(tmp_path: Path) -> None:
    path = make_folder(tmp_path, {part: PARTS[part] for part in ("train", "test")})
    with pytest.raises(DataError, match=r"no validation split \(found: test\).*val_fraction=0\.2"):
        open_source(DataConfig(source=str(path), test_split="test"))
    source = open_source(DataConfig(source=str(path), test_split="test", val_fraction=0.5))
    assert (source.val, counts(source)) == (None, {"cat": 1, "dog": 2})
