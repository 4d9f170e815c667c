"""Names of many tars: patterns, and what they say of parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from attngraft.errors import DataError
from attngraft.tasks.images.sources.parts import TRAIN_NAMES, VAL_NAMES

_BRACES = re.compile(r"\{([^{}]*)\}")
_LIMIT = 1_000_000  #: shards of a pattern


def is_pattern(source: str) -> bool:
    """Whether a source names shards by a pattern."""
    return source.endswith(".tar") and _BRACES.search(source) is not None


def expanded(pattern: str) -> list[str]:
    """`a-{00..02}.tar` as `a-00.tar`, `a-01.tar`, `a-02.tar`; `{a,b}.tar` as `a.tar`, `b.tar`.

    Raises:
        DataError: braces that are neither; a falling range.
    """
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    inside, before, behind = found[1], pattern[: found.start()], pattern[found.end() :]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        if not first <= last < first + _LIMIT:
            raise DataError(f"{pattern}: {{{inside}}} must rise; write {{000..009}}")
        choices = [str(number).zfill(len(numbers[1])) for number in range(first, last + 1)]
    elif "," in inside:
        choices = inside.split(",")
    else:
        raise DataError(f"{pattern}: {{{inside}}} is no pattern; write {{000..009}}, or {{train,val}}")
    return [f"{before}{choice}{rest}" for choice in choices for rest in expanded(behind)]


def grouped(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Paths by what their names say without a number at the end: `train-000.tar` belongs to `train`, and so does
    `birds-train-000.tar`; `birds-000.tar` to `birds`."""
    groups: dict[str, list[Path]] = {}
    for path in paths:
        name = re.sub(r"[-_.]?\d+$", "", path.stem)
        last = re.split(r"[-_.]", name)[-1]
        groups.setdefault(last if last.lower() in (*TRAIN_NAMES, *VAL_NAMES) else name, []).append(path)
    return groups
