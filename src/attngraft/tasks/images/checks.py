"""Checks that reject unusable labeled images, and reports of unreadable and duplicate images."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from attngraft.errors import DataError
from attngraft.suggest import shortened
from attngraft.tasks.images.scan import ScanResult
from attngraft.tasks.images.sources import Images, ImageSource

CORRUPT_LIMIT = 100  #: largest number of images to skip if `max_corrupt` is a fraction
#: how images were compared, by depth of the scan
_COMPARED = {"full": "pixel by pixel", "fast": "byte by byte", "off": ""}
_LEAK = ("validation image", "training images")
_SHOWN = 3  #: largest number of images or groups listed in a note
_EXAMPLES = 20  #: largest number of groups of duplicates listed in the facts
_SMALLEST_RANGE = 1e-100  #: of numbers; smaller differences are 0 when they are squared
LEAK_LIMIT = 0.1  #: largest fraction of a split's images that may be copies of training images; one image always may

#: usual names of folders of images and of their annotations, in lower case
_PICTURES = frozenset({"image", "images", "img", "imgs", "input", "inputs", "photo", "photos", "picture", "pictures"})
_ANNOTATIONS = frozenset(
    {"annotation", "annotations", "gt", "groundtruth", "ground_truth", "label", "labels", "mask", "masks"}
    | {"seg", "segmentation", "segmentations", "target", "targets"}
)
_SUFFIX = re.compile(
    r"[-_ ](annotation|gt|groundtruth|ground_truth|img|image|label|labels|mask|masks|seg|segmentation)$"
)


def class_counts(images: Images, classes: int) -> np.ndarray:
    """Return the number of images of each class, (classes,)."""
    if images.labels.ndim == 2:
        return np.asarray(images.labels.sum(axis=0, dtype=np.int64))
    return np.bincount(images.labels, minlength=classes)


def check_amount(source: ImageSource) -> None:
    """Check that there are enough images and classes, before the data are split.

    Raises:
        DataError: there are no images, a single image, a single class, or an empty class.
    """
    total = len(source.train) + (len(source.val) if source.val is not None else 0)
    if total == 0:
        raise DataError(f"{source.where}: contains no images")
    if total == 1:
        needed = "several" if source.numeric else "at least two classes with several each"
        raise DataError(f"{source.where}: contains a single image; training needs {needed}")
    if source.numeric:
        return
    if len(source.classes) == 1:
        raise DataError(f"{source.where}: contains a single class, {source.classes[0]!r}; training needs at least two")
    split = "training images" if source.val is not None else "images"
    _refuse_empty(source, class_counts(source.train, len(source.classes)), split)


def refuse_masks(source: ImageSource) -> None:
    """Check that no two classes are a folder of images and a folder of masks for them.

    Raises:
        DataError: a class named like images and one named like masks or annotations have the same files.
    """
    if source.multilabel or source.numeric:
        return
    parts = [source.train] if source.val is None else [source.train, source.val]

    def stems(label: int) -> set[str]:
        members = (images.names[int(i)] for images in parts for i in np.flatnonzero(images.labels == label))
        return {_SUFFIX.sub("", PurePosixPath(name).stem.lower()) for name in members}

    named = {name.lower(): label for label, name in enumerate(source.classes)}
    for images in sorted(_PICTURES & named.keys()):
        for masks in sorted(_ANNOTATIONS & named.keys()):
            if (found := stems(named[images])) and found == stems(named[masks]):
                one, other = source.classes[named[images]], source.classes[named[masks]]
                raise DataError(
                    f"{source.where}: {one!r} and {other!r} have the same {len(found)} file names, so they are images with "
                    "masks and not two classes; use --task segmentation, put the images into one folder per class, or list "
                    "them with their labels in a table (--data labels.csv)"
                )


def check_split(source: ImageSource, images: Images, name: str, *, every_class: bool = True) -> None:
    """Check that the split `name` has all classes (with `every_class`), and that its first image is readable.

    Args:
        name: training, validation or test.

    Raises:
        DataError: the split is empty, a class has no images, all images have the same value of a regression target, or the
            first image is unreadable.
    """
    remedy = "add some, or change the split"
    if source.multilabel:
        remedy = (
            "an image that is the only one with a certain label is kept for training: add images, use fewer labels with "
            "--set 'task.data.classes=[a,b]', or name a validation split with --set task.data.val_split=NAME"
        )
    if len(images) == 0:
        raise DataError(f"{source.where}: no images are left for {name} ({source.origin}); {remedy}")
    if source.numeric:
        _refuse_constant(source, images, name)
    elif every_class:
        _refuse_empty(source, class_counts(images, len(source.classes)), f"{name} images")
    if name != "training":
        images.open(0)


def classes_without_images(source: ImageSource, val: Images) -> list[str]:
    """Return notes on classes of multi-label data that have no images in one of the splits.

    This is not an error: a rare label cannot be removed without losing the other labels of its images.
    """
    notes: list[str] = []
    parts = {"training": source.train, "validation": val, "test": source.test}
    for name, images in parts.items() if source.multilabel else ():
        if images is None:
            continue
        counts = class_counts(images, len(source.classes))
        empty = [label for label, count in zip(source.classes, counts, strict=True) if count == 0]
        if empty:
            notes.append(f"classes without {name} images: {shortened(empty, 100)}")
    return notes


def refuse_other_labels(source: ImageSource, *, task: str, multilabel: bool) -> None:
    """Check that the labels are of the kind that the task requires.

    Raises:
        DataError: the data have one label per image and the task is multi-label, or vice versa.
    """
    if source.multilabel and not multilabel:
        raise DataError(
            f"{source.where}: images have several labels each, but the task {task} requires one; "
            "use --recipe multilabel (in your own recipe: base: multilabel, or task.name: multilabel)"
        )
    if multilabel and not source.multilabel:
        raise DataError(
            f"{source.where}: images have one label each, but the task {task} requires lists of labels; "
            "remove --recipe multilabel (in your own recipe: task.name: classification), or use a table with a "
            "column of label lists, such as cat|dog"
        )


def _refuse_empty(source: ImageSource, counts: np.ndarray, what: str) -> None:
    if source.multilabel:
        return
    empty = [name for name, count in zip(source.classes, counts, strict=True) if count == 0]
    if not empty:
        return
    named = shortened(map(repr, empty), 8)
    plural = "class" if len(empty) == 1 else "classes"
    raise DataError(
        f"{source.where}: no {what} of {plural} {named}; add some, or select the other classes with --set "
        "'task.data.classes=[a,b]' "
        "(training and validation must have the same classes)"
    )


def _refuse_constant(source: ImageSource, images: Images, part: str) -> None:
    for name, low, high in zip(source.classes, images.labels.min(0), images.labels.max(0), strict=True):
        if high - low < _SMALLEST_RANGE:
            raise DataError(
                f"{source.where}: {name} is {low:g} for all {part} images, so there is nothing to learn or to measure; add "
                "images, or choose other columns with --set 'task.data.label_columns=[a,b]'"
            )


@dataclass(frozen=True)
class Duplicate:
    """One of several identical images."""

    part: str  #: split: train, val or test
    name: str
    label: str  #: class, or the comma-separated classes of a multi-label image


@dataclass(frozen=True, kw_only=True)
class DataIssues:
    """Unreadable images (split, name, reason), and groups of identical images.

    Groups span several splits (`leaks`) or lie in one (`repeated`). Groups with different classes are also in `conflicting`.
    """

    depth: str
    unreadable: list[tuple[str, str, str]]
    leaks: list[list[Duplicate]]
    repeated: list[list[Duplicate]]
    conflicting: list[list[Duplicate]]

    @property
    def leaked(self) -> int:
        """Number of images that also occur in an earlier split (training, validation, test)."""
        return sum(image.part != group[0].part for group in self.leaks for image in group)

    def copied(self, part: str) -> int:
        """Return the number of images of a split that are also in an earlier split."""
        return sum(image.part == part != group[0].part for group in self.leaks for image in group)

    def notes(self) -> list[str]:
        """Return one sentence per kind of issue, for the report."""
        notes = []
        if self.unreadable:
            names = [name for _, name, _ in self.unreadable]
            notes.append(f"Skipped {_count(len(names), 'unreadable image')}: {shortened(names, _SHOWN)}.")
        if self.leaks:
            verb = "is" if self.leaked == 1 else "are"
            tested = any(image.part == "test" for group in self.leaks for image in group)
            what, other = ("validation or test image", "images of an earlier split") if tested else _LEAK
            notes.append(
                f"Leak: {_count(self.leaked, what)} {verb} identical to {other}, "
                f"{_COMPARED[self.depth]} ({_listed(self.leaks)}), so the results are too good."
            )
        if self.conflicting:
            verb = "has" if len(self.conflicting) == 1 else "have"
            groups = _listed(self.conflicting)
            notes.append(f"{_count(len(self.conflicting), 'image')} {verb} copies with another label ({groups}).")
        if self.repeated:
            extra = sum(len(group) - 1 for group in self.repeated)
            groups = _listed(self.repeated)
            verb = "is a duplicate" if extra == 1 else "are duplicates"
            notes.append(f"{_count(extra, 'image')} {verb} within a split ({groups}).")
        return notes

    def facts(self) -> dict[str, Any]:
        """Return a JSON-ready description for the run folder."""

        def examples(groups: list[list[Duplicate]]) -> dict[str, Any]:
            shown = [[f"{image.name} ({image.label})" for image in group] for group in groups[:_EXAMPLES]]
            return {"groups": len(groups), "examples": shown} if groups else {"groups": 0}

        return {
            "depth": self.depth,
            "unreadable": [f"{name} ({reason})" for _, name, reason in self.unreadable],
            "leaks": examples(self.leaks),
            "repeated": examples(self.repeated),
            "conflicting": examples(self.conflicting),
        }


def leak_refusal(source: ImageSource, issues: DataIssues, parts: Mapping[str, Images], *, drawn: bool) -> str:
    """Return why no run should start if too many images of a split are copies of training images, or an empty string.

    Args:
        source: the source.
        issues: its issues.
        parts: images of each split.
        drawn: whether the validation split is a random part of the training split.
    """
    for part, name in (("val", "validation"), ("test", "test")):
        if part not in parts or issues.depth == "off":
            continue
        same = part == "val" and list(parts["train"].names) == list(parts["val"].names)
        copies = len(parts[part]) if same else issues.copied(part)
        if refusal := copies_refusal(copies, len(parts[part]), name, where=source.where, drawn=drawn):
            return refusal
    return ""


def copies_refusal(copies: int, total: int, part: str, *, where: str, drawn: bool, noun: str = "image") -> str:
    """Return why no run should start if `copies` of a split's `total` examples are too many, or an empty string.

    Args:
        copies: number of examples that are copies of those in other splits.
        total: number of examples.
        part: validation or test.
        where: name of the source.
        drawn: whether the validation split is a random part of the training split.
        noun: what an example is.
    """
    if copies <= max(LEAK_LIMIT * total, 1):
        return ""
    remedy = "take another part for validation: --set task.data.val_fraction=0.2"
    if part == "test":
        remedy = "compare runs on validation: --set task.data.test_split=none"
    elif drawn:
        remedy = "keep one copy of each" + (" (attngraft data check --json lists them)" if noun == "image" else "")
    other = f"training {noun}s" if part == "validation" else f"{noun}s of the other splits"
    return (
        f"{where}: {copies} of {total} {part} {noun}s are copies of {other}, so results would be too good; remove them, "
        f"or {remedy}; to train anyway, use --set task.data.check=off"
    )


def find_issues(parts: Mapping[str, Images], scan: ScanResult, *, classes: Sequence[str]) -> DataIssues:
    """Return the issues in `scan`, which covers the images of all splits in their order: train, val, test."""

    known: dict[tuple[str, str, str], Duplicate] = {}  # each once, as many rows of a table may name the same file

    def located(position: int) -> tuple[str, Images, int]:
        for part, images in parts.items():
            if position < len(images):
                return part, images, position
            position -= len(images)
        raise IndexError(position)

    def label_of(images: Images, index: int) -> str:
        label = images.labels[index]
        if images.labels.dtype.kind == "f":
            return ", ".join(f"{number:g}" for number in label)
        if images.labels.ndim == 1:
            return classes[int(label)]
        return ", ".join(classes[int(i)] for i in np.flatnonzero(label)) or "no class"

    def duplicate(position: int) -> Duplicate:
        part, images, index = located(position)
        key = part, images.names[index], label_of(images, index)
        return known.get(key) or known.setdefault(key, Duplicate(*key))

    unreadable = []
    for position, reason in scan.problems.items():
        part, images, index = located(position)
        unreadable.append((part, images.names[index], reason))
    identical, train, val = _identical(scan), parts["train"], parts.get("val")
    if val is not None and _is_same(train, val, scan):
        repeats = range(len(train), len(train) + len(val))
        own = ([position for position in group if position not in repeats] for group in identical)
        identical = [group for group in own if len(group) > 1]
    groups = [[duplicate(position) for position in group] for group in identical]
    return DataIssues(
        depth=scan.depth,
        unreadable=unreadable,
        leaks=[group for group in groups if len({image.part for image in group}) > 1],
        repeated=[group for group in groups if len({image.part for image in group}) == 1],
        conflicting=[group for group in groups if len({image.label for image in group}) > 1],
    )


def corrupt_limit(max_corrupt: float, images: int) -> int:
    """Return how many of `images` images may be skipped."""
    return min(CORRUPT_LIMIT, int(max_corrupt * images)) if max_corrupt < 1 else int(max_corrupt)


def _identical(scan: ScanResult) -> list[list[int]]:
    """Return groups of positions of identical images, ordered by each group's first position."""
    if scan.depth == "off":
        return []
    readable = np.setdiff1d(np.arange(len(scan)), list(scan.problems), assume_unique=True)
    halves = np.ascontiguousarray(scan.digests[readable]).view(np.uint64)
    order = np.lexsort(halves.T)  # stable, so equal digests remain in the order of the images
    ends = np.append(np.flatnonzero((np.diff(halves[order], axis=0) != 0).any(axis=1)) + 1, len(order))
    starts = np.append(0, ends[:-1])
    several = ends - starts > 1
    groups = zip(starts[several].tolist(), ends[several].tolist(), strict=True)
    return sorted(readable[order[start:end]].tolist() for start, end in groups)


def _is_same(train: Images, val: Images, scan: ScanResult) -> bool:
    """Return whether both splits are the training split, as in `attngraft eval --split train`."""
    count = len(train)
    return list(train.names) == list(val.names) and np.array_equal(scan.digests[:count], scan.digests[count:])


def _group(images: list[Duplicate]) -> str:
    return " = ".join(image.name for image in images[:3]) + (" = ..." if len(images) > 3 else "")


def _listed(groups: Sequence[list[Duplicate]]) -> str:
    return shortened(map(_group, groups), _SHOWN)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
