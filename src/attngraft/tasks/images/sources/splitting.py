"""Splitting into training and validation or into folds: random and stratified, or as listed in an editable file."""

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from attngraft.errors import DataError
from attngraft.files import csv_cell, user_path, write_atomically
from attngraft.opening import open_regular, read_data
from attngraft.suggest import quoted, repeated, shortened
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import Images, ImageSource
from attngraft.tasks.images.sources.folds import draw_folds
from attngraft.tasks.images.sources.pooling import pool

HEADER = ["name", "part"]
DEFAULT_FRACTION = 0.2  #: fraction of each class used for validation, for sources without splits

_SHOWN = 5  #: largest number of names listed in a message
_CHECK_WRITES_IT = "add rows for them, or write the file again with attngraft data check --save-split"
POOLED = (
    "With folds, the {noun}s of the training and the validation split are pooled, and each is used for validation once."
)
_REMOVE_THEM = "remove them from the data, add rows for them to this file, or start in another folder"


class Named(Protocol):
    """Examples with names, such as `Images`."""

    @property
    def names(self) -> Sequence[str]: ...


@dataclass(frozen=True, kw_only=True)
class Division:
    """Division of N examples into training and validation, or into folds."""

    part: np.ndarray  #: (N,): name of each example's part in a split file: train, val, or the number of a fold
    in_val: np.ndarray  #: (N,): whether the example is used for validation
    origin: str  #: description, for the report
    notes: Sequence[str] = ()

    def indices(self) -> dict[str, np.ndarray]:
        """Return the indices of the examples of each part."""
        return {str(part): np.flatnonzero(self.part == part) for part in np.unique(self.part)}


def with_validation(
    source: ImageSource, config: DataConfig, *, saved_split: Path | None = None
) -> tuple[ImageSource, Images, dict[str, Images] | None]:
    """Return the source with its final training split, the validation images, and all parts of the division.

    The parts are None if validation is a split of the source. With folds, training and validation images of the source are
    divided together.

    Raises:
        DataError: see `divide`.
    """
    if source.val is not None and not config.splits_train and config.folds is None:
        return source, source.val, None
    images, notes = source.train, source.notes
    if config.folds is not None and source.val is not None:
        images = pool(source.train, source.val)
        notes = (*notes, POOLED.format(noun="image"))
    labels, groups = images.labels, None
    if source.groups is not None:
        groups = [source.groups[name] for name in images.names]
    found = divide(
        images,
        labels,
        config,
        where=source.where,
        origin=source.origin,
        classes=source.classes,
        saved_split=saved_split,
        groups=groups,
    )
    train, val = np.flatnonzero(~found.in_val), np.flatnonzero(found.in_val)
    rest = replace(source, train=images.take(train, labels[train]), origin=found.origin, notes=(*notes, *found.notes))
    parts = {name: images.take(indices, labels[indices]) for name, indices in found.indices().items()}
    return rest, images.take(val, labels[val]), parts


