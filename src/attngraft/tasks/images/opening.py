"""From a recipe's `task.data` to a training and a validation part that can be trained on."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.checks import check_amount, check_split
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.findings import CORRUPT_LIMIT, Findings, corrupt_limit, findings
from attngraft.tasks.images.printable import printable
from attngraft.tasks.images.scan import Progress, Scan, scan
from attngraft.tasks.images.sources import Images, Parts, open_source, restrict, with_validation
from attngraft.tasks.images.sources.split_file import can_be_kept
from attngraft.tasks.task import SPLIT_FILE

log = logging.getLogger(__name__)

Division = tuple[Images, Images]  #: training and validation part, with all images that were divided, readable or not

_SHOWN = 20  #: unreadable images that an error lists


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Images that can be trained on."""

    parts: Parts  #: `parts.train` is the training part; a drawn validation part is taken out of it
    val: Images
    facts: dict[str, Any]  #: JSON-ready, for the task's: what was found wrong and left out, `notes` for the report
    drawn: Division | None  #: what was drawn at random, where a file could keep it


@dataclass(kw_only=True)
class Survey:
    """All that was found, whether it can be trained on or not."""

    parts: Parts  #: with the unreadable images left out
    val: Images | None
    seen: Scan  #: of all images, the unreadable ones too: first the training part's, then the validation part's
    found: Findings
    divided: Division | None  #: where the validation part was taken out of the training part
    refusals: list[str] = field(default_factory=list)  #: why training would be refused


def open_images(config: DataConfig, *, kept: Path | None = None) -> Opened:
    """Open, choose classes, divide, look at every image, leave out what cannot be read, check.

    The parts are divided before unreadable images leave them, so that a repaired file moves no other image to the other
    part. `kept` is a file of what was drawn before, which stands in place of a draw.

    Raises:
        ConfigError: a class that is not there.
        DataError: the data cannot be used; names the file or folder and the remedy.
    """
    survey = survey_images(config, kept=kept)
    if survey.refusals or survey.val is None:
        raise DataError(survey.refusals[0])
    for note in survey.parts.notes:
        log.info("%s", printable(f"{survey.parts.where}: {note}"))
    for note in survey.found.notes():
        log.warning("%s", printable(f"{survey.parts.where}: {note}"))
    notes = [*survey.parts.notes, *survey.found.notes()]
    check = survey.found.facts() | {"train_digest": split_digest(survey.parts.train)}
    facts = {"notes": notes, "split_digest": split_digest(survey.val), "check": check}
    drawn = None if config.split_file is not None else survey.divided
    if drawn is not None and not can_be_kept(*drawn):
        log.warning("%s: the drawn split is not kept on file: images share a name", printable(survey.parts.where))
        drawn = None
    if drawn is not None:
        facts["split_file"] = SPLIT_FILE
    return Opened(parts=survey.parts, val=survey.val, facts=facts, drawn=drawn)


def survey_images(config: DataConfig, *, kept: Path | None = None, progress: Progress | None = None) -> Survey:
    """As `open_images`, with what is refused collected, where something can be said of the data beside it.

    Raises:
        ConfigError: a class that is not there.
        DataError: the source cannot be opened at all.
    """
    parts = restrict(open_source(config), config.classes)
    divides = parts.val is None or config.draws
    divided: Division | None = None
    refusals: list[str] = []
    val: Images | None = None
    try:
        check_amount(parts)
        parts, val = with_validation(parts, config, kept=kept)
        divided = (parts.train, val) if divides else None
    except DataError as error:
        refusals.append(str(error))
        val = parts.val
    seen = scan([parts.train] + ([val] if val is not None else []), config.check, where=parts.where, progress=progress)
    found = findings(parts.train, val, seen, classes=parts.classes)
    limit = corrupt_limit(config.max_corrupt, len(seen))
    if len(found.unreadable) > limit:
        refusals.append(_too_many(parts.where, found, limit, len(seen), config))
    parts, val = _readable(parts, val, seen)
    if val is not None and not refusals:
        try:
            if seen.problems:
                check_amount(replace(parts, val=val))
            check_split(parts, val)
        except DataError as error:
            refusals.append(str(error))
    return Survey(parts=parts, val=val, seen=seen, found=found, divided=divided, refusals=refusals)


def split_digest(images: Images) -> str:
    """Tells whether two parts are the same: SHA-256 (first 16 hexadecimal digits) of the sorted names."""
    text = "\n".join(sorted(images.names)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:16]


def _readable(parts: Parts, val: Images | None, seen: Scan) -> tuple[Parts, Images | None]:
    if not seen.problems:
        return parts, val
    good = np.ones(len(seen), dtype=bool)
    good[list(seen.problems)] = False

    def kept(images: Images, good: np.ndarray) -> Images:
        indices = np.flatnonzero(good)
        return images.take(indices, images.labels[indices])

    length = len(parts.train)
    parts = replace(parts, train=kept(parts.train, good[:length]))
    return parts, None if val is None else kept(val, good[length:])


def _too_many(where: str, found: Findings, limit: int, images: int, config: DataConfig) -> str:
    count = len(found.unreadable)
    lines = [f"  {name}: {reason}" for _, name, reason in found.unreadable[:_SHOWN]]
    if count > _SHOWN:
        lines.append(f"  and {count - _SHOWN} more; `attngraft data check --json` lists all")
    if limit == 0 and config.max_corrupt == 0:
        why = "none may be (task.data.max_corrupt: 0)"
    elif config.max_corrupt < 1:
        why = f"task.data.max_corrupt: {config.max_corrupt:g} leaves out {limit} of {images} (at most {CORRUPT_LIMIT})"
    else:
        why = f"task.data.max_corrupt leaves out {limit}"
    return (
        f"{where}: {count} image{'' if count == 1 else 's'} cannot be read, and {why}; replace or remove "
        f"{'it' if count == 1 else 'them'}, or raise task.data.max_corrupt to {max(count, 1)} to go on without:\n"
        + "\n".join(lines)
    )
