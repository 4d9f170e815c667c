"""Scan of all images before training: readability, size, and a digest to find duplicates.

Unreadable images are removed once, before training and for all runs. If they were skipped during loading, results would
depend on the worker that encountered them. With the scan, splits are a function of the files alone, so runs are
bit-identical for any number of workers and on resume, and evaluation never counts substitute images. Results are cached by
(path, size, modification time), so a second scan only reads each file's metadata.
"""

import copy
import hashlib
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
from attngraft.tasks.images.sources.base import FileImages, Images, Stamp
from attngraft.tasks.images.sources.decoding import RULES, UnreadableImage, check_header, decode, in_mode, strips

Depth = Literal["full", "fast", "off"]

FULL_IMAGES = 50_000  #: `auto` decodes every image up to this number of images ...
FULL_BYTES = 2**32  #: ... and this total size of the files

_END = 2**16  #: number of bytes that `fast` reads at each end of a file
_CACHE_FACTOR = 4  #: old entries are dropped when they exceed this multiple of the new ones
_CHUNK = 64  #: number of images that a thread scans at a time


@dataclass(frozen=True, kw_only=True)
class ScanResult:
    """Properties of N scanned images.

    With `full`, a digest covers the size and RGB pixels of the upright image, so equal digests mean equal pixels. With
    `fast`, it covers the file's length and its first and last 64 KiB, so it may miss differences in between.
    """

    depth: Depth
    sizes: np.ndarray  #: (N, 2) int32 width, height; 0 for unreadable images
    modes: list[str]  #: Pillow's modes; empty for unreadable images
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
    located = [(images_of, index) for images_of in images for index in range(len(images_of))]
    stamps = [each.stamp(index) for each, index in located] if check != "off" else [None] * len(located)
    depth: Depth = check if check != "auto" else "full"
    if check == "auto" and (len(located) > FULL_IMAGES or sum(stamp[0] for stamp in stamps if stamp) > FULL_BYTES):
        depth = "fast" if all(isinstance(each, FileImages) for each in images) else "off"
    results: list[_ImageInfo | str | None] = [None] * len(located)
    if depth != "off":
        cache = _ScanCache(where, depth)
        keys = [cache.key(each.where(index), stamp) for (each, index), stamp in zip(located, stamps, strict=True)]
        results = [cache.get(key) for key in keys]
        pending = [position for position, result in enumerate(results) if result is None]
        work = [(position, *located[position]) for position in pending]
        for position, scanned in counted(_scan_all(work, depth), "images scanned (once)", total=len(work)):
            results[position] = scanned
        if pending:
            cache.save(keys, results)
    sizes, digests = np.zeros((len(results), 2), dtype=np.int32), np.zeros((len(results), 16), dtype=np.uint8)
    for position, result in enumerate(results):
        if isinstance(result, _ImageInfo):
            sizes[position], digests[position] = result.size, np.frombuffer(result.digest, dtype=np.uint8)
    return ScanResult(
        depth=depth,
        sizes=sizes,
        modes=[result.mode if isinstance(result, _ImageInfo) else "" for result in results],
        digests=digests,
        problems={position: result for position, result in enumerate(results) if isinstance(result, str)},
    )


def _scan_all(work: Sequence[tuple[int, Images, int]], depth: Depth) -> Iterator[tuple[int, _ImageInfo | str]]:
    """Yield the result of each (position, images, index); files are scanned in threads."""
    for position, images, index in work:
        if not isinstance(images, FileImages):
            yield position, _scan_image(images, index, depth)
    files = [job for job in work if isinstance(job[1], FileImages)]

    def scan_chunk(chunk: list[tuple[int, Images, int]]) -> list[tuple[int, _ImageInfo | str]]:
        copies = {id(images): copy.copy(images) for _, images, _ in chunk}  # each copy opens its own files
        return [(position, _scan_image(copies[id(images)], index, depth)) for position, images, index in chunk]

    # decoding and hashing release the GIL
    threads = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    pool = ThreadPoolExecutor(threads)
    try:
        for results in pool.map(scan_chunk, [files[i : i + _CHUNK] for i in range(0, len(files), _CHUNK)]):
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
        self.entries: dict[bytes, _ImageInfo] = {}
        if set(stored) == {"keys", "sizes", "modes", "digests"}:
            rows = zip(
                stored["keys"], stored["sizes"].tolist(), stored["modes"].tolist(), stored["digests"], strict=True
            )
            self.entries = {
                key.tobytes(): _ImageInfo((size[0], size[1]), mode, digest.tobytes())
                for key, size, mode, digest in rows
            }

    def key(self, name: str, stamp: Stamp | None) -> bytes | None:
        if stamp is None:
            return None
        text = f"{name}\0{stamp[0]}\0{stamp[1]}".encode("utf-8", "surrogateescape")
        return hashlib.blake2b(text, digest_size=16).digest()

    def get(self, key: bytes | None) -> _ImageInfo | None:
        return None if key is None else self.entries.get(key)

    def save(self, keys: Sequence[bytes | None], results: Sequence[_ImageInfo | str | None]) -> None:
        """Store results, except failures: their cause may be temporary (disk, permissions)."""
        new = {k: r for k, r in zip(keys, results, strict=True) if k is not None and isinstance(r, _ImageInfo)}
        if not new:
            return
        entries = list((self.entries | new if len(self.entries) <= _CACHE_FACTOR * len(new) else new).items())
        arrays: dict[str, np.ndarray] = {
            "keys": np.frombuffer(b"".join(key for key, _ in entries), dtype=np.uint8).reshape(-1, 16),
            "sizes": np.array([info.size for _, info in entries], dtype=np.int32),
            "modes": np.array([info.mode for _, info in entries]),
            "digests": np.frombuffer(b"".join(info.digest for _, info in entries), dtype=np.uint8).reshape(-1, 16),
        }
        keep_arrays(self.path, arrays)
