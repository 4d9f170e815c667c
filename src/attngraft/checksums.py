"""Sizes and SHA-256 of a folder's files, so that damage is found when a file is read.

    {..., "files": {"predictions.npz": {"bytes": 1234, "sha256": "..."}, ...}, "sha256": "..."}

The last entry is the SHA-256 of all text before it. Folders written by earlier versions have no checksums.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from attngraft.files import write_atomically
from attngraft.opening import open_regular, parse_json, read_text
from attngraft.suggest import quoted

FILE = "checksums.json"  #: in the folders of studies and of exported models; runs have finished.json
_LAST = '\n  "sha256": "'


class WrongChecksumError(ValueError):
    """A file with checksums that is itself damaged."""


@dataclass(frozen=True, kw_only=True)
class Checksums:
    """Sizes and hashes of files in a folder."""

    folder: Path
    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  #: by path in the folder

    def damage(self, path: Path) -> str:
        """Return what is wrong with a file of the folder; empty for intact files and for files without a checksum."""
        entry = self.entries.get(path.relative_to(self.folder).as_posix())
        if entry is None:
            return ""
        try:
            found = path.stat()
            if found.st_size != entry["bytes"]:
                return f"it has {found.st_size:,} bytes instead of {entry['bytes']:,}"
            same = _digest(path, found.st_size, found.st_mtime_ns, found.st_ino) == entry["sha256"]
        except OSError as error:
            return "it is missing" if isinstance(error, FileNotFoundError) else f"it cannot be read ({error.strerror})"
        return "" if same else "its SHA-256 is wrong"

    def damaged(self) -> dict[Path, str]:
        """Return the damaged files, and what is wrong with each."""
        found = {path: self.damage(path) for path in map(self.folder.joinpath, self.entries)}
        return {path: what for path, what in found.items() if what}


@functools.lru_cache(maxsize=4096)  # a report opens the same predictions several times
def _digest(path: Path, size: int, modified: int, inode: int) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(path: Path, files: Iterable[Path], *, facts: Mapping[str, Any] | None = None) -> None:
    """Write `facts`, and the checksums of files in the folder of `path`.

    Raises:
        StorageError: the file cannot be written.
    """
    entries = {}
    for file in sorted(filter(Path.is_file, files)):
        found = file.stat()
        digest = _digest(file, found.st_size, found.st_mtime_ns, found.st_ino)
        entries[file.relative_to(path.parent).as_posix()] = {"bytes": found.st_size, "sha256": digest}
    text = json.dumps({**(facts or {}), "files": entries}, indent=2, ensure_ascii=False).removesuffix("\n}") + ","
    write_atomically(path, f'{text}{_LAST}{_of_text(text)}"\n}}\n')


def read_with_checksums(path: Path) -> tuple[dict[str, Any], Checksums]:
    """Return the facts and the checksums in a file written by `write_checksums`, or in one without checksums.

    Raises:
        OSError: the file cannot be read.
        WrongChecksumError: the file is damaged.
    """
    try:
        text = read_text(path)
        content = parse_json(text)
        if not isinstance(content, dict) or not isinstance(content.get("files", {}), dict):
            raise ValueError("it is not a JSON object, or its `files` is not")
        before, _, last = text.rpartition(_LAST)
        if ("files" in content or before) and last != f'{_of_text(before)}"\n}}\n':
            raise ValueError("its SHA-256 is wrong")
        files = content.pop("files", {})
        content.pop("sha256", None)
        for name, entry in files.items():
            place = PurePosixPath(name)
            if place.is_absolute() or ".." in place.parts or "\0" in name:
                raise ValueError(f"{quoted(name)} is not a file in this folder")
            if type(entry["bytes"]) is not int or type(entry["sha256"]) is not str:
                raise ValueError(f"wrong checksum of {quoted(name)}")
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise WrongChecksumError(str(error)) from None
    return content, Checksums(folder=path.parent, entries=files)


def folder_checksums(folder: Path, *, error: type[Exception], remedy: str) -> Checksums:
    """Return the checksums in a folder's checksums.json; empty if it has none, as in folders of earlier versions.

    Raises:
        error: checksums.json is damaged; the message ends with `remedy`.
    """
    path = folder / FILE
    try:
        return read_with_checksums(path)[1] if path.exists() else Checksums(folder=folder)
    except (OSError, WrongChecksumError) as damage:
        raise error(f"{path}: damaged ({damage}); {remedy}") from None


def _of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
