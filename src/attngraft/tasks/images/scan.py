"""Scan of all images before training: readability, size, and a digest to find duplicates.

Unreadable images are removed once, before training and for all runs. If they were skipped during loading, results would
depend on the worker that encountered them. With the scan, splits are a function of the files alone, so runs are
bit-identical for any number of workers and on resume, and evaluation never counts substitute images. Results are cached by
(path, size, modification time), so a second scan only reads each file's metadata.
"""

import bisect
import copy
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Literal

import numpy as np
import PIL

from attngraft.cache import cache_file, keep_arrays, load_arrays
from attngraft.counting import counted
from attngraft.errors import DataError
from attngraft.image_files import open_image
from attngraft.tasks.images.config import Check
from attngraft.tasks.images.sources.base import FileImages, Images
from attngraft.tasks.images.sources.decoding import RULES, UnreadableImage, check_header, decode, in_mode, strips
from attngraft.tasks.images.sources.folder import FolderImages

Depth = Literal["full", "fast", "off"]

FULL_IMAGES = 50_000  #: `auto` decodes every image up to this number of images ...
FULL_BYTES = 2**32  #: ... and this total size of the files

_END = 2**16  #: number of bytes that `fast` reads at each end of a file
_CACHE_FACTOR = 4  #: old entries are dropped when they exceed this multiple of the new ones
_MODE = "U8"  #: type of Pillow's modes in arrays
_CHUNK = 64  #: number of images that a thread scans at a time


@dataclass(frozen=True, kw_only=True)
class ScanResult:
    """Properties of N scanned images.

    With `full`, a digest covers the size and RGB pixels of the upright image, so equal digests mean equal pixels. With
    `fast`, it covers the file's length and its first and last 64 KiB, so it may miss differences in between.
    """

    depth: Depth
    sizes: np.ndarray  #: (N, 2) int32 width, height; 0 for unreadable images
    modes: np.ndarray  #: (N,) Pillow's modes; empty for unreadable images
    digests: np.ndarray  #: (N, 16) uint8
    problems: dict[int, str]  #: index of each unreadable image -> reason

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class _ImageInfo:
    size: tuple[int, int]
    mode: str
    digest: bytes


def scan(images: Sequence[Images], check: Check, *, where: str) -> ScanResult:
    """Scan all sets of `images`, one after the other.

    Args:
        check: depth of the scan: `full`, `fast`, `off` (no scan) or `auto`: `full` for up to 50,000 images in up to 4 GiB
            of files; beyond that `fast` for files and `off` for other images (timm's back ends).
        where: name of the source, part of the cache key.
    """
    files = _Files(images)
    stamps = files.stamps() if check != "off" else np.zeros((0, 3))
    depth: Depth = check if check != "auto" else "full"
    if check == "auto" and (len(files.number) > FULL_IMAGES or stamps[files.number, 0].clip(min=0).sum() > FULL_BYTES):
        depth = "fast" if all(isinstance(each, FileImages) for each in images) else "off"
    found, problems = _Found.of(len(files)), dict[int, str]()
    if depth != "off":
        cache = _ScanCache(where, depth)
        keys = cache.keys(files, stamps)
        pending = np.flatnonzero(~cache.fill(keys, found))
        for file, result in counted(_scan_all(files, pending, depth), "images scanned (once)", total=len(pending)):
            if isinstance(result, str):
                problems[file] = result
            else:
                found.sizes[file], found.modes[file] = result.size, result.mode
                found.digests[file] = np.frombuffer(result.digest, dtype=np.uint8)
        if len(pending):
            lasting = stamps[:, 0] >= 0
            lasting[list(problems)] = False  # their cause may be temporary (disk, permissions)
            cache.save(keys[lasting], found.take(lasting))
    by_image = found.take(files.number)
    unreadable = np.flatnonzero(np.isin(files.number, list(problems)))
    return ScanResult(
        depth=depth,
        sizes=by_image.sizes,
        modes=by_image.modes,
        digests=by_image.digests,
        problems={row: problems[int(files.number[row])] for row in unreadable.tolist()},
    )


