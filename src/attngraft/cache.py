"""User cache folder for results that can be recomputed; nothing is written next to the user's data."""

import hashlib
import io
import logging
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from attngraft.files import write_atomically

ENVIRONMENT = "ATTNGRAFT_CACHE"

log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return `$ATTNGRAFT_CACHE`, else `attngraft` in `$XDG_CACHE_HOME` or `~/.cache`; it may not exist yet."""
    if chosen := os.environ.get(ENVIRONMENT):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "attngraft"


def cache_file(kind: str, *key: str) -> Path:
    """Return the path of the cache entry with this kind and key."""
    digest = hashlib.blake2b("\0".join(key).encode("utf-8", "surrogateescape"), digest_size=16)
    return cache_folder() / kind / f"{digest.hexdigest()}.npz"


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays saved at `path`, or an empty dictionary if the file is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return {}


def keep_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Save `arrays` at `path`. A failure (full disk, read-only home) is only logged."""
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    try:
        write_atomically(path, packed.getvalue())
    except OSError as error:
        log.debug("%s: not cached (%s)", path, error.strerror or error)
