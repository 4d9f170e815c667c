"""Names of classes that results and the terminal can represent, and labels that fit into memory."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources import open_source
from attngraft.tasks.images.sources.base import alike_classes, check_classes, no_labels
from tests.tasks.images.datasets import make_folder

_OTHER = ("dog", "caf\xe9")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ca\rt", "contains a control character"),
        ("ca\nt", "contains a control character"),
        ("ca\tt", "contains a control character"),
        ("\x1b[31mcat", "contains a control character"),
        ("cat\x9b", "contains a control character"),
        ("cat\u2028", "contains a control character"),
        ("dog ", "two classes have the same name"),
        (" dog", "two classes have the same name"),
        ("cafe\u0301", r"two classes have the same name, 'caf\\xe9' and 'cafe\\u0301'"),
    ],
)
def test_names_of_classes_that_are_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^here: .*{message}"):
        check_classes([*_OTHER, name], where="here")
    make_folder(tmp_path / "folder", {part: dict.fromkeys((*_OTHER, name), 1) for part in ("train", "val")})
    np.savez(tmp_path / "a.npz", x=np.zeros((6, 4, 4), np.uint8), y=np.arange(6) % 3, classes=[*_OTHER, name])
    for path in ("folder", "a.npz"):
        with pytest.raises(DataError, match=message.partition(",")[0]):
            open_source(DataConfig(source=str(tmp_path / path)))


@pytest.mark.parametrize(
    "name", ["", "Dog", "=cat", "cat,dog", "[cat]", "\u202ecat", "nan", "-1", "x" * 1000, "ד\u200fג"]
)
def test_other_names_are_classes(name: str) -> None:
    check_classes([*_OTHER, name], where="here")


def test_long_names_and_many_classes_are_refused() -> None:
    with pytest.raises(DataError, match=r"^here: the class 'x+\.\.\. has 5,000 characters; shorten its name$"):
        check_classes(["a", "x" * 5000], where="here")
    with pytest.raises(DataError, match=r"^here: 1,000,001 classes, more than 1,000,000"):
        check_classes([""] * 1_000_001, where="here")
    with pytest.raises(DataError, match=r"^here: 1,000,000 classes for 1,000,000 rows .* need 1\.0 TB; use fewer"):
        no_labels(10**6, 10**6, where="here")
    with pytest.raises(DataError, match=r"^here: 20,000 classes for 20,000 rows .* need 400\.0 MB; use fewer"):
        no_labels(20_000, 20_000, where="here", given=20_000)


def test_a_high_label_makes_no_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 4, 4), np.uint8), y=np.array([0, 1, 2, 50_000_000]))
    before = time.perf_counter()
    with pytest.raises(DataError, match="the highest label is 50,000,000; give 1,000,000 classes or fewer"):
        open_source(DataConfig(source=str(tmp_path / "a.npz")))
    assert time.perf_counter() - before < 1


@pytest.mark.parametrize("shape", [(6, 0, 0, 3), (6, 4, 0, 3), (6, 0, 4)])
def test_arrays_of_images_without_pixels_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(shape, np.uint8), y=np.arange(6) % 2)
    with pytest.raises(DataError, match=r"a\.npz: x has images without pixels"):
        open_source(DataConfig(source=str(tmp_path / "a.npz")))


@pytest.mark.parametrize("long", [5000, 300])
def test_paths_that_are_too_long_are_refused(long: int, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="xxx"):
        open_source(DataConfig(source="x" * long))
    (tmp_path / "a.csv").write_text("path,label\n" + "".join(f"{'x' * long}{i}.png,{i % 2}\n" for i in range(6)))
    with pytest.raises(DataError, match="xxx"):
        open_source(DataConfig(source=str(tmp_path / "a.csv")))


def test_classes_that_may_be_one() -> None:
    assert alike_classes(["cat", "dog", "1", "2"]) == []
    assert alike_classes(["cat", "Cat"])[0].startswith("The classes 'cat' and 'Cat' may be one")
    assert alike_classes(["01", "2", "1.0"])[0].startswith("The classes '01' and '1.0' may be one")
