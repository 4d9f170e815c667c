"""Files that users hand in are regular, of limited size, and never block."""

import io
import json
import os
import re
import socket
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from attngraft.opening import (
    DAMAGE,
    UnsuitableFile,
    array_of,
    check_regular,
    open_npz,
    open_regular,
    open_zip,
    parse_json,
    parse_numbers,
    read_json,
    read_mapping,
    read_text,
)


def test_regular_files_and_links_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    (tmp_path / "link").symlink_to("a.json")
    assert read_json(tmp_path / "a.json") == read_json(tmp_path / "link") == {"a": 1}


def test_files_of_holes_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        file.write(b"start")
        file.truncate(2**30)
    with pytest.raises(UnsuitableFile, match=r"^has 1\.1 GB, almost all of them holes$"):
        open_regular(tmp_path / "a.npy")


def test_other_files_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for path, kind in ((tmp_path / "fifo", "a FIFO"), (tmp_path / "socket", "a socket"), ("/dev/zero", "a device")):
            with pytest.raises(UnsuitableFile, match=f"^is {kind}, not a regular file$"):
                open_regular(path)
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")


def test_reading_without_data_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some files of /proc, such as kmsg, are regular, but wait for data."""
    os.mkfifo(tmp_path / "a")
    monkeypatch.setattr("attngraft.opening._KINDS", {})
    file = open_regular(tmp_path / "a")
    writer = os.open(tmp_path / "a", os.O_WRONLY)
    with pytest.raises(UnsuitableFile, match="^has no data yet, so it is not a regular file; copy it$"):
        file.read()
    with pytest.raises(UnsuitableFile, match="^has no data yet"):
        file.read(3)
    os.write(writer, b"abc")
    os.close(writer)
    assert file.read() == b"abc"


@pytest.mark.parametrize("opened", [open_regular, check_regular])
def test_a_path_with_a_zero_byte_is_not_opened(opened: Callable[[str], object]) -> None:
    with pytest.raises(UnsuitableFile, match="is not a path: embedded null byte"):
        opened("a\0b")


def test_the_size_is_limited(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("12345")
    assert read_text(tmp_path / "a", limit=5) == "12345"
    with pytest.raises(UnsuitableFile, match="has 5 bytes, more than 4 bytes"):
        read_text(tmp_path / "a", limit=4)


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 10_000, "{", ""])
def test_json_that_cannot_be_read_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="nested too deeply|integer|Expect"):
        parse_json(text)


def test_numbers_in_texts() -> None:
    assert parse_numbers(["1", " 0.5 ", "-1e3"]) == [1, 0.5, -1000]
    for text in ("0.1_8", "", "x"):
        with pytest.raises(ValueError, match="."):
            parse_numbers(["1", text])


def test_json_is_nested_at_most_100_levels_deep() -> None:
    assert parse_json("[" * 100 + "]" * 100)
    with pytest.raises(ValueError, match="^nested too deeply$"):
        parse_json('{"a": [' * 51 + "]}" * 51)


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(tmp_path / "a.json") == parse_json(b'{"a": 1}') == {"a": 1}


@pytest.mark.parametrize("text", ["[1, 2]", "null", "NaN", '"' + "x" * 5000 + '"', "1" * 4000])
def test_a_mapping_is_required(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"^expected an object \(\{\.\.\.\}\), found ") as refused:
        read_mapping(tmp_path / "a.json")
    assert len(str(refused.value)) < 150


def test_half_of_a_character_is_refused_but_not_an_odd_byte_of_a_name() -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        parse_json(r'{"a": ["\ud800"]}')
    assert parse_json(r'["\ud83d\ude00", "\udcff"]') == ["\N{GRINNING FACE}", "\udcff"]


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", "1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("x.npy", "2")
    with pytest.raises(UnsuitableFile, match="^has two members of the same name$"):
        open_zip(tmp_path / "a.npz")


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def test_an_array_ends_where_its_file_does(tmp_path: Path) -> None:
    content = npy(np.arange(6.0).reshape(2, 3))
    assert array_of(content).shape == (2, 3)
    for damaged, message in (
        (content + npy(np.ones(2)), r"declares \(2, 3\), but has 144 bytes more; save it again"),
        (content[:-8], r"declares \(2, 3\), but is too short for it; the file is incomplete: save it again"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            array_of(damaged)
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("x.npy", content)
            archive.writestr("y.npy", damaged)
        with pytest.raises(ValueError, match=f"^y.npy {message}$"), open_npz(tmp_path / "a.npz"):
            pass


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_flipped_bit_of_an_npz_changes_an_array(tmp_path: Path, save: Callable[..., None]) -> None:
    path, arrays = (
        tmp_path / "a.npz",
        {"x": np.arange(36.0).reshape(6, 6), "empty": np.zeros((0, 3)), "one": np.ones(())},
    )
    save(path, **arrays)
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 3):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            with open_npz(path) as file:
                found = dict(file)
        except DAMAGE:
            continue
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array, strict=True)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfroad\n")
    assert read_text(tmp_path / "a.txt") == "road\n"


def test_a_repeated_key_is_found_at_once_in_a_large_object() -> None:
    text = json.dumps({str(number): 0 for number in range(100_000)})
    with pytest.raises(ValueError, match="^the key '99999' occurs twice$"):
        parse_json(f'{text[:-1]}, "99999": 1}}')


def test_a_pickle_besides_tensors_is_small(tmp_path: Path) -> None:
    for size, refused in ((2**23, False), (2**23 + 1, True)):
        with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a/data.pkl", bytes(size))
        with pytest.raises(UnsuitableFile, match="a pickle of more than 8") if refused else nullcontext():
            open_zip(tmp_path / "a.pt").close()
