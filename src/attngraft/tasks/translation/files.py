"""Line-aligned files: `train.en` and `train.de` have as many lines, plain or .gz."""

import gzip
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from attngraft.errors import DataError
from attngraft.opening import read_blocks
from attngraft.suggest import shortened
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import TEST_NAMES, TRAIN_NAMES, VAL_NAMES
from attngraft.tasks.images.sources.listing import is_image, is_unsupported
from attngraft.tasks.images.sources.table import KINDS, LabelTable, decode_utf8

_FREE_LINES, _SHORTEST = 2**20, 8  #: files of more lines have this many bytes per line on average
_LANGUAGE = re.compile(r"[a-z]{2,3}([-_][a-z0-9]{2,8})*", re.IGNORECASE)
#: extensions of two or three letters that are no languages
_OTHER = re.compile(
    "avi|bak|bin|cc|cfg|cpp|css|doc|htm|ini|js|log|md|mov|npy|npz|odt|pdf|pkl|pt|pth|py|rar|rst|sql|svg|tar|tex|tgz|txt|wav|"
    "xls|xml|xz|yml|zip"
)


def aligned_files(path: Path) -> dict[str, dict[str, Path]]:
    """Return the files `STEM.EXTENSION` or `STEM.EXTENSION.gz` of a folder, or of one stem, by stem and extension."""
    folder = path if path.is_dir() else path.parent
    found: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        stem, _, extension = file.name.removesuffix(".gz").rpartition(".")
        if not stem or not extension or not (path.is_dir() or stem == path.name) or file.is_dir():
            continue
        if not file.is_file() and _is_language(extension):
            raise DataError(f"{file}: is not a regular file; remove it, or replace it by one")
        if extension in found.setdefault(stem, {}):
            raise DataError(f"{file}: {found[stem][extension].name} has the same name; keep one of them")
        found[stem][extension] = file
    return found


def languages_of(files: Mapping[str, Mapping[str, Path]]) -> list[str]:
    """Return the extensions that look like languages and belong to a stem with two of them; `train`'s if there is one."""
    by_stem = {stem: [name for name in sorted(of) if _is_language(name)] for stem, of in files.items()}
    several = {stem: names for stem, names in by_stem.items() if len(names) > 1}
    train = [names for stem, names in several.items() if usual_name(stem, TRAIN_NAMES)]
    return sorted({name for names in train or several.values() for name in names})


def _is_language(extension: str) -> bool:
    name = f"x.{extension}"
    other = (
        f".{extension.lower()}" in KINDS
        or _OTHER.fullmatch(extension.lower())
        or is_image(name)
        or is_unsupported(name)
    )
    return bool(_LANGUAGE.fullmatch(extension)) and not other


def usual_name(stem: str, names: Sequence[str]) -> bool:
    """Return whether the first or the last word of a stem is one of `names`, as in `test_2016_flickr`."""
    words = re.split(r"[-_.]", stem.lower())
    return words[0] in names or words[-1] in names


def with_usual_splits(stems: Sequence[str], config: DataConfig) -> DataConfig:
    """Return the settings with the names of splits such as `test_2016_flickr`, if there is one such name for a split."""
    given: dict[str, tuple[str, ...]] = {"train_split": TRAIN_NAMES, "test_split": TEST_NAMES}
    if not config.splits_train:
        given["val_split"] = tuple(name for name in VAL_NAMES if name not in TEST_NAMES)
    chosen: dict[str, Any] = {}
    for field, names in given.items():
        found = [stem for stem in stems if usual_name(stem, names)]
        if getattr(config, field) is None and len(found) == 1:
            chosen[field] = found[0]
    return replace(config, **chosen)


def aligned_tables(
    files: Mapping[str, Mapping[str, Path]], names: Sequence[str]
) -> dict[str, Callable[[], LabelTable]]:
    """Return functions that read the table of each stem, with a column per extension in `names`.

    Raises:
        DataError: training or validation sentences are there in some of the languages only.
    """
    whole = [stem for stem, of in files.items() if all(name in of for name in names)]
    for stem, of in files.items() if whole else ():
        lacking = [name for name in names if name not in of]
        if 0 < len(lacking) < len(names) and usual_name(stem, [*TRAIN_NAMES, *(set(VAL_NAMES) - set(TEST_NAMES))]):
            held = next(of[name] for name in names if name in of)
            raise DataError(f"{held}: there is no {stem}.{lacking[0]}; add it, or rename or remove the file")
    return {stem: partial(_read_aligned, stem, {name: files[stem][name] for name in names}) for stem in whole}


def _read_aligned(stem: str, files: Mapping[str, Path]) -> LabelTable:
    columns = {name: read_lines(file) for name, file in files.items()}
    (first, one), (second, other) = files.items()
    counts = [len(columns[name]) for name in (first, second)]
    if counts[0] != counts[1]:
        raise DataError(
            f"{one} has {counts[0]:,} lines, but {other} has {counts[1]:,}; line N of one must be the translation of line N "
            "of the other: correct the files, and keep a line, perhaps an empty one, for every sentence"
        )
    return LabelTable(
        where=str(one.parent / f"{stem}.{{{','.join(file.name.removeprefix(f'{stem}.') for file in (one, other))}}}"),
        columns=dict(columns),
        numbers=[f"line {number}" for number in range(1, counts[0] + 1)],
    )


def read_lines(path: Path) -> list[str]:
    r"""Return the lines of a UTF-8 file, plain or .gz; only \n and \r\n end a line.

    Raises:
        DataError: the file cannot be opened, is damaged, binary, or not UTF-8; the message names the line.
    """
    data = bytearray()
    try:
        for block in read_blocks(path):
            data += block
            if b"\0" in block:
                break
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        line = data.count(b"\n") + 1
        raise DataError(f"{path}: damaged at line {line} ({error}); download or compress the file again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror})") from None
    if (zero := data.find(b"\0")) >= 0:
        line = data.count(b"\n", 0, zero) + 1
        raise DataError(
            f"{path}: line {line} has a zero byte, so this is no UTF-8 text; give a file with a sentence per line"
        )
    if (count := data.count(b"\n")) > _FREE_LINES and count * _SHORTEST > len(data):
        raise DataError(
            f"{path}: {count:,} lines of {len(data) // count} bytes on average are no sentences; correct it"
        )
    lines = decode_utf8(data, path).split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


def no_training_files(path: Path, stems: Sequence[str], names: Sequence[str]) -> DataError:
    """Return the error for a folder with several pairs of files, none of which is called train."""
    return DataError(
        f"{path}: no train.{names[0]} and train.{names[1]}; name the training files with --set task.data.train_split=NAME; "
        f"available: {shortened(sorted(stems), 8)}"
    )
