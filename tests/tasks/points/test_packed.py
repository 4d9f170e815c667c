"""Clouds are read once, kept in the cache folder, and read again when a file changes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from attngraft.errors import DataError
from attngraft.tasks.points import packed
from attngraft.tasks.points.packed import pack
from attngraft.tasks.points.source import Clouds, CloudSource, load_clouds


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Clouds of several sizes with normals, in files."""
    monkeypatch.setenv("ATTNGRAFT_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("a", "b"):
            for number in range(3):
                path = tmp_path / "data" / split / name / f"{number}.npy"
                path.parent.mkdir(parents=True, exist_ok=True)
                np.save(path, random.standard_normal((10 + number, 6)))
    return tmp_path / "data"


def test_clouds_are_those_of_the_files(folder: Path) -> None:
    source = load_clouds(folder)
    for again in range(2):
        found = pack(source)
        assert isinstance(found["train"].values, np.memmap) == bool(again)
        for split, clouds in found.items():
            assert clouds.sizes.tolist() == [10, 11, 12] * 2
            for index in range(6):
                expected, cloud = source.splits[split].cloud(index), clouds.cloud(index)
                assert (cloud.name, cloud.category) == (expected.name, expected.category)
                np.testing.assert_array_equal(cloud.points, expected.points)
                np.testing.assert_array_equal(cloud.normals, expected.normals)
                assert cloud.parts is None


def test_files_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, read = list[int](), packed._read

    def counted(splits: list[Clouds]) -> tuple[np.ndarray, np.ndarray]:
        reads.append(len(splits))
        return read(splits)

    monkeypatch.setattr(packed, "_read", counted)
    pack(load_clouds(folder))
    assert len(reads) == 1
    pack(load_clouds(folder))
    assert len(reads) == 1


@pytest.mark.parametrize("damage", ["changed", "cut", "removed", "nan", "columns", "text", "ranges"])
def test_changed_files_and_damaged_caches_are_read_again(folder: Path, tmp_path: Path, damage: str) -> None:
    pack(load_clouds(folder))
    if damage == "changed":
        np.save(folder / "train" / "a" / "0.npy", np.random.default_rng(5).standard_normal((30, 6)))
    for kept in (tmp_path / "cache" / "points").glob("*.npy"):
        if damage == "cut":
            kept.write_bytes(kept.read_bytes()[:-100])
        elif damage == "removed":
            kept.unlink()
        elif damage == "ranges":
            np.savez(kept.with_suffix(".npz"), ranges=np.zeros((12, 2)))
        elif damage != "changed":
            values = np.load(kept)
            np.save(kept, {"nan": values * np.nan, "columns": values[:, :2], "text": values.astype("S8")}[damage])
            os.utime(kept, (0, 0))  # writing again within milliseconds may keep the time
    expected = np.load(folder / "train" / "a" / "0.npy")[:, :3].astype(np.float32)
    np.testing.assert_array_equal(pack(load_clouds(folder))["train"].cloud(0).points, expected)


def test_a_cache_that_cannot_be_written_is_no_error(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert len(pack(load_clouds(folder))["train"]) == 6


def test_all_mistakes_are_listed(folder: Path) -> None:
    for name in ("a", "b"):
        np.save(folder / "train" / name / "1.npy", np.full((10, 6), np.nan))
    source: CloudSource = load_clouds(folder)
    with pytest.raises(DataError) as caught:
        pack(source)
    assert len(str(caught.value).splitlines()) == 2
    assert "1.npy: point 0" in str(caught.value)


def test_taken_and_joined_clouds(folder: Path) -> None:
    found = pack(load_clouds(folder))
    both = found["train"].joined(found["val"])
    assert len(both) == 12
    np.testing.assert_array_equal(both.cloud(8).points, found["val"].cloud(2).points)
    taken = both.take(np.array([8, 0]))
    assert taken.names == (found["val"].names[2], found["train"].names[0])
    np.testing.assert_array_equal(taken.cloud(0).points, found["val"].cloud(2).points)
    assert taken.fingerprint() != both.fingerprint()
