"""Images with annotated objects, and the checks of annotations of all formats."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from attngraft.errors import DataError
from attngraft.suggest import quoted
from attngraft.tasks.detection.objects import Objects, RunLengths
from attngraft.tasks.detection.run_lengths import areas_of, boxes_of
from attngraft.tasks.images.stored import read_image

LISTED = 10  #: most mistakes that are listed
LARGEST = 2**14  #: largest number of objects of an image; the memory of training grows with it

_SMALLEST = (
    2.0  #: pixels; boxes in parts of the sides are smaller, also those of Pascal VOC, from which one is subtracted
)
_LOOSE = 2.0  #: pixels by which the sides of a box may differ from those of its mask
_ROUNDING = 1.0  #: pixels by which a box may lie outside of its image without a note
_FLAT = (
    1000  #: a box of no area is left out, with a note, if there are this many objects for each (COCO itself has two)
)


class Annotation(Protocol):
    """The objects of an image, with or without reading a file; `image` is the path of the image."""

    def size(self, image: Path) -> tuple[int, int]: ...

    def objects(self, image: Path) -> Objects: ...

    def stamp(self) -> bytes: ...


@dataclass(frozen=True, eq=False)
class ReadAnnotation:
    """Objects in memory, and the size (width, height) of their image."""

    pixels: tuple[int, int]
    found: Objects

    def size(self, image: Path) -> tuple[int, int]:
        return self.pixels

    def objects(self, image: Path) -> Objects:
        return self.found

    def stamp(self) -> bytes:
        arrays = (self.found.boxes, self.found.labels, self.found.crowd, self.found.areas)
        return b"".join([*(each.tobytes() for each in arrays), *(each["counts"] for each in self.found.masks or ())])


@dataclass(frozen=True, kw_only=True)
class AnnotatedImages:
    """Images and their annotations, opened on access."""

    names: tuple[str, ...]
    images: tuple[Path, ...]
    annotations: tuple[Annotation, ...]

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: np.ndarray) -> AnnotatedImages:
        """Return some of the images."""
        return AnnotatedImages(
            names=tuple(self.names[i] for i in indices),
            images=tuple(self.images[i] for i in indices),
            annotations=tuple(self.annotations[i] for i in indices),
        )

    def joined(self, other: AnnotatedImages) -> AnnotatedImages:
        """Return the images of both."""
        return AnnotatedImages(
            names=self.names + other.names,
            images=self.images + other.images,
            annotations=self.annotations + other.annotations,
        )

    def image(self, index: int) -> Image.Image:
        """Return an image in mode RGB.

        Raises:
            DataError: it cannot be read.
        """
        return read_image(self.images[index])

    def objects(self, index: int) -> Objects:
        """Return the objects of an image.

        Raises:
            DataError: its masks cannot be read, or have another size.
        """
        return self.annotations[index].objects(self.images[index])

    def size(self, index: int) -> tuple[int, int]:
        """Return the width and height of an image, according to its annotation if that has them.

        Raises:
            DataError: the image cannot be read.
        """
        return self.annotations[index].size(self.images[index])

    def fingerprint(self) -> bytes:
        """Return a digest of the annotations."""
        found = hashlib.sha256()
        for each in self.annotations:
            found.update(hashlib.sha256(each.stamp()).digest())
        return found.digest()


@dataclass(frozen=True, kw_only=True)
class ReadObjects:
    """What a format's reader returns."""

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]  #: the data's own numbers of the classes
    parts: dict[str, AnnotatedImages]  #: by split
    masks: bool  #: whether all objects have masks
    notes: tuple[str, ...] = ()


