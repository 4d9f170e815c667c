"""The cache of decoded examples: its limit, what is said of it, and its removal."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attngraft import cache
from attngraft.cache import DecodedCache, decoded_cache, decoded_removed
from attngraft.errors import UsageError


@pytest.mark.parametrize(
    ("option", "size"), [("500MB", 500 * 10**6), ("4gb", 4 * 10**9), ("1.5 GiB", 3 * 2**29), ("20k", 20_000)]
)
def test_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, size: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**12))
    found = decoded_cache(option, tmp_path / "study" / "run", shared=True)
    assert found == DecodedCache(folder=tmp_path / "study" / "run" / ".decoded", limit=size, shared=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["", "0GB", "on", "5", "-1GB", "4 GB of disk", 400 * "9" + "GB"])
def test_other_sizes_are_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(UsageError, match="--cache: expected auto, off, or a size such as 500MB or 4GB; got"):
        decoded_cache(option, tmp_path)


def test_a_small_disk_limits_every_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    auto, given = decoded_cache("auto", tmp_path), decoded_cache("4GB", tmp_path)
    assert auto is not None and given is not None
    assert (auto.limit, given.limit) == (100, 900)
    assert decoded_cache("off", tmp_path) is None


def test_auto_keeps_everything_or_nothing() -> None:
    auto = DecodedCache(folder=Path("run"), limit=2000, whole=True)
    given = DecodedCache(folder=Path("run"), limit=2000)
    assert [auto.room(total) for total in (0, 2000, 2001, None)] == [0, 2000, 0, 0]
    assert [given.room(total) for total in (0, 2000, 2001, None)] == [0, 2000, 2000, 0]
    assert auto.note(0) == auto.note(None) == given.note(0) == ""
    assert auto.note(1500) == "decoded images take up to 1.5 kB in run until training ends"
    assert given.note(4000) == "decoded images take up to 2.0 kB of 4.0 kB in run until training ends"
    assert auto.note(4000).startswith("decoded images are not kept: 4.0 kB exceed the limit of 2.0 kB")
    assert "task.data.check=full" in given.note(None)


def test_only_own_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DecodedCache(folder=tmp_path / ".decoded", limit=1).file(b"a", b"bc", examples=3)
    assert file != DecodedCache(folder=tmp_path / ".decoded", limit=1).file(b"ab", b"c", examples=3)
    file.parent.mkdir()
    file.touch()
    with decoded_removed(tmp_path):
        assert not file.parent.exists()
        file.parent.mkdir()
        file.touch()
        mine = file.with_name("mine.txt")
        mine.touch()
    assert list(file.parent.iterdir()) == [mine]

    def interrupted(*_: Any) -> None:
        with decoded_removed(tmp_path):
            file.touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not file.exists()
    assert cache.DECODED_FOLDER == ".decoded"
