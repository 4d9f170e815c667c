"""What can be made again, kept between runs in the user's cache folder; never beside the user's data."""

from __future__ import annotations

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
    """`$ATTNGRAFT_CACHE`, else `attngraft` in `$XDG_CACHE_HOME` or `~/.cache`. It need not exist."""
    own = os.environ.get(ENVIRONMENT)
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "attngraft"


def cache_file(kind: str, *key: str) -> Path:
    """Where something of this kind is kept under this key."""
    digest = hashlib.blake2b("\0".join(key).encode("utf-8", "surrogateescape"), digest_size=16)
    return cache_folder() / kind / f"{digest.hexdigest()}.npz"


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays kept at `path`; none where there is nothing, or something damaged."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return {}


def keep_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Keep `arrays` at `path`. Where that cannot be written (a full disk, a read-only home), nothing is kept."""
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    try:
        write_atomically(path, packed.getvalue())
    except OSError as error:
        log.debug("%s: not kept (%s)", path, error.strerror or error)
