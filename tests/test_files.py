from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import attngraft.files
from attngraft.errors import AttngraftError, FolderError, StorageError
from attngraft.files import (
    atomic_file,
    check_output,
    csv_cell,
    remove_leftovers,
    share,
    shown_size,
    user_path,
    write_atomically,
    writing,
)


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let every write fail with this number."""

    def refuse(number: int) -> None:
        def write(self: Any, data: Any, /) -> int:
            error = OSError(number, os.strerror(number))
            self.failed = error
            raise error

        monkeypatch.setattr(attngraft.files._Recorder, "write", write)

    return refuse


def test_what_is_written_is_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    assert write_atomically(path, "öne") == path
    assert path.read_bytes() == "öne".encode()
    write_atomically(path, b"two")
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]
    assert path.read_bytes() == b"two"


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, r"the disk is full \(.* free on the disk of .*; free some space and rerun the same command"),
        (errno.EFBIG, r"would exceed this process's size limit .*; raise the limit \(ulimit -f\)"),
        (errno.EDQUOT, r"your disk quota is used up"),
        (errno.EIO, r"Input/output error; make .* writable"),
    ],
)
def test_a_write_that_fails_leaves_the_old_file_and_says_what_to_do(
    tmp_path: Path, refusing: Any, number: int, says: str
) -> None:
    path = write_atomically(tmp_path / "file", "old")
    refusing(number)
    with pytest.raises(StorageError, match=says) as caught:
        write_atomically(path, "new")
    assert str(caught.value).startswith(f"{path}: cannot be written")
    assert isinstance(caught.value.__cause__, OSError)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_hides_the_reason_is_seen_through(tmp_path: Path, refusing: Any) -> None:
    """As torch.save does, whose archive has an error of its own."""
    refusing(errno.ENOSPC)

    def write() -> None:
        with atomic_file(tmp_path / "file") as file:
            try:
                file.write(b"x" * 10**6)  # more than the buffer holds
            except OSError:
                raise RuntimeError("unexpected pos 0 vs 1") from None

    with pytest.raises(StorageError, match="the disk is full"):
        write()


def test_an_error_of_the_block_comes_through(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_file(tmp_path / "file") as file:
            file.write(b"half")
            raise FileNotFoundError("elsewhere")

    with pytest.raises(FileNotFoundError, match="elsewhere"):
        write()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written: .*; make .* writable"):
        write_atomically(tmp_path / "file" / "below", "x")


def test_a_path_with_a_zero_byte_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written: contains a zero byte; choose another path"):
        write_atomically(tmp_path / "a\0b", "x")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_devices_fifos_and_sockets_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")  # stands for /dev/null, which root could replace
    for refused in (lambda path: write_atomically(path, "x"), check_output):
        with pytest.raises(AttngraftError, match="fifo'?: cannot be written: is a device, FIFO or socket"):
            refused(tmp_path / "fifo")
    assert (tmp_path / "fifo").is_fifo()
    (tmp_path / "link").symlink_to("fifo")
    write_atomically(tmp_path / "link", "x")
    assert (tmp_path / "link").read_text() == "x"
    assert (tmp_path / "fifo").is_fifo()


@pytest.mark.parametrize(
    ("name", "reason"), [("", "is a folder"), (".", "is a folder"), ("\ud800", "half of a character")]
)
def test_names_that_no_file_can_have(name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match=reason):
        write_atomically(Path(name), "x")
    assert [*tmp_path.iterdir()] == []


def test_other_ways_of_writing_say_the_same(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="the disk is full"), writing(tmp_path / "x"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(StorageError, match="^said already$"), writing(tmp_path / "x"):
        raise StorageError("said already")


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    kept = [tmp_path / name for name in (".lock", "a.tmp", ".hidden", ".of-others.tmp", ".of.1-others.tmp")]
    for path in [*kept, tmp_path / ".last.pt.12-0123abcd.tmp"]:
        path.write_text("")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / ".at-work.json.1-abcdef01.tmp").write_text("")
    remove_leftovers(tmp_path, below=False)
    assert sorted(path for path in tmp_path.iterdir() if path.is_file()) == sorted(kept)
    assert len(list((tmp_path / "below").iterdir())) == 1
    remove_leftovers(tmp_path)
    assert not list((tmp_path / "below").iterdir())


def test_an_unfinished_file_has_a_name_that_is_known_again(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "of someone.txt") as file:
        unfinished = next(tmp_path.iterdir())
        remove_leftovers(tmp_path)
        assert not unfinished.exists()
        unfinished.write_bytes(b"put back")
        file.write(b"")


def test_the_home_of_an_unknown_user_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/jane")
    assert user_path("~/data") == Path("/home/jane/data")
    assert user_path("~nobody-of-this-name/data") == Path("~nobody-of-this-name/data")


def test_sizes_are_read_easily() -> None:
    assert [shown_size(size) for size in (0, 999, 1300, 2.5e6, 3e9, 4e12, 5e15)] == [
        "0 bytes",
        "999 bytes",
        "1.3 kB",
        "2.5 MB",
        "3.0 GB",
        "4.0 TB",
        "5000.0 TB",
    ]


def test_one_file_in_two_places_or_a_copy_where_the_disk_has_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_atomically(tmp_path / "a.csv", "one")
    share(path, tmp_path / "b" / "a.csv")
    assert os.path.samefile(path, tmp_path / "b" / "a.csv")
    write_atomically(path, "two")
    assert (tmp_path / "b" / "a.csv").read_text() == "one", "what is written anew is another file"
    share(path, tmp_path / "b" / "a.csv")
    assert (tmp_path / "b" / "a.csv").read_text() == "two"

    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    share(path, tmp_path / "c.csv")
    assert (tmp_path / "c.csv").read_text() == "two"
    assert {entry.name for entry in tmp_path.iterdir()} == {"a.csv", "b", "c.csv"}


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-x", "@SUM(A1)", "\tx", "\rx", "'=1", "=", "-1-1", "+1 2"])
def test_texts_that_spreadsheets_evaluate_are_quoted_in_csv(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["", "cat", "a=b", "'a'", "-1", "+1.5e-3", "-inf", -1, None, 2.5, True])
def test_other_cells_of_csv_are_unchanged(value: object) -> None:
    assert csv_cell(value) is value


def test_an_input_is_not_replaced(tmp_path: Path) -> None:
    file, link = tmp_path / "table.csv", tmp_path / "link.csv"
    check_output(file, inputs=[file])
    file.write_text("x")
    link.symlink_to(file)
    for path in (file, link, tmp_path / "." / ".." / tmp_path.name / "table.csv"):
        with pytest.raises(FolderError, match="is read, and would be replaced; choose another path"):
            check_output(path, inputs=[str(file)])
    check_output(file, inputs=[tmp_path / "other.csv"])
