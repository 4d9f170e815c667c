"""What a source offers before the engine's demands are met: a training part, perhaps a validation part, and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attngraft.errors import ConfigError, DataError
from attngraft.suggest import did_you_mean
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.images import Images

DEFAULT_FRACTION = 0.2  #: of each class, drawn for validation where the data have no parts

TRAIN_NAMES = ("train", "training")
VAL_NAMES = ("val", "valid", "validation", "eval", "dev", "test", "testing")  #: in order of preference


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A source's images."""

    kind: str  #: digits, folder, tar, npz, timm
    where: str  #: what the user would look at: a path or a name
    classes: tuple[str, ...]
    train: Images
    val: Images | None  #: None: to be drawn from `train`
    origin: str  #: how the parts came about, for the report
    mirrored: bool = True  #: whether a mirror image is an image of the same class
    notes: tuple[str, ...] = ()


def find_name(there: Sequence[str], wanted: str | None, usual: Sequence[str], *, field: str, where: str) -> str | None:
    """The name among `there` that is `wanted`, or, where that is None, the first of the `usual` ones (in any case).

    Raises:
        DataError: `wanted` is not there.
    """
    if wanted is not None:
        if wanted in there:
            return wanted
        listed = ", ".join(sorted(there)[:12]) or "nothing"
        raise DataError(
            f"{where}: no part {wanted!r} (task.data.{field}){did_you_mean(wanted, there)}; there is: {listed}"
        )
    lowered = {name.lower(): name for name in sorted(there, reverse=True)}
    return next((lowered[name] for name in usual if name in lowered), None)


def missing_validation(where: str, train: str, there: Sequence[str]) -> DataError:
    """The error for data with a training part alone."""
    others = ", ".join(sorted(name for name in there if name != train)[:8]) or "nothing else"
    return DataError(
        f"{where}: there is a training part {train!r} but no validation part (found beside it: {others}); add one of "
        f"{', '.join(VAL_NAMES[:3])}, name it with task.data.val_split, or draw it with task.data.val_fraction=0.2"
    )


def restrict(parts: Parts, classes: tuple[str, ...] | None) -> Parts:
    """Only the images of `classes`, labelled in that order; None leaves everything.

    Raises:
        ConfigError: a class that is not there.
    """
    if classes is None:
        return parts
    for name in classes:
        if name not in parts.classes:
            near = did_you_mean(name, parts.classes)
            listed = ", ".join(parts.classes[:20]) + (", ..." if len(parts.classes) > 20 else "")
            raise ConfigError(f"task.data.classes: {parts.where} has no class {name!r}{near}; there are: {listed}")
    new_label = np.full(len(parts.classes), -1, dtype=np.int64)
    new_label[[parts.classes.index(name) for name in classes]] = np.arange(len(classes))

    def chosen(images: Images) -> Images:
        labels = new_label[images.labels]
        indices = np.flatnonzero(labels >= 0)
        return images.take(indices, labels[indices])

    return replace(parts, classes=classes, train=chosen(parts.train), val=parts.val and chosen(parts.val))


def with_validation(parts: Parts, config: DataConfig) -> tuple[Parts, Images]:
    """Parts whose validation part, drawn from the training part where the source has none, stands beside them.

    The draw takes the same share of every class, at least one image, and leaves at least one; it depends on the images'
    order, the share and `split_seed` alone.

    Raises:
        DataError: a class with a single image cannot be divided.
    """
    if parts.val is not None and config.val_fraction is None:
        return parts, parts.val
    fraction = DEFAULT_FRACTION if config.val_fraction is None else config.val_fraction
    labels = parts.train.labels
    drawn = np.zeros(len(labels), dtype=bool)
    stream = np.random.RandomState(config.split_seed)  # its streams never change between numpy versions
    for label, name in enumerate(parts.classes):
        members = np.flatnonzero(labels == label)
        if len(members) == 1:
            raise DataError(
                f"{parts.where}: class {name!r} has a single image, which cannot be divided into training and validation; "
                "add images or leave the class out with task.data.classes"
            )
        count = min(max(1, round(len(members) * fraction)), len(members) - 1)
        drawn[stream.permutation(members)[: max(count, 0)]] = True
    train, val = np.flatnonzero(~drawn), np.flatnonzero(drawn)
    origin = f"{fraction:g} of each class of {parts.origin} drawn for validation with split_seed {config.split_seed}"
    return replace(parts, train=parts.train.take(train, labels[train]), origin=origin), parts.train.take(
        val, labels[val]
    )