class Listed:
    """The first of some texts, and their number; all of them may take gigabytes."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.count, self.shown = 0, list[str]()
        for each in texts:
            self.append(each)

    def __len__(self) -> int:
        return self.count

    def __str__(self) -> str:
        more = f" and {self.count - LISTED} more" if self.count > LISTED else ""
        return f"{', '.join(self.shown)}{more}"

    def append(self, text: str) -> None:
        self.count += 1
        if self.count <= LISTED:
            self.shown.append(text)

    def extend(self, other: Listed) -> None:
        self.shown = (self.shown + other.shown)[:LISTED]
        self.count += other.count

    def check(self) -> None:
        """Raise a DataError with a line for each of up to 10 texts, if there are any."""
        if self.shown:
            more = [f"and {self.count - LISTED} more mistakes"] if self.count > LISTED else []
            raise DataError("\n".join([*self.shown, *more]))


@dataclass(eq=False)
class Checks:
    """What is found while annotations are read: mistakes, which are raised together, and counts for notes."""

    mistakes: Listed = field(default_factory=Listed)
    flat: Listed = field(default_factory=Listed)
    objects: int = 0
    unmasked: int = 0
    clipped: int = 0
    tiny: Listed = field(default_factory=Listed)  #: where boxes are smaller than 2 pixels
    apart: Listed = field(default_factory=Listed)  #: where boxes do not fit their masks

    def close(self, parts: dict[str, AnnotatedImages]) -> tuple[dict[str, AnnotatedImages], bool, tuple[str, ...]]:
        """Return the parts, whether they have masks, and notes; masks are left out if an object lacks one.

        Raises:
            DataError: there are mistakes; up to 10 are listed.
        """
        notes = []
        if len(self.flat) * _FLAT <= self.objects and self.flat:
            notes.append(f"Boxes or masks of no area that are left out: {len(self.flat)} ({self.flat}).")
        elif len(self.flat) * 2 > self.objects:
            self.mistakes.append(
                f"{self.flat.shown[0]}; the same for {len(self.flat) - 1} more of {self.objects} objects: give coordinates "
                "in pixels, not in parts of the image's sides"
            )
        else:
            self.mistakes.extend(self.flat)
        if len(self.tiny) * 2 > self.objects:
            self.mistakes.append(
                f"{self.tiny.shown[0]}: this and {len(self.tiny) - 1} more of {self.objects} boxes are smaller than 2 "
                "pixels; give coordinates in pixels, not in parts of the image's sides"
            )
        elif len(self.apart) * 2 > self.objects:
            self.mistakes.append(
                f"{self.apart.shown[0]}: this and {len(self.apart) - 1} more of {self.objects} boxes do not fit their "
                "masks; give left, top, width and height in pixels"
            )
        elif self.apart:
            notes.append(f"Boxes that do not fit their masks: {len(self.apart)} ({self.apart}).")
        self.mistakes.check()
        if self.tiny:
            notes.append(f"Boxes smaller than 2 pixels: {len(self.tiny)} ({self.tiny}).")
        masked = self.unmasked < self.objects
        if masked and self.unmasked:
            notes.append(f"{self.unmasked} of {self.objects} objects have no mask, so that only boxes are used.")
        if self.clipped:
            notes.append(f"Boxes that are partly outside of their image, and clipped: {self.clipped}.")
        if self.unmasked or not masked:
            parts = {name: _without_masks(part) for name, part in parts.items()}
        return parts, masked and not self.unmasked, tuple(notes)


def _without_masks(part: AnnotatedImages) -> AnnotatedImages:
    read = [each for each in part.annotations if isinstance(each, ReadAnnotation)]
    return replace(
        part, annotations=tuple(ReadAnnotation(each.pixels, replace(each.found, masks=None)) for each in read)
    )


class ObjectList:
    """The objects of an image while they are read.

    Args:
        size: width and height of the image.
        checks: where mistakes are noted.
        where: the image, for messages.
    """

    def __init__(self, size: tuple[int, int], checks: Checks, *, where: object) -> None:
        self.size, self.where, self._checks = size, where, checks
        self._boxes: list[Sequence[float]] = []
        self._labels: list[int] = []
        self._crowd: list[bool] = []
        self._areas: list[float | None] = []
        self._masks: list[RunLengths | None] = []

    def add(
        self,
        box: Sequence[float],
        label: int,
        *,
        where: str,
        mask: RunLengths | None = None,
        crowd: bool = False,
        area: float | None = None,
    ) -> None:
        """Add an object, with its box clipped to the image.

        Args:
            box: left, top, right, bottom in pixels; empty: that of the mask.
            where: file and entry, for messages.

        Raises:
            ValueError: the box is outside of the image.
        """
        self._checks.objects += 1
        if mask is not None and not areas_of([mask])[0]:
            self._checks.flat.append(f"{where}: the mask has no pixel; correct or remove it")
            return
        if not len(box) and mask is not None:
            box = boxes_of([mask])[0].tolist()
        width, height = self.size
        left, top, right, bottom = box
        inside = max(0.0, left), max(0.0, top), min(float(width), right), min(float(height), bottom)
        if min(right - left, bottom - top) <= 0:
            shown = f"[{left:g}, {top:g}, {right:g}, {bottom:g}]"
            self._checks.flat.append(
                f"{where}: the box {shown} (left, top, right, bottom) has no area; correct or remove it"
            )
            return
        if min(inside[2] - inside[0], inside[3] - inside[1]) <= 0:
            shown = f"[{left:g}, {top:g}, {right:g}, {bottom:g}]"
            raise ValueError(f"the box {shown} (left, top, right, bottom) is outside of the {width} x {height} image")
        self._checks.clipped += max(-left, -top, right - width, bottom - height) > _ROUNDING
        if max(right - left, bottom - top) < _SMALLEST:
            self._checks.tiny.append(where)
        if mask is not None and not _fits(box, boxes_of([mask])[0]):
            self._checks.apart.append(where)
        self._checks.unmasked += mask is None
        self._boxes.append(inside)
        self._labels.append(label)
        self._crowd.append(crowd)
        self._areas.append(area)
        self._masks.append(mask)

    def close(self) -> ReadAnnotation:
        """Return the annotation of the image; areas that were not given are those of masks or boxes."""
        if len(self._boxes) > LARGEST:
            self._checks.mistakes.append(
                f"{self.where}: {len(self._boxes):,} objects, more than {LARGEST:,}; cut the image into tiles"
            )
        boxes = np.array(self._boxes, dtype=np.float64).reshape(-1, 4)
        known = [mask for mask in self._masks if mask is not None]
        masks = known if len(known) == len(self._masks) else None
        if all(area is not None for area in self._areas):
            areas = np.array(self._areas, dtype=np.float64)
        else:
            own = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) if masks is None else areas_of(masks)
            areas = np.array([other if area is None else area for area, other in zip(self._areas, own, strict=True)])
        return ReadAnnotation(
            self.size,
            Objects(
                boxes=boxes,
                labels=np.array(self._labels, dtype=np.int64),
                crowd=np.array(self._crowd, dtype=bool),
                areas=areas,
                masks=masks,
            ),
        )


def _fits(box: Sequence[float], other: np.ndarray) -> bool:
    """Return whether two boxes are the same but for roundings: within 2 pixels, or with an IoU of half or more."""
    one = np.asarray(box)
    if np.abs(one - other).max() <= _LOOSE:
        return True
    common = np.prod(np.clip(np.minimum(one, other)[2:] - np.maximum(one, other)[:2], 0, None))
    return bool(2 * common >= np.prod(one[2:] - one[:2]) + np.prod(other[2:] - other[:2]) - common)


def number(value: Any) -> float:
    """Return a finite number of JSON.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise ValueError(f"{quoted(value)} is not a finite number")
    return float(value)
