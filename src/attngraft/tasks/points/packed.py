"""Clouds in one array: read and checked once, and mapped into memory by all processes.

Clouds of files are kept in the user's cache folder until the files change.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attngraft.cache import cache_folder, keep_arrays, load_arrays
from attngraft.counting import counted
from attngraft.errors import DataError, StorageError
from attngraft.files import atomic_file
from attngraft.tasks.images.sources.base import file_stamp
from attngraft.tasks.points.clouds import Cloud
from attngraft.tasks.points.source import Clouds, CloudSource

_LISTED = 10  #: most clouds with mistakes that are listed

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PackedClouds:
    """Clouds of a split in one array, a row per point."""

    names: tuple[str, ...]
    categories: np.ndarray  #: (N,) int64
    values: np.ndarray  #: (points of all clouds, channels) float32: x, y, z, then the normal and the part if there are
    ranges: np.ndarray  #: (N, 2): first row of each cloud, and the row after its last
    has_normals: bool
    has_parts: bool
    digest: bytes  #: fingerprint of the source

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sizes(self) -> np.ndarray:
        """Number of points of each cloud, (N,)."""
        sizes: np.ndarray = self.ranges[:, 1] - self.ranges[:, 0]
        return sizes

    def take(self, indices: np.ndarray) -> PackedClouds:
        """Return the clouds at `indices`, in this order."""
        names = tuple(self.names[index] for index in indices)
        return replace(self, names=names, categories=self.categories[indices], ranges=self.ranges[indices])

    def joined(self, other: PackedClouds) -> PackedClouds:
        """Return these clouds, and then the `other` clouds of the same source."""
        return replace(
            self,
            names=self.names + other.names,
            categories=np.concatenate([self.categories, other.categories]),
            ranges=np.concatenate([self.ranges, other.ranges]),
        )

    def cloud(self, index: int) -> Cloud:
        """Return a cloud."""
        first, end = self.ranges[index].tolist()
        rows = self.values[first:end]
        return Cloud(
            name=self.names[index],
            points=rows[:, :3],
            normals=rows[:, 3:6] if self.has_normals else None,
            parts=rows[:, -1].astype(np.int64) if self.has_parts else None,
            category=int(self.categories[index]),
        )

    def fingerprint(self) -> bytes:
        """Return a digest of the clouds without their names."""
        return hashlib.sha256(self.digest + np.ascontiguousarray(self.ranges).tobytes()).digest()


def pack(source: CloudSource) -> dict[str, PackedClouds]:
    """Read and check all clouds of a source.

    Raises:
        DataError: clouds cannot be used; the message has a line for each of up to 10.
    """
    parts = list(source.splits.values())
    digest = source.fingerprint()
    of_files = all(isinstance(stored, Path) for clouds in parts for stored in clouds.stored)
    folder, name = cache_folder() / "points", digest.hex()[:32]
    values, ranges = _kept(folder, name) if of_files else (None, None)
    if values is None or ranges is None or len(ranges) != sum(map(len, parts)):
        values, ranges = _read(parts)
        if of_files:
            _keep(folder, name, values, ranges)
    found, first = {}, 0
    for split, clouds in source.splits.items():
        found[split] = PackedClouds(
            names=tuple(clouds.names),
            categories=clouds.categories,
            values=values,
            ranges=ranges[first : first + len(clouds)],
            has_normals=source.has_normals,
            has_parts=source.parts is not None,
            digest=digest,
        )
        first += len(clouds)
    return found


def _read(splits: list[Clouds]) -> tuple[np.ndarray, np.ndarray]:
    rows, mistakes = list[np.ndarray](), list[str]()

    def all_clouds() -> Iterator[Cloud | str]:
        for clouds in splits:
            for index in range(len(clouds)):
                try:
                    yield clouds.cloud(index)
                except DataError as error:
                    yield str(error)

    for each in counted(all_clouds(), "clouds read", total=sum(map(len, splits))):
        if isinstance(each, str):
            mistakes.append(each)
            continue
        columns = [each.points, *([] if each.normals is None else [each.normals])]
        columns += [] if each.parts is None else [each.parts[:, None]]
        rows.append(np.concatenate(columns, axis=1, dtype=np.float32))
    if mistakes:
        more = [f"and {len(mistakes) - _LISTED} more clouds"] if len(mistakes) > _LISTED else []
        raise DataError("\n".join(mistakes[:_LISTED] + more))
    ends = np.cumsum([len(each) for each in rows])
    return np.concatenate(rows), np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)


def _kept(folder: Path, name: str) -> tuple[np.ndarray | None, np.ndarray | None]:
    kept, file = load_arrays(folder / f"{name}.npz"), folder / f"{name}.npy"
    with suppress(OSError, ValueError, EOFError):
        if "ranges" in kept and "stamp" in kept and kept["stamp"].tolist() == [*(file_stamp(file) or ())]:
            return np.load(file, mmap_mode="r", allow_pickle=False), kept["ranges"]
    return None, None


def _keep(folder: Path, name: str, values: np.ndarray, ranges: np.ndarray) -> None:
    path = folder / f"{name}.npy"
    try:
        with atomic_file(path) as file:
            np.save(file, values)
    except StorageError as error:
        log.debug("not cached: %s", error)
    else:  # size and time tell whether the clouds are these ones, as a checksum of gigabytes would take seconds
        keep_arrays(
            folder / f"{name}.npz", {"ranges": ranges, "stamp": np.array(file_stamp(path) or (), dtype=np.int64)}
        )
