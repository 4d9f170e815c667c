from __future__ import annotations

import json
import logging
import os
import socket
from pathlib import Path

import pytest

import attngraft.training.lock as lock
from attngraft.errors import StorageError
from attngraft.files import created
from attngraft.training.lock import FolderBusy, Holder, locked

DEAD = 2**22 + 1  #: more than process numbers go


def leave(folder: Path, *, process: int, host: str = "") -> None:
    """The note of somebody who did not give the lock back."""
    (folder / ".lock").write_text(json.dumps({"process": process, "host": host or socket.gethostname()}))


def test_the_note_says_who_has_it_and_is_taken_back(tmp_path: Path) -> None:
    with locked(tmp_path):
        note = json.loads((tmp_path / ".lock").read_text())
        assert note == {"process": os.getpid(), "host": socket.gethostname()}
    assert (tmp_path / ".lock").read_text() == ""


@pytest.mark.parametrize("process", [DEAD, os.getpid(), 1], ids=["gone", "itself", "init"])
def test_a_note_that_was_left_here_says_nothing_where_the_system_has_locks(
    tmp_path: Path, process: int, caplog: pytest.LogCaptureFixture
) -> None:
    leave(tmp_path, process=process)
    with locked(tmp_path):
        pass
    assert not caplog.text


def test_from_another_host_it_is_taken_over_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    leave(tmp_path, process=7, host="elsewhere")
    with caplog.at_level(logging.WARNING), locked(tmp_path):
        pass
    assert "lock taken over from process 7 on host elsewhere" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", '{"process": "x"}', "\0" * 40])
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ".lock").write_text(text)
    with locked(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["process"] == os.getpid()


class TestWithoutLocksOfTheSystem:
    @pytest.fixture(autouse=True)
    def _none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lock, "_acquire", lambda file_lock: "unsupported")

    def test_the_dead_of_this_host_are_passed_over(self, tmp_path: Path) -> None:
        leave(tmp_path, process=DEAD)
        with locked(tmp_path):
            assert json.loads((tmp_path / ".lock").read_text())["process"] == os.getpid()

    def test_the_living_are_not(self, tmp_path: Path) -> None:
        leave(tmp_path, process=os.getppid())
        with pytest.raises(FolderBusy, match=f"process {os.getppid()} on this machine"), locked(tmp_path):
            pass

    def test_other_hosts_are_asked_about(self, tmp_path: Path) -> None:
        leave(tmp_path, process=DEAD, host="elsewhere")
        with pytest.raises(FolderBusy, match=r"host elsewhere was using .* delete .*\.lock"), locked(tmp_path):
            pass


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with (
        pytest.raises(StorageError, match=r"\.lock: is not a regular file, so it is no lock; delete it"),
        locked(tmp_path),
    ):
        pass


def test_holders_in_words() -> None:
    assert str(Holder(7, socket.gethostname())).startswith("process 7 on this machine")
    assert str(Holder(7, "elsewhere")) == "process 7 on host elsewhere"


def fail(folder: Path, *, writes: bool) -> None:
    with created(folder), locked(folder):
        if writes:
            (folder / "written").write_text("")
        raise ValueError("no")


def test_a_refusal_leaves_nothing_behind_and_takes_nothing_away(tmp_path: Path) -> None:
    new, there = tmp_path / "some" / "where", tmp_path / "there"
    there.mkdir()
    for folder in (new, there):
        with pytest.raises(ValueError, match="no"):
            fail(folder, writes=False)
    assert list(tmp_path.rglob("*")) == [there]
    (there / "notes.txt").write_text("mine")
    for folder in (new, there):
        with pytest.raises(ValueError, match="no"):
            fail(folder, writes=True)
        assert (folder / "written").is_file() and (folder / ".lock").read_text() == ""
    assert (there / "notes.txt").read_text() == "mine"


def test_a_refusal_does_not_touch_the_lock_of_another(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with created(folder), locked(folder):
        with pytest.raises(FolderBusy), created(folder), locked(folder):
            pass
        assert json.loads((folder / ".lock").read_text())["process"] == os.getpid()
    assert (folder / ".lock").is_file()