def divide(
    examples: Named,
    labels: np.ndarray,
    config: DataConfig,
    *,
    where: str,
    origin: str,
    classes: Sequence[str],
    saved_split: Path | None,
    groups: Sequence[str] | None = None,
    noun: str = "image",
) -> Division:
    """Divide examples into training and validation, or into folds (`folds.draw_folds`).

    A random split takes the same fraction of every class, but at least one example, and leaves at least one for training. It
    depends only on the order of the examples, the fraction and `split_seed`. Examples with several labels are split by
    iterative stratification, examples labeled with numbers without stratification. With `groups`, validation is one of
    1 / fraction folds, which keep groups whole.

    With `split_file`, that file assigns the examples. `saved_split` is a file of the same format that is used instead of a
    random split.

    Raises:
        DataError: a class has a single example and cannot be split, or the folds cannot be formed; see also `read_split`.
    """
    parts = ("train", "val") if config.folds is None else tuple(map(str, range(config.folds)))
    val = parts[1] if config.fold is None else str(config.fold)
    if config.folds is not None:
        _refuse_equal_names(examples, where=where, noun=noun)
    if config.split_file is not None:
        path = user_path(config.split_file)
        part, notes = read_split(path, examples, where=where, noun=noun, parts=parts)
        if config.folds is not None and (empty := [name for name in parts if not (part == name).any()]):
            raise DataError(f"{path}: assigns no {noun} to fold {empty[0]} of {config.folds}; use fewer folds")
        origin = f"{origin}, split by {path.name}"
        if config.folds is not None:
            origin += f" into {config.folds} folds"
        return Division(part=part, in_val=part == val, origin=origin, notes=notes)
    fraction = DEFAULT_FRACTION if config.val_fraction is None else config.val_fraction
    stratified = labels.dtype.kind != "f"
    whole = "" if groups is None else f", groups of column {config.group_column!r} kept whole"
    if config.folds is None:
        of = "each class of " if stratified and groups is None else ""
        drawn = f"{fraction:g} of {of}{origin} for validation, at random with split_seed {config.split_seed}{whole}"
    else:
        drawn = f"{config.folds} folds of {origin}, each for validation once, "
        drawn += f"{'stratified, ' if stratified else ''}at random with split_seed {config.split_seed}{whole}"
    if saved_split is not None:
        part, notes = read_split(saved_split, examples, where=where, noun=noun, remedy=_REMOVE_THEM, parts=parts)
        return Division(part=part, in_val=part == val, origin=drawn, notes=notes)
    if config.folds is not None or groups is not None:
        folds = config.folds or round(1 / fraction)
        try:
            fold_of = draw_folds(
                labels, folds, seed=config.split_seed, classes=classes, where=where, groups=groups, noun=noun
            )
        except DataError as error:
            if config.folds is not None:
                raise
            raise DataError(
                f"{error} (with group_column, validation is one of {folds} folds; val_fraction={fraction:g})"
            ) from None
        part = fold_of.astype(np.str_) if config.folds is not None else np.where(fold_of == 0, "val", "train")
        return Division(part=part, in_val=part == val, origin=drawn)
    stream = np.random.RandomState(config.split_seed)  # its streams are the same in all NumPy versions
    if not stratified:
        in_val = _at_random(labels, fraction, stream)
    elif labels.ndim == 2:
        in_val = _by_rarest_label(labels, fraction, stream)
    else:
        _refuse_single_examples(labels, classes, where=where, noun=noun)
        in_val = _by_class(labels, fraction, stream)
    return Division(part=np.where(in_val, "val", "train"), in_val=in_val, origin=drawn)


def _refuse_single_examples(labels: np.ndarray, classes: Sequence[str], *, where: str, noun: str) -> None:
    alone = [repr(classes[label]) for label in np.flatnonzero(np.bincount(labels) == 1).tolist()]
    if alone:
        named = shortened(alone, _SHOWN)
        what = f"class {named} has" if len(alone) == 1 else f"{len(alone)} classes ({named}) have"
        other = (
            "choose the classes to use with --set 'task.data.classes=[a,b]'" if noun == "image" else "remove the class"
        )
        raise DataError(
            f"{where}: {what} a single {noun}, which cannot be split into training and validation; add {noun}s, or {other}"
        )


def _refuse_equal_names(examples: Named, *, where: str, noun: str) -> None:
    if (twice := repeated(examples.names)) is not None:
        raise DataError(
            f"{where}: two {noun}s have the name {twice!r}, but folds require unique names; rename one of them"
        )


def _at_random(labels: np.ndarray, fraction: float, stream: np.random.RandomState) -> np.ndarray:
    in_val = np.zeros(len(labels), dtype=bool)
    in_val[stream.permutation(len(labels))[: min(max(1, round(len(labels) * fraction)), len(labels) - 1)]] = True
    return in_val


