"""Results that can be recomputed: the user's cache folder, and decoded examples kept while runs train."""

import hashlib
import io
import logging
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attngraft.errors import UsageError
from attngraft.files import shown_size, user_path, write_atomically
from attngraft.opening import DAMAGE, open_npz
from attngraft.suggest import quoted

ENVIRONMENT = "ATTNGRAFT_CACHE"

DECODED_FOLDER = ".decoded"  #: in the folder of a run or a study
AUTO_BYTES = 2 * 10**9  #: largest size of decoded examples that `auto` keeps

_DECODED_FILE = re.compile(r"[0-9a-f]{24}-\d+")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d+)?) ?([kmgt])(i?)b?", re.IGNORECASE)

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return `$ATTNGRAFT_CACHE`, else `attngraft` in `$XDG_CACHE_HOME` or `~/.cache`; it may not exist yet."""
    if chosen := os.environ.get(ENVIRONMENT):
        return user_path(chosen)
    return user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "attngraft"


def cache_file(kind: str, *key: str) -> Path:
    """Return the path of the cache entry with this kind and key."""
    digest = hashlib.blake2b("\0".join(key).encode("utf-8", "surrogateescape"), digest_size=16)
    return cache_folder() / kind / f"{digest.hexdigest()}.npz"


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays saved at `path`, or an empty dictionary if the file is missing or damaged."""
    try:
        with open_npz(path) as archive:
            return {name: archive[name] for name in archive.files}
    except DAMAGE:
        return {}


def keep_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Save `arrays` at `path`. A failure (full disk, read-only home) is only logged."""
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    try:
        write_atomically(path, packed.getvalue())
    except OSError as error:
        log.debug("%s: not cached (%s)", path, error.strerror or error)


@dataclass(frozen=True, kw_only=True)
class DecodedCache:
    """A folder in which runs keep decoded examples while they train, so that each example is decoded once."""

    folder: Path
    limit: int  #: largest size in bytes
    whole: bool = False  #: keep nothing if not all examples fit
    shared: bool = False  #: whether several runs use it

    def file(self, *key: bytes, examples: int) -> Path:
        """Return the path of a file of `examples` examples with this key."""
        digest = hashlib.blake2b(digest_size=12)
        for part in key:
            digest.update(len(part).to_bytes(8, "little") + part)
        return self.folder / f"{digest.hexdigest()}-{examples}"

    def room(self, total: int | None) -> int:
        """Return how many of the `total` bytes of all decoded examples are kept; None: unknown."""
        if total is None or (self.whole and total > self.limit):
            return 0
        return min(total, self.limit)

    def note(self, total: int | None) -> str:
        """Describe what is kept, for the log; empty if nothing can be kept."""
        room = self.room(total)
        if total is None:
            unknown = "decoded images are not kept, because their sizes are unknown without task.data.check=full"
            return "" if self.whole else unknown
        if total == 0:
            return ""
        if room == 0:
            return (
                f"decoded images are not kept: {shown_size(total)} exceed the limit of {shown_size(self.limit)} "
                "(--cache SIZE keeps a part)"
            )
        part = shown_size(room) if room == total else f"{shown_size(room)} of {shown_size(total)}"
        return f"decoded images take up to {part} in {self.folder} until training ends"


@contextmanager
def decoded_removed(parent: Path) -> Iterator[None]:
    """Remove the decoded examples in `parent`, the folder of a run or a study, before the block and when it ends.

    No other process may use them; those that a killed process left are never read.
    """
    _remove_decoded(parent / DECODED_FOLDER)
    try:
        yield
    finally:
        _remove_decoded(parent / DECODED_FOLDER)


def _remove_decoded(folder: Path) -> None:
    with suppress(OSError):
        for path in list(folder.iterdir()):
            if _DECODED_FILE.fullmatch(path.name):
                path.unlink()
        folder.rmdir()


def memory_size() -> float:
    """Return the size of this machine's memory in bytes; infinity where the system does not report it."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else math.inf


def decoded_cache(option: str, parent: Path, *, shared: bool = False) -> DecodedCache | None:
    """Return the cache in `parent`, the folder of a run or a study, for `--cache`; nothing is written.

    Args:
        option: `auto` (everything, if it fits into 2 GB, a tenth of the free disk space and a quarter of the memory), `off`,
            or the largest size, such as `500MB` or `4GB`.
        parent: may not exist yet.
        shared: whether several runs use the cache.

    Raises:
        UsageError: the option has another form, or a size is given on a system without shared files (Windows).
    """
    option = option.strip()
    size = _SIZE.fullmatch(option)
    if option not in ("auto", "off") and (size is None or float(size[1]) == 0):
        raise UsageError(f"--cache: expected auto, off, or a size such as 500MB or 4GB; got {quoted(option)}")
    if not hasattr(os, "pwrite"):  # pragma: no cover -- Windows
        if size is not None:
            raise UsageError(f"--cache {option}: not supported on Windows; use --cache off")
        return None
    if option == "off":
        return None
    existing = next(path for path in (parent.absolute(), *parent.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if size is None:
        limit = min(AUTO_BYTES, free // 10, int(memory_size() // 4))
    else:
        power = "kmgt".index(size[2].lower()) + 1
        wanted = int(float(size[1]) * (1024 if size[3] else 1000) ** power)
        limit = min(wanted, free * 9 // 10)  # the runs' own files need some space too
    return DecodedCache(folder=parent / DECODED_FOLDER, limit=limit, whole=size is None, shared=shared)
