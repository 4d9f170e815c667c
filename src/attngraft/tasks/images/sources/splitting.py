"""Splitting into training and validation: random and stratified, or as listed in an editable file."""

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.files import write_atomically
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import Images, ImageSource

HEADER = ["name", "part"]
DEFAULT_FRACTION = 0.2  #: fraction of each class used for validation, for sources without splits

_SHOWN = 5  #: largest number of names listed in a message
_CHECK_WRITES_IT = "add rows for them, or write the file again with attngraft data check --save-split"
_REMOVE_THEM = "remove them from the data, add rows for them to this file, or start in another folder"


def with_validation(
    source: ImageSource, config: DataConfig, *, saved_split: Path | None = None
) -> tuple[ImageSource, Images]:
    """Return the source with its final training split, and the validation images.

    A random split takes the same fraction of every class, but at least one image, and leaves at least one for training. It
    depends only on the order of the images, the fraction and `split_seed`. Multi-label images are split by iterative
    stratification, images labeled with numbers without stratification.

    With `split_file`, that file assigns the images of the training split. `saved_split` is a file of the same format that
    is used instead of a random split.

    Raises:
        DataError: a class has a single image and cannot be split; see also `read_split`.
    """
    if config.split_file is not None:
        path = Path(config.split_file).expanduser()
        in_val, note = read_split(path, source)
        source = replace(source, notes=(*source.notes, note) if note else source.notes)
        return _apply(source, in_val, f"{source.origin}, split by {path.name}")
    if source.val is not None and not config.splits_train:
        return source, source.val
    fraction = DEFAULT_FRACTION if config.val_fraction is None else config.val_fraction
    if saved_split is None:
        stream = np.random.RandomState(config.split_seed)  # its streams are the same in all NumPy versions
        draw = _at_random if source.numeric else _by_rarest_label if source.multilabel else _by_class
        in_val = draw(source.train.labels, fraction, stream, source)
    else:
        in_val, note = read_split(saved_split, source, remedy=_REMOVE_THEM)
        source = replace(source, notes=(*source.notes, note) if note else source.notes)
    of = "" if source.numeric else "each class of "
    origin = f"{fraction:g} of {of}{source.origin} for validation, at random with split_seed {config.split_seed}"
    return _apply(source, in_val, origin)


def _apply(source: ImageSource, in_val: np.ndarray, origin: str) -> tuple[ImageSource, Images]:
    labels = source.train.labels
    train, val = np.flatnonzero(~in_val), np.flatnonzero(in_val)
    rest = replace(source, train=source.train.take(train, labels[train]), origin=origin)
    return rest, source.train.take(val, labels[val])


def _at_random(labels: np.ndarray, fraction: float, stream: np.random.RandomState, _: ImageSource) -> np.ndarray:
    in_val = np.zeros(len(labels), dtype=bool)
    in_val[stream.permutation(len(labels))[: min(max(1, round(len(labels) * fraction)), len(labels) - 1)]] = True
    return in_val


def _by_class(labels: np.ndarray, fraction: float, stream: np.random.RandomState, source: ImageSource) -> np.ndarray:
    in_val = np.zeros(len(labels), dtype=bool)
    alone = np.flatnonzero(np.bincount(labels, minlength=len(source.classes)) == 1)
    if len(alone):
        named = ", ".join(repr(source.classes[int(label)]) for label in alone[:5]) + (", ..." if len(alone) > 5 else "")
        what = f"class {named} has" if len(alone) == 1 else f"{len(alone)} classes ({named}) have"
        raise DataError(
            f"{source.where}: {what} a single image, which cannot be split into training and validation; add images, or "
            "choose the classes to use with --set 'task.data.classes=[a,b]'"
        )
    for label in range(len(source.classes)):
        members = np.flatnonzero(labels == label)
        count = min(max(1, round(len(members) * fraction)), len(members) - 1)
        in_val[stream.permutation(members)[: max(count, 0)]] = True
    return in_val


