"""Folds of cross-validation: a partition of all examples, stratified, with groups kept whole."""

from collections.abc import Iterable, Sequence

import numpy as np

from attngraft.errors import DataError
from attngraft.suggest import shortened

_SHOWN = 5  #: largest number of classes listed in a message


def draw_folds(
    labels: np.ndarray,
    folds: int,
    *,
    seed: int,
    classes: Sequence[str],
    where: str,
    groups: Sequence[str] | None = None,
    noun: str = "image",
) -> np.ndarray:
    """Return the fold of each example, (N,), from 0 to `folds` - 1, drawn at random with `seed`.

    Classes are spread evenly over the folds; labels that are numbers (float) are not stratified. With several labels per
    example, or with `groups`, examples are assigned by iterative stratification (Sechidis et al. 2011): the group of each
    example, or None if every example is its own, stays in one fold.

    Raises:
        DataError: there are fewer examples, groups, or examples of a class than folds, or all examples of a class are in one
            fold, so that there are none to train on.
    """
    from sklearn.model_selection import KFold, StratifiedKFold  # local import: it takes a second

    total = f"{noun}s" if groups is None else "groups"
    units = len(labels) if groups is None else len(set(groups))
    if units < folds:
        raise DataError(f"{where}: {folds} folds need at least {folds} {total}, and there are {units}; use fewer folds")
    if labels.dtype.kind == "f" and groups is None:
        return _numbered(KFold(folds, shuffle=True, random_state=seed).split(labels), len(labels))
    if labels.ndim == 1 and labels.dtype.kind != "f":
        counts = np.bincount(labels, minlength=len(classes))
        rare = [f"{classes[i]!r} ({counts[i]})" for i in np.flatnonzero((counts > 0) & (counts < folds)).tolist()]
        if rare:
            few = int(counts[counts > 0].min())
            use = f"use at most {few} folds" if few > 1 else f"add {noun}s"
            raise DataError(
                f"{where}: {folds} folds need at least {folds} {noun}s of each class, which {shortened(rare, _SHOWN)} "
                f"{'does' if len(rare) == 1 else 'do'} not have; {use}"
            )
        if groups is None:
            split = StratifiedKFold(folds, shuffle=True, random_state=seed).split(np.zeros(len(labels)), labels)
            return _numbered(split, len(labels))
    fold_of = _stratified(labels, folds, classes=len(classes), groups=groups, seed=seed)
    inside = _label_counts(labels, fold_of, folds, classes=len(classes))[:, :-1]
    outside = inside.sum(axis=0) - inside.max(axis=0)
    alone = [repr(classes[i]) for i in np.flatnonzero((outside == 0) & (inside.sum(axis=0) > 0)).tolist()]
    if alone:
        share = f"has a single {noun}" if groups is None else f"has {noun}s of a single group"
        which = (
            f"class {alone[0]} {share}"
            if len(alone) == 1
            else f"each of the classes {shortened(alone, _SHOWN)} {share}"
        )
        raise DataError(
            f"{where}: {which}, so one fold has nothing to train it on; add {noun}s, or choose the classes to use with "
            "--set 'task.data.classes=[a,b]'"
        )
    return fold_of


def _numbered(splits: Iterable[tuple[np.ndarray, np.ndarray]], examples: int) -> np.ndarray:
    fold_of = np.empty(examples, dtype=np.int64)
    for fold, (_, held_out) in enumerate(splits):
        fold_of[held_out] = fold
    return fold_of


def _label_counts(labels: np.ndarray, part_of: np.ndarray, parts: int, *, classes: int) -> np.ndarray:
    """Return the numbers of examples of each label, and of all, in each part, (parts, classes + 1); floats are no labels."""
    numbers = labels.dtype.kind == "f"
    counts = np.zeros((parts, (0 if numbers else classes) + 1), dtype=np.int32)
    counts[:, -1] = np.bincount(part_of, minlength=parts)
    if labels.ndim == 2 and not numbers:
        np.add.at(counts[:, :-1], part_of, labels)
    elif not numbers:
        np.add.at(counts, (part_of, labels), 1)
    return counts


def _stratified(labels: np.ndarray, folds: int, *, classes: int, groups: Sequence[str] | None, seed: int) -> np.ndarray:
    """Return the fold of each example by iterative stratification of groups.

    In each step, the groups with the rarest label left are assigned, the largest first, each to the fold that lacks most
    examples of this label. An empty fold lacks most of every label, so no fold stays empty if there are enough groups.
    """
    stream = np.random.RandomState(seed)  # its streams are the same in all NumPy versions
    group_of = (
        np.arange(len(labels))
        if groups is None
        else np.unique(np.asarray(groups, dtype=np.str_), return_inverse=True)[1]
    )
    units = int(group_of.max()) + 1
    counts = _label_counts(labels, group_of, units, classes=classes)
    order = stream.permutation(units)
    order = order[np.argsort(-counts[order, -1], kind="stable")]
    lacking = np.tile(counts.sum(axis=0) / folds, (folds, 1))
    fold_of = np.full(units, -1)
    left = counts.sum(axis=0)
    while (left > 0).any():
        rarest = int(np.argmin(np.where(left > 0, left, np.iinfo(np.int64).max)))
        for unit in order[(counts[order, rarest] > 0) & (fold_of[order] < 0)]:
            best = np.flatnonzero(np.isclose(lacking[:, rarest], lacking[:, rarest].max()))
            best = best[np.isclose(lacking[best, -1], lacking[best, -1].max())]
            fold = int(stream.choice(best))
            fold_of[unit] = fold
            lacking[fold] -= counts[unit]
            left -= counts[unit]
    return np.asarray(fold_of[group_of])
