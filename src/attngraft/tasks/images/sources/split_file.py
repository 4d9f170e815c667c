"""A drawn split on file: which images are for training, which for validation. A .csv that a person can read and change."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.files import write_atomically
from attngraft.tasks.images.sources.images import Images
from attngraft.tasks.images.sources.parts import Parts

HEADER = ["name", "part"]

_SHOWN = 5


def can_be_kept(train: Images, val: Images) -> bool:
    """Whether a file of names could tell the images apart."""
    return len({*train.names, *val.names}) == len(train) + len(val)


def save_split(path: Path, train: Images, val: Images) -> Path:
    """Write the names of the images of both parts to `path`.

    Raises:
        DataError: two images of one name.
        StorageError: it cannot be written.
    """
    if not can_be_kept(train, val):
        names = [*train.names, *val.names]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"two images are called {twice!r}: a split file could not tell them apart; rename one")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows([name, part] for part, images in (("train", train), ("val", val)) for name in images.names)
    return write_atomically(path, text.getvalue().encode("utf-8", "surrogateescape"))


_WRITTEN_BY_CHECK = "add rows for them, or write the file again with attngraft data check --save-split"


def drawn_by_file(path: Path, parts: Parts, *, remedy: str = _WRITTEN_BY_CHECK) -> tuple[np.ndarray, str]:
    """Which images of `parts.train` are for validation; and a note on those that the file names and the data lack.
    `remedy` says what to do about images that it does not name.

    Raises:
        DataError: no such file, or not one of `save_split`'s; an image that it does not name.
    """
    said = dict(_rows(path))
    unknown = [name for name in parts.train.names if name not in said]
    if unknown:
        listed = ", ".join(unknown[:_SHOWN]) + (", ..." if len(unknown) > _SHOWN else "")
        raise DataError(
            f"{path}: does not say where {len(unknown)} of {len(parts.train)} images of {parts.where} belong ({listed}); "
            f"were they added since? Then {remedy}"
        )
    there = set(parts.train.names)
    gone = sum(name not in there for name in said)
    what = "image" if gone == 1 else "images"
    note = f"{gone} {what} that the split file names {'is' if gone == 1 else 'are'} not in the data." if gone else ""
    return np.array([said[name] == "val" for name in parts.train.names], dtype=bool), note


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    try:
        text = path.read_bytes().decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    except OSError as error:
        raise DataError(
            f"task.data.split_file: {path} cannot be opened ({error.strerror}); write one with attngraft data check "
            f"--save-split {path}"
        ) from None
    rows = csv.reader(io.StringIO(text, newline=""))
    if next(rows, None) != HEADER:
        raise DataError(f"{path}: is no split file; its first line must read {','.join(HEADER)}")
    for row in rows:
        if not row:
            continue
        if len(row) != 2 or row[1] not in ("train", "val"):
            raise DataError(
                f"{path}: line {rows.line_num}: must be a name and train or val, reads {','.join(row)[:100]}"
            )
        yield row[0], row[1]