class _Files:
    """The files of all images, each once, as rows of a table may share files; other images count as files of their own.

    `number` (N,) is the file of each image.
    """

    def __init__(self, images: Sequence[Images]) -> None:
        self._images = images
        self._ends = list(itertools.accumulate(map(len, images)))
        self.number = self._first = np.arange(sum(map(len, images)))  # `_first`: the first image of each file
        roots = {each.root if isinstance(each, FolderImages) else None for each in images}
        if len(roots) == 1 and None not in roots:
            files: dict[str, int] = {}
            names = (files.setdefault(name, len(files)) for each in images for name in each.names)
            number = np.fromiter(names, dtype=np.int64, count=len(self.number))
            if len(files) < len(number):
                self.number, self._first = number, np.unique(number, return_index=True)[1]

    def __len__(self) -> int:
        return len(self._first)

    def locate(self, file: int) -> tuple[Images, int]:
        """Return the set with the first image of a file, and the index of the image."""
        position = int(self._first[file])
        part = bisect.bisect_right(self._ends, position)
        return self._images[part], position - (self._ends[part - 1] if part else 0)

    def stamps(self) -> np.ndarray:
        """Return the stamps of all files, (files, 3); -1 without a stamp."""
        stamps = np.full((len(self), 3), -1, dtype=np.int64)
        for file in range(len(self)):
            images, index = self.locate(file)
            stamp = images.stamp(index)
            if stamp is not None:
                stamps[file] = stamp
        return stamps


@dataclass(frozen=True)
class _Found:
    """Properties of files, as in `ScanResult`."""

    sizes: np.ndarray
    modes: np.ndarray
    digests: np.ndarray

    @classmethod
    def of(cls, files: int) -> "_Found":
        """Return properties to be filled."""
        return cls(np.zeros((files, 2), np.int32), np.zeros(files, _MODE), np.zeros((files, 16), np.uint8))

    def take(self, chosen: np.ndarray) -> "_Found":
        """Return the properties of some files."""
        return _Found(self.sizes[chosen], self.modes[chosen], self.digests[chosen])


def _scan_all(files: _Files, pending: np.ndarray, depth: Depth) -> Iterator[tuple[int, _ImageInfo | str]]:
    """Yield (file, result) for each file in `pending`, scanned in threads; first those of images without files."""
    stored = []
    for file in pending.tolist():
        images, index = files.locate(file)
        if isinstance(images, FileImages):
            stored.append(file)
        else:
            yield file, _scan_image(images, index, depth)

    def scan_chunk(chunk: list[int]) -> list[tuple[int, _ImageInfo | str]]:
        copies: dict[int, Images] = {}
        results = []
        for file in chunk:
            images, index = files.locate(file)
            if id(images) not in copies:
                copies[id(images)] = copy.copy(images)  # each copy opens its own files
            results.append((file, _scan_image(copies[id(images)], index, depth)))
        return results

    # decoding and hashing release the GIL
    threads = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    pool = ThreadPoolExecutor(threads)
    try:
        for results in pool.map(scan_chunk, [stored[i : i + _CHUNK] for i in range(0, len(stored), _CHUNK)]):
            yield from results
    finally:
        pool.shutdown(cancel_futures=True)


def _scan_image(images: Images, index: int, depth: Depth) -> _ImageInfo | str:
    """Return the properties of an image, or the reason why it cannot be read."""
    try:
        if depth == "fast" and isinstance(images, FileImages):
            with images.raw(index) as stream:
                return _scan_ends(stream, images.where(index))
        image = images.open(index)
        pixels = in_mode(image, "RGB")
        digest = hashlib.blake2b(f"{pixels.size}".encode(), digest_size=16)
        for strip in strips(pixels):  # tobytes makes two copies
            digest.update(strip.tobytes())
        return _ImageInfo(image.size, image.mode, digest.digest())
    except UnreadableImage as error:
        return error.reason
    except DataError as error:
        return str(error).removeprefix(f"{images.where(index)}: ")
    except Exception as error:  # images in modes that cannot be converted, and all errors of timm's back ends
        return str(error) or type(error).__name__