def _by_class(labels: np.ndarray, fraction: float, stream: np.random.RandomState) -> np.ndarray:
    in_val = np.zeros(len(labels), dtype=bool)
    for label in range(labels.max(initial=-1) + 1):
        members = np.flatnonzero(labels == label)
        count = min(max(1, round(len(members) * fraction)), len(members) - 1)
        in_val[stream.permutation(members)[: max(count, 0)]] = True
    return in_val


def _by_rarest_label(labels: np.ndarray, fraction: float, stream: np.random.RandomState) -> np.ndarray:
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


def split_digest(examples: Named) -> str:
    """Return an identifier of a split, see `names_digest`."""
    return names_digest(examples.names)


def names_digest(names: Iterable[str]) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of sorted names."""
    text = "\n".join(sorted(names)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:16]


def has_unique_names(parts: Mapping[str, Named]) -> bool:
    """Return whether all names differ, as required for a split file."""
    names = [name for examples in parts.values() for name in examples.names]
    return len(set(names)) == len(names)


def save_split(path: Path, parts: Mapping[str, Named]) -> Path:
    """Write the names of the examples of all parts (train and val, or folds) to `path`.

    Raises:
        DataError: two examples have the same name, or `path` exists and is not a split file.
        StorageError: the file cannot be written.
    """
    twice = repeated(name for examples in parts.values() for name in examples.names)
    if twice is not None:
        raise DataError(f"two images have the name {twice!r}, so a split file would be ambiguous; rename one of them")
    if path.is_file():
        with open_regular(path) as file:
            if (start := file.read(9)) and start != ",".join(HEADER).encode():
                raise DataError(f"{path}: is not a split file, so it is not overwritten; choose another name")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows([csv_cell(name), part] for part, examples in parts.items() for name in examples.names)
    return write_atomically(path, text.getvalue().encode("utf-8", "surrogateescape"))


def read_split(
    path: Path,
    examples: Named,
    *,
    where: str,
    noun: str,
    remedy: str = _CHECK_WRITES_IT,
    parts: Sequence[str] = ("train", "val"),
) -> tuple[np.ndarray, list[str]]:
    """Return the part of each of `examples`, (N,), and a note if names are listed that no example has.

    `remedy` is the end of the error message for examples that the file does not list.

    Raises:
        DataError: the file is missing, not in the format of `save_split`, or does not list all examples, or has other parts.
    """
    listed, names = dict(_rows(path, parts)), examples.names
    cells = [cell if (cell := csv_cell(name)) in listed else name for name in names]
    unknown = [name for name, cell in zip(names, cells, strict=True) if cell not in listed]
    if unknown:
        raise DataError(
            f"{path}: does not list {len(unknown)} of {len(names)} {noun}s of {where} ({shortened(unknown, _SHOWN)}); if "
            f"they were added since, {remedy}"
        )
    gone = len(listed.keys() - set(cells))
    what, are = (noun, "is") if gone == 1 else (f"{noun}s", "are")
    notes = [f"{gone} {what} listed in the split file {are} not in the data."] if gone else []
    return np.array([listed[cell] for cell in cells], dtype=np.str_), notes


def _rows(path: Path, parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    try:
        text = read_data(path).decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    except OSError as error:
        raise DataError(
            f"task.data.split_file: {path} cannot be opened ({error.strerror}); write one with attngraft data check "
            f"--save-split {path}"
        ) from None
    wanted = "train or val" if "val" in parts else f"a fold from 0 to {len(parts) - 1}"
    rows = csv.reader(io.StringIO(text, newline=""))
    if next(rows, None) != HEADER:
        raise DataError(f"{path}: not a split file; its first line must be {','.join(HEADER)}")
    before: set[str] = set()
    for row in rows:
        if not row:
            continue
        if row[0] in before:
            raise DataError(f"{path}: line {rows.line_num}: {quoted(row[0])} is listed twice; remove a line")
        before.add(row[0])
        if len(row) != 2 or row[1] not in parts:
            raise DataError(f"{path}: line {rows.line_num}: expected a name and {wanted}, found {','.join(row)[:80]}")
        yield row[0], row[1]
