"""A look at every image before training: can it be decoded, how large is it, has it a twin?

Why before training: an image that cannot be read must be left out of both parts once, for all runs, or results would
depend on which worker met it and when. A pass over the files keeps the parts a function of the files alone, so that runs
stay bit-identical for any number of workers and on resume, and evaluation never counts a stand-in. What was seen of an
image is remembered in the user's cache by (path, size, time of change); a second run only asks for each file's date.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Literal

import numpy as np
from PIL import Image

from attngraft.cache import cache_file, keep_arrays, load_arrays
from attngraft.errors import DataError
from attngraft.tasks.images.config import Check
from attngraft.tasks.images.sources.decoding import RULES, UnreadableImage, decode, in_mode
from attngraft.tasks.images.sources.images import FileImages, Images, Stamp

Depth = Literal["full", "fast", "off"]
Progress = Callable[[int, int], None]  #: how many images are done, of how many

FULL_IMAGES = 50_000  #: up to as many images and
FULL_BYTES = 2**32  #: as many bytes of files, `auto` decodes every image

_END = 2**16  #: bytes of a file that `fast` reads from either end
_OLD = 4  #: what was seen before (of other classes, of files since changed) is kept up to so many times what is new
_CHUNK = 64  #: images that a thread takes at a time

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What was seen of N images.

    With `full`, `digests` are of the upright image's RGB pixels and size, so that equal digests mean equal pixels; with
    `fast`, of the file's length and its two ends (64 KiB each), which tells byte-identical files up to that.
    """

    depth: Depth
    sizes: np.ndarray  #: (N, 2) int32 width, height; 0 where it could not be read
    modes: list[str]  #: Pillow's, after opening; empty where it could not be read
    digests: np.ndarray  #: (N, 16) uint8
    problems: dict[int, str]  #: position -> why it cannot be read

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class _Seen:
    size: tuple[int, int]
    mode: str
    digest: bytes


def scan(images: Sequence[Images], check: Check, *, where: str, progress: Progress | None = None) -> Scan:
    """Look at all `images`, one set behind the other.

    Args:
        check: `full`, `fast`, or `auto`: `full` up to 50,000 images in 4 GiB of files. `off` sees nothing. More images than
            that which do not lie as files (of timm's back ends) are not looked at unasked.
        where: the source, under which the outcome is remembered.
        progress: called now and then, from this thread.
    """
    places = [(part, index) for part, part_images in enumerate(images) for index in range(len(part_images))]
    stamps = [images[part].stamp(index) for part, index in places] if check != "off" else [None] * len(places)
    depth = _depth(check, len(places), sum(stamp[0] for stamp in stamps if stamp))
    if check == "auto" and depth == "fast" and not all(isinstance(part, FileImages) for part in images):
        depth = "off"
    seen: list[_Seen | str | None] = [None] * len(places)
    if depth != "off":
        book = _Book(where, depth)
        keys = [book.key(images[part].where(index), stamp) for (part, index), stamp in zip(places, stamps, strict=True)]
        seen = [book.get(key) for key in keys]
        left = [place for place, entry in enumerate(seen) if entry is None]
        told = _told(progress, len(left), where)
        for place, entry in _look_at(images, [(place, *places[place]) for place in left], depth):
            seen[place] = entry
            told(place)
        if left:
            book.keep(keys, seen)
    return _as_scan(seen, depth)


def _depth(check: Check, count: int, size: int) -> Depth:
    if check != "auto":
        return check
    return "full" if count <= FULL_IMAGES and size <= FULL_BYTES else "fast"


def _look_at(
    images: Sequence[Images], work: Sequence[tuple[int, int, int]], depth: Depth
) -> Iterator[tuple[int, _Seen | str]]:
    """What is seen of each (place, part, index); files by several threads, as decoding and hashing leave Python's lock."""
    alone = [job for job in work if not isinstance(images[job[1]], FileImages)]
    for place, part, index in alone:
        yield place, _look(images[part], index, depth)
    shared = [job for job in work if isinstance(images[job[1]], FileImages)]
    chunks = [shared[i : i + _CHUNK] for i in range(0, len(shared), _CHUNK)]

    def chunk_seen(chunk: list[tuple[int, int, int]]) -> list[tuple[int, _Seen | str]]:
        own = {part: copy.copy(images[part]) for part in {part for _, part, _ in chunk}}  # with files of their own
        return [(place, _look(own[part], index, depth)) for place, part, index in chunk]

    threads = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    pool = ThreadPoolExecutor(threads)
    try:
        for found in pool.map(chunk_seen, chunks):
            yield from found
    finally:
        pool.shutdown(cancel_futures=True)