def _scan_ends(stream: IO[bytes], where: str) -> _ImageInfo:
    """Scan only a file's head and tail; decode the image if the file looks truncated."""
    head = stream.read(_END)
    length = stream.seek(0, os.SEEK_END)
    stream.seek(max(length - _END, 0))
    tail = stream.read()
    stream.seek(0)
    if not head or not _ends_well(head, tail):
        image = decode(stream, where=where)
    else:
        try:
            image = open_image(stream)
            check_header(image)
        except Exception:
            stream.seek(0)
            image = decode(stream, where=where)  # huge JPEGs are decoded; others raise an error with the reason
    digest = hashlib.blake2b(str(length).encode(), digest_size=16)
    digest.update(head)
    digest.update(tail)
    return _ImageInfo(image.size, image.mode, digest.digest())


def _ends_well(head: bytes, tail: bytes) -> bool:
    """Return whether the tail contains the end marker; an earlier marker may belong to an embedded thumbnail."""
    tail = tail[-256:]
    if head.startswith(b"\xff\xd8"):
        return b"\xff\xd9" in tail
    if head.startswith(b"\x89PNG"):
        return b"IEND" in tail
    return False  # other formats are rare, so they are always decoded


class _ScanCache:
    """Cache of the scan results of a source's images."""

    def __init__(self, where: str, depth: Depth) -> None:
        self.path = cache_file("images", os.path.realpath(where), depth, str(RULES), PIL.__version__)
        stored = load_arrays(self.path)
        self._keys, self._found = _as_keys(np.zeros((0, 16), np.uint8)), _Found.of(0)
        if set(stored) == {"keys", "sizes", "modes", "digests"}:
            self._keys = _as_keys(stored["keys"])
            self._found = _Found(stored["sizes"], stored["modes"], stored["digests"])

    def keys(self, files: _Files, stamps: np.ndarray) -> np.ndarray:
        """Return the keys of files; those of files without a stamp are zero."""
        keys = np.zeros((len(files), 16), dtype=np.uint8)
        for file, (size, *times) in enumerate(stamps.tolist()):
            if size >= 0:
                images, index = files.locate(file)
                text = f"{images.where(index)}\0{size}\0{times}".encode("utf-8", "surrogateescape")
                keys[file] = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), dtype=np.uint8)
        return _as_keys(keys)

    def fill(self, keys: np.ndarray, found: _Found) -> np.ndarray:
        """Write the stored properties of files to `found`, and return which files have some, (files,)."""
        if not len(self._keys):
            return np.zeros(len(keys), dtype=bool)
        order = np.argsort(self._keys)
        entries = order[np.searchsorted(self._keys, keys, sorter=order).clip(max=len(order) - 1)]
        known = self._keys[entries] == keys
        stored = self._found.take(entries[known])
        found.sizes[known], found.modes[known], found.digests[known] = stored.sizes, stored.modes, stored.digests
        return known

    def save(self, keys: np.ndarray, found: _Found) -> None:
        """Store the properties of files."""
        if not len(keys):
            return
        if len(self._keys) <= _CACHE_FACTOR * len(keys):
            others = ~np.isin(self._keys, keys)
            old = self._found.take(others)
            keys = np.concatenate([self._keys[others], keys])
            pairs = ((old.sizes, found.sizes), (old.modes, found.modes), (old.digests, found.digests))
            found = _Found(*(np.concatenate(pair) for pair in pairs))
        columns = {"sizes": found.sizes, "modes": found.modes, "digests": found.digests}
        keep_arrays(self.path, {"keys": keys.view(np.uint8).reshape(-1, 16), **columns})


def _as_keys(rows: np.ndarray) -> np.ndarray:
    """View keys (N, 16) uint8 as (N,) strings of bytes, which can be sorted and compared."""
    return np.ascontiguousarray(rows).view("S16").reshape(-1)
