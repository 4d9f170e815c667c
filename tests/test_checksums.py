"""Any changed byte of a listed file, or of the list, is found."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngraft.checksums import _LAST, WrongChecksumError, _of_text, read_with_checksums, write_checksums


def folder_of(path: Path) -> Path:
    (path / "sub").mkdir(parents=True)
    (path / "a.txt").write_bytes(b"some text")
    (path / "sub" / "b.bin").write_bytes(bytes(range(100)))
    write_checksums(
        path / "list.json", [path / "sub" / "b.bin", path / "a.txt"], facts={"epochs": 3, "name": "caf\u00e9"}
    )
    return path


def test_intact_files_have_no_damage(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "f")
    facts, checksums = read_with_checksums(folder / "list.json")
    assert facts == {"epochs": 3, "name": "caf\u00e9"}
    assert list(checksums.entries) == ["a.txt", "sub/b.bin"]
    assert checksums.damaged() == {}
    assert checksums.damage(folder / "other") == ""  # not listed
    assert json.loads((folder / "list.json").read_text())["files"]["a.txt"]["bytes"] == 9


def test_damage_is_described(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "f")
    _, checksums = read_with_checksums(folder / "list.json")
    (folder / "a.txt").write_bytes(b"some tent")
    (folder / "sub" / "b.bin").unlink()
    assert checksums.damaged() == {folder / "a.txt": "its SHA-256 is wrong", folder / "sub/b.bin": "it is missing"}
    (folder / "a.txt").write_bytes(b"some")
    assert checksums.damage(folder / "a.txt") == "it has 4 bytes instead of 9"


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_bit_of_the_list_counts(tmp_path_factory: pytest.TempPathFactory, position: int, bit: int) -> None:
    file = folder_of(tmp_path_factory.mktemp("f") / "g") / "list.json"
    content = bytearray(file.read_bytes())
    content[position % len(content)] ^= 1 << bit
    file.write_bytes(content)
    with pytest.raises(WrongChecksumError):
        read_with_checksums(file)


def test_a_list_is_no_file_of_checksums(tmp_path: Path) -> None:
    (tmp_path / "finished.json").write_text("[1, 2]")
    with pytest.raises(WrongChecksumError, match="it is not a JSON object"):
        read_with_checksums(tmp_path / "finished.json")


def test_files_of_earlier_versions_have_no_checksums(tmp_path: Path) -> None:
    (tmp_path / "finished.json").write_text('{\n  "epochs": 3\n}\n')
    facts, checksums = read_with_checksums(tmp_path / "finished.json")
    assert (facts, checksums.entries) == ({"epochs": 3}, {})


@pytest.mark.parametrize(
    "files",
    [
        [1, 2],
        {"a.txt": 5},
        {"a.txt": {"bytes": "9", "sha256": "x"}},
        {"a.txt": {"bytes": 9}},
        {"/etc/passwd": {"bytes": 9, "sha256": "x"}},
        {"../a.txt": {"bytes": 9, "sha256": "x"}},
        {"a\0b": {"bytes": 9, "sha256": "x"}},
    ],
)
def test_lists_that_were_never_written_are_refused(tmp_path: Path, files: object) -> None:
    text = json.dumps({"files": files}, indent=2).removesuffix("\n}") + ","
    (tmp_path / "list.json").write_text(f'{text}{_LAST}{_of_text(text)}"\n}}\n')
    with pytest.raises(WrongChecksumError):
        read_with_checksums(tmp_path / "list.json")
