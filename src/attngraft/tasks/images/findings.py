"""What a scan found wrong: images that cannot be read, and images that are there twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attngraft.tasks.images.scan import Scan
from attngraft.tasks.images.sources import Images

CORRUPT_LIMIT = 100  #: images that a share of `max_corrupt` leaves out at most
_HOW = {"full": "pixel by pixel", "fast": "byte by byte", "off": ""}  #: how images were compared
_EXAMPLES = 20  #: groups of twins that the facts name


@dataclass(frozen=True)
class Twin:
    """One of several identical images."""

    part: str  #: train or val
    name: str
    label: str  #: class; the classes of a multi-label image by `, `


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Images that cannot be read (part, name, why), and groups of identical images: of both parts (leaks), all within one
    part (repeated), of differing classes (conflicting; such a group is one of the others too)."""

    depth: str
    unreadable: list[tuple[str, str, str]]
    leaks: list[list[Twin]]
    repeated: list[list[Twin]]
    conflicting: list[list[Twin]]

    @property
    def leaked(self) -> int:
        """Validation images that are among the training images too."""
        return sum(twin.part == "val" for group in self.leaks for twin in group)

    def notes(self) -> list[str]:
        """A sentence for each thing that a reader of results should know."""
        found = []
        if self.unreadable:
            names = [name for _, name, _ in self.unreadable]
            found.append(f"{_count(len(names), 'image')} could not be read and left out: {_listed(names)}.")
        if self.leaks:
            pairs = [_pair(group) for group in self.leaks]
            verb = "is" if self.leaked == 1 else "are"
            found.append(
                f"Leak: {_count(self.leaked, 'validation image')} {verb} identical to training images, {_HOW[self.depth]} "
                f"({_listed(pairs)}); the accuracy is that much of memory."
            )
        if self.conflicting:
            pairs = [_pair(group) for group in self.conflicting]
            found.append(
                f"{_count(len(self.conflicting), 'image')} stand under more than one class ({_listed(pairs)})."
                if len(self.conflicting) > 1
                else f"1 image stands under more than one class ({_listed(pairs)})."
            )
        if self.repeated:
            extra = sum(len(group) - 1 for group in self.repeated)
            pairs = [_pair(group) for group in self.repeated]
            found.append(
                f"{_count(extra, 'image')} within a part repeat{'s' if extra == 1 else ''} another one ({_listed(pairs)})."
            )
        return found

    def facts(self) -> dict[str, Any]:
        """JSON-ready, for the run folder."""

        def named(groups: list[list[Twin]]) -> dict[str, Any]:
            shown = [[f"{twin.name} ({twin.label})" for twin in group] for group in groups[:_EXAMPLES]]
            return {"groups": len(groups), "examples": shown} if groups else {"groups": 0}

        return {
            "depth": self.depth,
            "unreadable": [f"{name} ({reason})" for _, name, reason in self.unreadable],
            "leaks": named(self.leaks),
            "repeated": named(self.repeated),
            "conflicting": named(self.conflicting),
        }


def findings(train: Images, val: Images | None, seen: Scan, *, classes: Sequence[str]) -> Findings:
    """What `seen`, a scan of the images of `train` and then of `val`, says."""
    parts: list[tuple[str, Images]] = [("train", train)] + ([("val", val)] if val is not None else [])

    def place(position: int) -> tuple[str, Images, int]:
        name, images = parts[0] if position < len(train) else parts[1]
        return name, images, position if position < len(train) else position - len(train)

    def twin(position: int) -> Twin:
        part, images, index = place(position)
        return Twin(part, images.names[index], _label(images.labels[index], classes))

    groups = [[twin(position) for position in group] for group in _groups(seen)]
    unreadable = []
    for position, reason in seen.problems.items():
        part, images, index = place(position)
        unreadable.append((part, images.names[index], reason))
    return Findings(
        depth=seen.depth,
        unreadable=unreadable,
        leaks=[group for group in groups if len({twin.part for twin in group}) > 1],
        repeated=[group for group in groups if len({twin.part for twin in group}) == 1],
        conflicting=[group for group in groups if len({twin.label for twin in group}) > 1],
    )


def corrupt_limit(max_corrupt: float, images: int) -> int:
    """How many of so many images may be left out."""
    return min(CORRUPT_LIMIT, int(max_corrupt * images)) if max_corrupt < 1 else int(max_corrupt)


def _groups(seen: Scan) -> list[list[int]]:
    """Positions of identical images, in order of the first."""
    if seen.depth == "off" or not len(seen):
        return []
    readable = np.array([place for place in range(len(seen)) if place not in seen.problems], dtype=np.int64)
    if not len(readable):
        return []
    _, inverse, counts = np.unique(seen.digests[readable], axis=0, return_inverse=True, return_counts=True)
    inverse = inverse.reshape(-1)
    found: dict[int, list[int]] = {}
    for position in np.flatnonzero(counts[inverse] > 1):
        found.setdefault(int(inverse[position]), []).append(int(readable[position]))
    return sorted(found.values())


def _label(label: Any, classes: Sequence[str]) -> str:
    if np.ndim(label) == 0:
        return classes[int(label)]
    return ", ".join(classes[int(i)] for i in np.flatnonzero(label)) or "no class"


def _pair(group: list[Twin]) -> str:
    return " = ".join(twin.name for twin in group[:3]) + (" = ..." if len(group) > 3 else "")


def _listed(names: Sequence[str], *, most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
