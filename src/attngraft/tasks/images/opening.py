"""Training, validation and test images from the recipe's `task.data`, checked and ready for training."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import DataError
from attngraft.files import printable
from attngraft.tasks.images.checks import (
    CORRUPT_LIMIT,
    DataIssues,
    check_amount,
    check_split,
    corrupt_limit,
    find_issues,
    leak_refusal,
    refuse_masks,
)
from attngraft.tasks.images.config import DataConfig, NumbersConfig
from attngraft.tasks.images.scan import ScanResult, scan
from attngraft.tasks.images.sources import Images, ImageSource, open_source, restrict, with_validation
from attngraft.tasks.images.sources.splitting import has_unique_names, split_digest
from attngraft.tasks.task import SPLIT_FILE, load_task

log = logging.getLogger(__name__)

Parts = Mapping[str, Images]  #: train and val, or the folds, by number, with all images, readable or not

_SHOWN = 20  #: largest number of unreadable images listed in an error message


@dataclass(frozen=True, kw_only=True)
class OpenedImages:
    """Training, validation and test images (`source.test`) that passed all checks."""

    source: ImageSource  #: `source.train` excludes the images that were split off for validation
    val: Images
    sizes: Mapping[str, np.ndarray]  #: width and height of the images of train, val and test, (N, 2); 0: unknown
    facts: dict[str, Any]  #: JSON-ready issues and skipped images; `notes` for the report
    random_split: Parts | None  #: None: no random split, or it cannot be saved to a file
    leak: str  #: why no new run should train on copies of its validation images; empty if there are few or none


@dataclass(kw_only=True)
class Survey:
    """Results of scanning and checking a source, whether or not it is usable for training."""

    source: ImageSource  #: without unreadable images
    val: Images | None
    scan: ScanResult  #: of all images, readable or not, in the order training, validation, test
    issues: DataIssues
    sizes: Mapping[str, np.ndarray]  #: see `OpenedImages`
    split: Parts | None  #: None: validation images were not taken from the training split
    refusals: list[str] = field(default_factory=list)  #: reasons why training would reject the data
    leak: str = ""  #: reason why new runs would reject the data, see `OpenedImages`


_known: ContextVar[tuple[DataConfig, Survey] | None] = ContextVar("known", default=None)


@contextmanager
def survey_known(config: DataConfig, survey: Survey) -> Iterator[None]:
    """Context manager in which `open_images` uses this survey of the data of `config`, and makes no other."""
    before = _known.set((config, survey))
    try:
        yield
    finally:
        _known.reset(before)


def data_config(task: str | None) -> type[DataConfig]:
    """Return the config class of `task.data` for an image task; None is treated as a task with classes."""
    return NumbersConfig if task is not None and getattr(load_task(task), "numeric", False) else DataConfig


def open_images(config: DataConfig, *, saved_split: Path | None = None) -> OpenedImages:
    """Open the source, select classes, split, scan all images, skip unreadable ones, and check the result.

    Images are split before unreadable ones are skipped, so repairing a file does not move other images between splits.
    `saved_split` is the file of an earlier random split to use instead of a new one.

    Raises:
        ConfigError: a class is unknown.
        DataError: the data cannot be used; the message names the file or folder and the remedy.
    """
    known = _known.get()
    if known is not None and known[0] == config and saved_split is None:
        survey = known[1]
    else:
        survey = survey_images(config, saved_split=saved_split)
    if survey.refusals or survey.val is None:
        raise DataError(survey.refusals[0])
    source, issues = survey.source, survey.issues
    for note in source.notes:
        log.info("%s", printable(f"{source.where}: {note}"))
    for note in issues.notes():
        log.warning("%s", printable(f"{source.where}: {note}"))
    check = issues.facts() | {"train_digest": split_digest(source.train)}
    test = {} if source.test is None else {"test_digest": split_digest(source.test)}
    facts = {
        "notes": [*source.notes, *issues.notes()],
        "split_digest": split_digest(survey.val),
        "check": check,
        **test,
    }
    random_split = None if config.split_file is not None else survey.split
    if random_split is not None and not has_unique_names(random_split):
        log.warning(
            "%s: the random split cannot be saved, because some images have the same name; rename them",
            printable(source.where),
        )
        random_split = None
    if random_split is not None:
        facts["split_file"] = SPLIT_FILE
    return OpenedImages(
        source=source,
        val=survey.val,
        sizes=survey.sizes,
        facts=facts,
        random_split=random_split,
        leak=survey.leak,
    )


def survey_images(config: DataConfig, *, saved_split: Path | None = None) -> Survey:
    """Open and check images like `open_images`, but collect all reasons for rejection.

    Raises:
        ConfigError: a class is unknown.
        DataError: the source cannot be opened at all.
    """
    source = restrict(open_source(config), config.classes)
    split: Parts | None = None
    refusals: list[str] = []
    val: Images | None = None
    try:
        check_amount(source)
        refuse_masks(source)
        source, val, split = with_validation(source, config, saved_split=saved_split)
    except DataError as error:
        refusals.append(str(error))
        val = source.val
    parts = {"train": source.train, "val": val, "test": source.test}
    existing = {name: images for name, images in parts.items() if images is not None}
    scanned = scan(list(existing.values()), config.check, where=source.where)
    issues = find_issues(existing, scanned, classes=source.classes)
    limit = corrupt_limit(config.max_corrupt, len(scanned))
    if len(issues.unreadable) > limit:
        refusals.append(_too_many_unreadable(source.where, issues, limit, len(scanned), config))
    if scanned.problems:
        readable = _readable(existing, scanned)
        source = replace(source, train=readable["train"], test=readable.get("test"))
        val = readable.get("val")
    if val is not None and not refusals:
        try:
            if scanned.problems:
                check_amount(replace(source, val=val))
            check_split(source, source.train, "training")
            check_split(source, val, "validation", every_class=config.folds is None)
        except DataError as error:
            refusals.append(str(error))
    if source.test is not None:
        try:
            check_split(source, source.test, "test")
        except DataError as error:
            if config.test_split is not None:
                refusals.append(str(error))
            note = f"The split {source.test_split} is not used as a test split: {error}"
            source = replace(source, test=None, notes=(*source.notes, note))
    leak = leak_refusal(source, issues, existing, drawn=split is not None)
    sizes = {name: scanned.sizes[rows] for name, rows in _readable_rows(existing, scanned).items()}
    return Survey(
        source=source,
        val=val,
        scan=scanned,
        issues=issues,
        sizes=sizes,
        split=split,
        refusals=refusals,
        leak=leak,
    )


def _readable(parts: Mapping[str, Images], scanned: ScanResult) -> dict[str, Images]:
    result, begin = {}, 0
    for name, rows in _readable_rows(parts, scanned).items():
        indices, images = rows - begin, parts[name]
        result[name] = images.take(indices, images.labels[indices])
        begin += len(images)
    return result


def _readable_rows(parts: Mapping[str, Images], scanned: ScanResult) -> dict[str, np.ndarray]:
    """Return the rows of the scan with the readable images of each part."""
    good = np.ones(len(scanned), dtype=bool)
    good[list(scanned.problems)] = False
    found, begin = {}, 0
    for name, images in parts.items():
        found[name] = begin + np.flatnonzero(good[begin : begin + len(images)])
        begin += len(images)
    return found


def _too_many_unreadable(where: str, issues: DataIssues, limit: int, images: int, config: DataConfig) -> str:
    count = len(issues.unreadable)
    lines = [f"  {name}: {reason}" for _, name, reason in issues.unreadable[:_SHOWN]]
    if count > _SHOWN:
        lines.append(f"  and {count - _SHOWN} more; `attngraft data check --json` lists all of them")
    if limit == 0 and config.max_corrupt == 0:
        allowed = "task.data.max_corrupt=0 allows none"
    elif config.max_corrupt < 1:
        allowed = f"task.data.max_corrupt={config.max_corrupt:g} allows {limit} of {images} (at most {CORRUPT_LIMIT})"
    else:
        allowed = f"task.data.max_corrupt allows {limit}"
    it = "it" if count == 1 else "them"
    return (
        f"{where}: {count} image{'' if count == 1 else 's'} cannot be read, and {allowed}; replace or remove {it}, or skip "
        f"{it} with --set task.data.max_corrupt={max(count, 1)}:\n" + "\n".join(lines)
    )
