"""Point clouds of a source, divided into training, validation and test."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import ConfigError, DataError
from attngraft.suggest import shortened
from attngraft.tasks.images.checks import LEAK_LIMIT
from attngraft.tasks.images.sources.base import alike_classes
from attngraft.tasks.images.sources.splitting import POOLED, divide, split_digest
from attngraft.tasks.points.clouds import are_normals
from attngraft.tasks.points.config import PointPartsConfig, PointsConfig
from attngraft.tasks.points.formats import SAMPLES
from attngraft.tasks.points.packed import PackedClouds, pack
from attngraft.tasks.points.source import load_clouds
from attngraft.tasks.points.split import Sampling
from attngraft.tasks.task import SPLIT_FILE

_COMPARED = 256  #: first points of clouds that are compared to find copies
_LISTED = 5  #: most classes listed in a note
_PICKED_ON_TEST = (
    "The best epoch is picked on the test part, as in the authors' code (task.data.validation=test): its results are too "
    "good to compare with others that were picked on a validation part."
)


@dataclass(frozen=True, kw_only=True)
class OpenedClouds:
    """Point clouds, divided."""

    where: str
    classes: tuple[str, ...]
    parts: Mapping[int, tuple[int, ...]] | None  #: numbers of the parts of each category
    train: PackedClouds
    val: PackedClouds
    test: PackedClouds | None
    origin: str  #: description of the split, for the report
    drawn: Mapping[str, PackedClouds] = field(default_factory=dict)  #: parts of a random split
    notes: tuple[str, ...] = ()
    refusal: str = ""

    def splits(self) -> dict[str, PackedClouds]:
        """Return the clouds of each split."""
        return {"train": self.train, "val": self.val} | ({} if self.test is None else {"test": self.test})

    def facts(self) -> dict[str, Any]:
        """Return what both tasks store of the data."""
        sizes = np.concatenate([clouds.sizes for clouds in self.splits().values()])
        facts: dict[str, Any] = {
            "kind": "point clouds",
            "where": self.where,
            "split": self.origin,
            "classes": list(self.classes),
            "sizes": {name: len(clouds) for name, clouds in self.splits().items()},
            "counts": {
                name: dict(
                    zip(
                        self.classes,
                        np.bincount(clouds.categories, minlength=len(self.classes)).tolist(),
                        strict=True,
                    )
                )
                for name, clouds in self.splits().items()
            },
            "points": {"smallest": int(sizes.min()), "largest": int(sizes.max())},
            "notes": list(self.notes),
            "split_digest": split_digest(self.val),
            "check": {"train_digest": split_digest(self.train)},
            **({} if self.test is None else {"test_digest": split_digest(self.test)}),
        }
        return facts | ({"split_file": SPLIT_FILE} if self.drawn else {})


def open_clouds(config: PointsConfig | PointPartsConfig, *, saved_split: Path | None = None) -> OpenedClouds:
    """Read all clouds and divide them; `saved_split` replaces the random split.

    Raises:
        DataError: the data cannot be used; the message names the file and the remedy.
        ConfigError: `task.data` does not fit the data.
    """
    data = config.data
    needs_parts = isinstance(config, PointPartsConfig)
    least = 2 if config.sample == "repeated" else config.points
    source = load_clouds(Path(data.source), least=least, samples=max(SAMPLES, config.points))
    if needs_parts and source.parts is None:
        raise DataError(
            f"{source.where}: the points have no parts; add them (a last column in text files, parts_train in an .npz), "
            "or use --task points for classes of whole clouds"
        )
    if data.normals and not source.has_normals:
        raise ConfigError(
            f"task.data.normals: the clouds of {source.where} have none; use --set task.data.normals=false"
        )
    splits, notes = pack(source), list[str]()
    if source.has_normals and data.normals is None and not are_normals(splits["train"].values[:, 3:6]):
        splits = {name: replace(clouds, has_normals=False) for name, clouds in splits.items()}
        notes.append(
            "The three values after the coordinates are not used: they are no normals, because their length is not 1 "
            "(task.data.normals=true uses them)."
        )
    train, val, test = splits["train"], splits.get("val"), splits.get("test")
    origin, drawn = "the parts of the data", dict[str, PackedClouds]()
    division = data.as_division()
    if data.validation == "test":
        if test is None:
            raise ConfigError(
                f"task.data.validation: {source.where} has no test part; use --set task.data.validation=part"
            )
        train, val, test = train if val is None else train.joined(val), test, None
        notes.append(_PICKED_ON_TEST)
    elif val is None or division.splits_train or division.folds is not None:
        if division.folds is not None and val is not None:
            train = train.joined(val)
            notes.append(POOLED.format(noun="cloud"))
        found = divide(
            train,
            train.categories,
            division,
            where=source.where,
            origin="the clouds" if test is None else "the training part",
            classes=source.classes,
            saved_split=saved_split,
            noun="cloud",
        )
        if division.split_file is None:
            drawn = {name: train.take(indices) for name, indices in found.indices().items()}
        origin = found.origin
        notes += found.notes
        train, val = train.take(np.flatnonzero(~found.in_val)), train.take(np.flatnonzero(found.in_val))
        if division.folds is not None and test is not None:
            test = None
            notes.append("The test part is not used: folds divide training and validation clouds only.")
    for name, clouds in {"training": train, "validation": val}.items():
        if not len(clouds):
            raise DataError(f"{source.where}: no clouds for {name} ({origin}); add some, or change the split")
    if needs_parts and all(len(parts) < 2 for parts in (source.parts or {}).values()):
        raise DataError(f"{source.where}: every category has a single part; give parts, or use --task points")
    notes += [*alike_classes(source.classes), *_absent(train, source.classes), *_padded(train)]
    return OpenedClouds(
        where=source.where,
        classes=source.classes,
        parts=source.parts if needs_parts else None,
        train=train,
        val=val,
        test=test,
        origin=origin,
        drawn=drawn,
        notes=tuple(notes),
        refusal="" if data.check == "off" else _copies(source.where, train, {"validation": val, "test": test}),
    )


def sampling_of(config: PointsConfig | PointPartsConfig, *, has_normals: bool, known: bool | None) -> Sampling:
    """Return what of a cloud models get; `known` is whether a trained model gets normals."""
    given = config.data.normals if known is None else known
    normals = has_normals if given is None else given
    if normals and not has_normals:
        raise DataError(f"{config.data.source}: the model was trained with normals, which these clouds lack; add them")
    return Sampling(points=config.points, sample=config.sample, normals=normals, normalize=config.data.normalize)


def _absent(train: PackedClouds, classes: Sequence[str]) -> list[str]:
    """Return a note on classes without training clouds."""
    counts = np.bincount(train.categories, minlength=len(classes))
    names = [name for name, count in zip(classes, counts, strict=True) if not count]
    if not names:
        return []
    return [
        f"No training clouds of class {shortened(names, _LISTED)}; add some, or number the classes from 0 without gaps."
    ]


def _padded(clouds: PackedClouds) -> list[str]:
    """Return a note on clouds in which more than half of the points equal the last one."""
    found = [
        name
        for name, (first, end) in zip(clouds.names, clouds.ranges.tolist(), strict=True)
        if np.mean((clouds.values[first:end, :3] == clouds.values[end - 1, :3]).all(axis=1)) > 0.5
    ]
    if not found:
        return []
    return [
        f"{len(found)} training clouds repeat one point in more than half of their rows, such as {found[0]}; remove padding."
    ]


def _copies(where: str, train: PackedClouds, others: Mapping[str, PackedClouds | None]) -> str:
    """Return why no run should start on these data: clouds for evaluation are also in another part."""
    known = set(_digests(train))
    for name, clouds in others.items():
        found = [] if clouds is None else _digests(clouds)
        copies = sum(each in known for each in found)
        if copies > max(LEAK_LIMIT * len(found), 1):
            return (
                f"{where}: {copies} of {len(found)} {name} clouds are copies of clouds of other parts, so results would be "
                "too good; remove them; to train anyway, use --set task.data.check=off"
            )
        known |= set(found)
    return ""


def _digests(clouds: PackedClouds) -> list[bytes]:
    starts = ((first, min(end, first + _COMPARED)) for first, end in clouds.ranges.tolist())
    return [hashlib.blake2b(clouds.values[first:end, :3].tobytes(), digest_size=16).digest() for first, end in starts]