def _look(images: Images, index: int, depth: Depth) -> _Seen | str:
    """What an image is, or why it cannot be read."""
    try:
        if depth == "fast" and isinstance(images, FileImages):
            with images.raw(index) as stream:
                return _ends(stream, images.where(index))
        image = images.open(index)
        pixels = in_mode(image, "RGB")
        digest = hashlib.blake2b(f"{pixels.size}".encode(), digest_size=16)
        digest.update(pixels.tobytes())
        return _Seen(image.size, image.mode, digest.digest())
    except UnreadableImage as error:
        return error.reason
    except DataError as error:
        return str(error).removeprefix(f"{images.where(index)}: ")
    except Exception as error:  # a mode that cannot be converted, a library behind a source
        return str(error) or type(error).__name__


def _ends(stream: IO[bytes], where: str) -> _Seen:
    """A file by its head and tail. One whose end looks cut off is decoded to know."""
    head = stream.read(_END)
    length = stream.seek(0, os.SEEK_END)
    stream.seek(max(length - _END, 0))
    tail = stream.read()
    stream.seek(0)
    if not head or not _ends_well(head, tail):
        image = decode(stream, where=where)
    else:
        try:
            image = Image.open(stream)
        except Exception:
            stream.seek(0)
            image = decode(stream, where=where)  # says what is wrong, or knows a huge JPEG
    digest = hashlib.blake2b(str(length).encode(), digest_size=16)
    digest.update(head)
    digest.update(tail)
    return _Seen(image.size, image.mode, digest.digest())


def _ends_well(head: bytes, tail: bytes) -> bool:
    """Whether the end mark stands at the end: one further in may be that of a thumbnail in the file's head."""
    tail = tail[-256:]
    if head.startswith(b"\xff\xd8"):
        return b"\xff\xd9" in tail
    if head.startswith(b"\x89PNG"):
        return b"IEND" in tail
    return False  # of other formats nothing is known; they are rare


class _Book:
    """What is remembered of a source's images."""

    def __init__(self, where: str, depth: Depth) -> None:
        import PIL

        self.path = cache_file("images", os.path.realpath(where), depth, str(RULES), PIL.__version__)
        held = load_arrays(self.path)
        self.entries: dict[bytes, _Seen] = {}
        if set(held) == {"keys", "sizes", "modes", "digests"}:
            rows = zip(held["keys"], held["sizes"].tolist(), held["modes"].tolist(), held["digests"], strict=True)
            self.entries = {
                key.tobytes(): _Seen((size[0], size[1]), mode, digest.tobytes()) for key, size, mode, digest in rows
            }

    def key(self, name: str, stamp: Stamp | None) -> bytes | None:
        if stamp is None:
            return None
        text = f"{name}\0{stamp[0]}\0{stamp[1]}".encode("utf-8", "surrogateescape")
        return hashlib.blake2b(text, digest_size=16).digest()

    def get(self, key: bytes | None) -> _Seen | None:
        return None if key is None else self.entries.get(key)

    def keep(self, keys: Sequence[bytes | None], seen: Sequence[_Seen | str | None]) -> None:
        """Problems are not remembered: a disk or a right that failed once may work the next time."""
        new = {k: s for k, s in zip(keys, seen, strict=True) if k is not None and isinstance(s, _Seen)}
        if not new:
            return
        good = list((self.entries | new if len(self.entries) <= _OLD * len(new) else new).items())
        arrays: dict[str, np.ndarray] = {
            "keys": np.frombuffer(b"".join(key for key, _ in good), dtype=np.uint8).reshape(-1, 16),
            "sizes": np.array([entry.size for _, entry in good], dtype=np.int32),
            "modes": np.array([entry.mode for _, entry in good]),
            "digests": np.frombuffer(b"".join(entry.digest for _, entry in good), dtype=np.uint8).reshape(-1, 16),
        }
        keep_arrays(self.path, arrays)


def _told(progress: Progress | None, total: int, where: str) -> Callable[[int], None]:
    """Called after each image: tells `progress`, or, where a look takes long, the log."""
    done, last = 0, time.monotonic()
    if progress is not None:
        progress(0, total)

    def after(_: int) -> None:
        nonlocal done, last
        done, now = done + 1, time.monotonic()
        if progress is not None:
            progress(done, total)
        elif now - last > 15:
            last = now
            log.info("%s: looked at %d of %d images (once; what is seen is remembered)", where, done, total)

    return after


def _as_scan(seen: Sequence[_Seen | str | None], depth: Depth) -> Scan:
    sizes, digests = np.zeros((len(seen), 2), dtype=np.int32), np.zeros((len(seen), 16), dtype=np.uint8)
    for place, entry in enumerate(seen):
        if isinstance(entry, _Seen):
            sizes[place], digests[place] = entry.size, np.frombuffer(entry.digest, dtype=np.uint8)
    return Scan(
        depth=depth,
        sizes=sizes,
        modes=[entry.mode if isinstance(entry, _Seen) else "" for entry in seen],
        digests=digests,
        problems={place: entry for place, entry in enumerate(seen) if isinstance(entry, str)},
    )
