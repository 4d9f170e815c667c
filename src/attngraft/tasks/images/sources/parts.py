"""What a source offers before the engine's demands are met: a training part, perhaps a validation part, and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attngraft.errors import ConfigError, DataError
from attngraft.suggest import did_you_mean
from attngraft.tasks.images.sources.images import Images

TRAIN_NAMES = ("train", "training")
VAL_NAMES = ("val", "valid", "validation", "eval", "dev", "test", "testing")  #: in order of preference


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A source's images."""

    kind: str  #: digits, folder, tar, webdataset, npz, table, huggingface, timm
    where: str  #: what the user would look at: a path or a name
    classes: tuple[str, ...]
    train: Images
    val: Images | None  #: None: to be drawn from `train`
    origin: str  #: how the parts came about, for the report
    mirrored: bool = True  #: whether a mirror image is an image of the same class
    multilabel: bool = False  #: labels are (N, K) uint8, see `Images`
    notes: tuple[str, ...] = ()  #: what a reader of the report should know of how the data were read


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

    Where images may have several labels, all images stay (one without any of `classes` is an example of none), and the
    other labels are forgotten.

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
    columns = [parts.classes.index(name) for name in classes]
    new_label = np.full(len(parts.classes), -1, dtype=np.int64)
    new_label[columns] = np.arange(len(classes))

    def chosen(images: Images) -> Images:
        if parts.multilabel:
            return images.take(np.arange(len(images)), images.labels[:, columns])
        labels = new_label[images.labels]
        indices = np.flatnonzero(labels >= 0)
        return images.take(indices, labels[indices])

    return replace(parts, classes=classes, train=chosen(parts.train), val=parts.val and chosen(parts.val))