def _by_rarest_label(labels: np.ndarray, fraction: float, stream: np.random.RandomState, _: ImageSource) -> np.ndarray:
    """Split in two by iterative stratification (Sechidis et al. 2011).

    In each step, the images of the label with the fewest unassigned images are assigned, each to the side that lacks more
    images of that label. Images without labels come last. Unlike in the paper, every label keeps at least one training
    image and, if another can be spared, gets a validation image.
    """
    order = stream.permutation(len(labels))
    counts = labels.sum(axis=0, dtype=np.int64)
    wanted = np.where(counts > 1, np.clip(np.rint(counts * fraction), 1, np.maximum(counts - 1, 1)), 0)
    room = np.stack([counts - wanted, wanted]).astype(np.float64)  #: images to be assigned to train and val, by label
    space = np.array([len(labels) * (1 - fraction), len(labels) * fraction])
    side = np.full(len(labels), -1)
    left, kept = counts.copy(), counts.copy()  #: images of each label: unassigned, and not in validation
    while (left > 0).any():
        label = int(np.argmin(np.where(left > 0, left, np.iinfo(np.int64).max)))
        for image in order[(labels[order, label] > 0) & (side[order] < 0)]:
            share = room[:, label]
            choice = int(share[1] > share[0] or (share[1] == share[0] and space[1] > space[0]))
            choice = choice if _can_leave_training(labels[image], kept) else 0
            side[image] = choice
            room[choice] -= labels[image]
            space[choice] -= 1
            left -= labels[image]
            kept -= labels[image] * choice
    for label in range(len(counts)):  # for labels without a validation image, move the image with the fewest labels
        members = order[labels[order, label] > 0] if kept[label] == counts[label] else order[:0]
        spare = [image for image in members if _can_leave_training(labels[image], kept)]
        if spare:
            moved = min(spare, key=lambda image: int(labels[image].sum()))
            side[moved] = 1
            kept -= labels[moved]
    unlabeled = order[side[order] < 0]
    side[unlabeled] = 0
    side[unlabeled[: round(len(unlabeled) * fraction)]] = 1
    return side == 1


def _can_leave_training(image: np.ndarray, kept: np.ndarray) -> bool:
    """Return whether every label of the image has another image in training."""
    return bool((kept[image > 0] > 1).all())


def has_unique_names(train: Images, val: Images) -> bool:
    """Return whether all names differ, as required for a split file."""
    return len({*train.names, *val.names}) == len(train) + len(val)


def save_split(path: Path, train: Images, val: Images) -> Path:
    """Write the names of the images of both splits to `path`.

    Raises:
        DataError: two images have the same name.
        StorageError: the file cannot be written.
    """
    if not has_unique_names(train, val):
        names = [*train.names, *val.names]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"two images have the name {twice!r}, so a split file would be ambiguous; rename one of them")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows([name, part] for part, images in (("train", train), ("val", val)) for name in images.names)
    return write_atomically(path, text.getvalue().encode("utf-8", "surrogateescape"))


def read_split(path: Path, source: ImageSource, *, remedy: str = _CHECK_WRITES_IT) -> tuple[np.ndarray, str]:
    """Return the validation mask of `source.train`, and a note on listed names that have no image.

    `remedy` is the end of the error message for images that the file does not list.

    Raises:
        DataError: the file is missing, not in the format of `save_split`, or does not list all images.
    """
    listed = dict(_rows(path))
    unknown = [name for name in source.train.names if name not in listed]
    if unknown:
        shown = ", ".join(unknown[:_SHOWN]) + (", ..." if len(unknown) > _SHOWN else "")
        raise DataError(
            f"{path}: does not list {len(unknown)} of {len(source.train)} images of {source.where} ({shown}); if they "
            f"were added since, {remedy}"
        )
    existing = set(source.train.names)
    gone = sum(name not in existing for name in listed)
    what = "image" if gone == 1 else "images"
    note = f"{gone} {what} listed in the split file {'is' if gone == 1 else 'are'} not in the data." if gone else ""
    return np.array([listed[name] == "val" for name in source.train.names], dtype=bool), note


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
        raise DataError(f"{path}: not a split file; its first line must be {','.join(HEADER)}")
    for row in rows:
        if not row:
            continue
        if len(row) != 2 or row[1] not in ("train", "val"):
            raise DataError(
                f"{path}: line {rows.line_num}: expected a name and train or val, found {','.join(row)[:100]}"
            )
        yield row[0], row[1]
