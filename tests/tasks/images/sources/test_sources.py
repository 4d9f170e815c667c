"""Telling the kind of a source from its name; digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from attngraft.errors import DataError
from tests.tasks.images.datasets import host_config, load, make_folder, make_task


def test_digits() -> None:
    task = make_task("digits")
    data = task.load(model_data_config=host_config(8))
    assert data.facts["sizes"] == {"train": 1438, "val": 359}
    assert data.facts["classes"] == [str(digit) for digit in range(10)]
    assert data.facts["augment"]["hflip"] == 0.0, "a mirrored digit is no digit"
    digits = load_digits()
    for i in range(0, 359, 50):
        number = int(data.val.name(i).removeprefix("digits/"))
        image, label = data.val[(0, i)]
        assert label == digits.target[number]
        assert np.abs(image[0].numpy() / 255 * 16 - digits.images[number]).max() < 0.05


def test_digits_have_no_parts() -> None:
    with pytest.raises(DataError, match=r"digits: there is no split 'test' \(task\.data\.val_split\)"):
        load("digits", data={"val_split": "test"})


def test_nothing_of_that_name(tmp_path: Path) -> None:
    make_folder(tmp_path, {"flowers": {"a": 2}})
    with pytest.raises(DataError, match=r"flower: no such file or folder \(did you mean .*flowers\?\)"):
        load(tmp_path / "flower")
    with pytest.raises(DataError, match=r"digit: no such .* \(did you mean digits\?\)"):
        load("digit")
    (tmp_path / "x.zip").write_bytes(b"")
    with pytest.raises(DataError, match=r"x\.zip: unsupported file type; unpack it"):
        load(tmp_path / "x.zip")
    with pytest.raises(DataError, match=r"task\.data\.root applies only to tables, COCO and timm sources"):
        load("digits", data={"root": "x"})
