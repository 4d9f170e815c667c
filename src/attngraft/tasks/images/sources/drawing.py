"""A validation part drawn from the training part, class by class, as a function of the images' order and a seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.images import Images
from attngraft.tasks.images.sources.parts import Parts
from attngraft.tasks.images.sources.split_file import drawn_by_file

_ADDED = "take them out of the data, add rows for them to this file, or begin anew in another folder"
DEFAULT_FRACTION = 0.2  #: of each class, drawn for validation where the data have no parts


def with_validation(parts: Parts, config: DataConfig, *, kept: Path | None = None) -> tuple[Parts, Images]:
    """Parts whose validation part, drawn from the training part where the source has none, stands beside them.

    The draw takes the same share of every class, at least one image, and leaves at least one; it depends on the images'
    order, the share and `split_seed` alone. Images with several labels are drawn by iterative stratification.

    With `split_file` nothing is drawn: the file says which images of the training part are for validation. `kept` is such
    a file, too: what was drawn before, which stands in place of a draw where there would be one.

    Raises:
        DataError: a class with a single image cannot be divided; see `split_file.drawn_by_file`.
    """
    if config.split_file is not None:
        path = Path(config.split_file).expanduser()
        drawn, note = drawn_by_file(path, parts)
        notes = (*parts.notes, note) if note else parts.notes
        return _divided(replace(parts, notes=notes), drawn, f"{parts.origin}, divided by {path.name}")
    if parts.val is not None and not config.draws:
        return parts, parts.val
    fraction = DEFAULT_FRACTION if config.val_fraction is None else config.val_fraction
    if kept is None:
        stream = np.random.RandomState(config.split_seed)  # its streams never change between numpy versions
        drawn = (_by_rarest_label if parts.multilabel else _by_class)(parts.train.labels, fraction, stream, parts)
    else:
        drawn, note = drawn_by_file(kept, parts, remedy=_ADDED)
        parts = replace(parts, notes=(*parts.notes, note) if note else parts.notes)
    origin = f"{fraction:g} of each class of {parts.origin} drawn for validation with split_seed {config.split_seed}"
    return _divided(parts, drawn, origin)


def _divided(parts: Parts, drawn: np.ndarray, origin: str) -> tuple[Parts, Images]:
    labels = parts.train.labels
    train, val = np.flatnonzero(~drawn), np.flatnonzero(drawn)
    rest = replace(parts, train=parts.train.take(train, labels[train]), origin=origin)
    return rest, parts.train.take(val, labels[val])


def _by_class(labels: np.ndarray, fraction: float, stream: np.random.RandomState, parts: Parts) -> np.ndarray:
    drawn = np.zeros(len(labels), dtype=bool)
    alone = np.flatnonzero(np.bincount(labels, minlength=len(parts.classes)) == 1)
    if len(alone):
        named = ", ".join(repr(parts.classes[int(label)]) for label in alone[:5]) + (", ..." if len(alone) > 5 else "")
        what = f"class {named} has" if len(alone) == 1 else f"{len(alone)} classes ({named}) have"
        raise DataError(
            f"{parts.where}: {what} a single image, which cannot be divided into training and validation; add images, or "
            "say which classes to use with task.data.classes"
        )
    for label in range(len(parts.classes)):
        members = np.flatnonzero(labels == label)
        count = min(max(1, round(len(members) * fraction)), len(members) - 1)
        drawn[stream.permutation(members)[: max(count, 0)]] = True
    return drawn


def _by_rarest_label(labels: np.ndarray, fraction: float, stream: np.random.RandomState, _: Parts) -> np.ndarray:
    """Iterative stratification (Sechidis et al. 2011) into two parts: the label with the fewest images left is served
    first, each of its images goes where more images of that label are still wanted; images without a label come last.

    Two things that the paper leaves to chance are made sure of: every label has an image in training (its only one, too),
    and, where it has a second one that can be spared, one in validation.
    """
    order = stream.permutation(len(labels))
    counts = labels.sum(axis=0, dtype=np.int64)
    wanted = np.where(counts > 1, np.clip(np.rint(counts * fraction), 1, np.maximum(counts - 1, 1)), 0)
    room = np.stack([counts - wanted, wanted]).astype(np.float64)  #: still to be placed: train, val; by label
    space = np.array([len(labels) * (1 - fraction), len(labels) * fraction])
    side = np.full(len(labels), -1)
    left, kept = counts.copy(), counts.copy()  #: of each label: not placed yet; not in validation
    while (left > 0).any():
        label = int(np.argmin(np.where(left > 0, left, np.iinfo(np.int64).max)))
        for image in order[(labels[order, label] > 0) & (side[order] < 0)]:
            share = room[:, label]
            place = int(share[1] > share[0] or (share[1] == share[0] and space[1] > space[0]))
            place = place if _spared(labels[image], kept) else 0
            side[image] = place
            room[place] -= labels[image]
            space[place] -= 1
            left -= labels[image]
            kept -= labels[image] * place
    _fill_empty(labels, side, order, kept)
    bare = order[side[order] < 0]
    side[bare] = 0
    side[bare[: round(len(bare) * fraction)]] = 1
    return side == 1


def _spared(image: np.ndarray, kept: np.ndarray) -> bool:
    """Whether every label of an image that leaves training keeps another one there."""
    return bool((kept[image > 0] > 1).all())


def _fill_empty(labels: np.ndarray, side: np.ndarray, order: np.ndarray, kept: np.ndarray) -> None:
    """Move an image of every label that validation lacks there: the one with the fewest labels that can be spared."""
    counts = labels.sum(axis=0, dtype=np.int64)
    for label in range(len(counts)):
        there = order[labels[order, label] > 0] if kept[label] == counts[label] else order[:0]
        spared = [image for image in there if _spared(labels[image], kept)]
        if spared:
            moved = min(spared, key=lambda image: int(labels[image].sum()))
            side[moved] = 1
            kept -= labels[moved]
