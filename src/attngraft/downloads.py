"""Permission to download: names that a received file contains are not downloaded unless the user allows it.

A name that the user types, on the command line or in Python, may be downloaded. Where a function reads a folder (a run, a
study, an exported model), the names in it are only looked up in the caches, unless `--allow-download` or
`allow_download=True` is given.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.error import URLError

Permitted = tuple[str, ...] | None  #: texts that contain the permitted names; None: all names

_EVERY = ("\0every",)  # no text of a user
_permitted: ContextVar[Permitted] = ContextVar("permitted", default=None)
REMEDY = "add --allow-download (in Python: allow_download=True)"


class DownloadRefused(URLError):
    """A download that is not permitted here."""

    def __init__(self) -> None:
        super().__init__(f"its name was read from a file or folder; to download it, {REMEDY}")

    def __str__(self) -> str:
        return str(self.reason)


@contextmanager
def received(*typed: str | None, allow_download: bool = False) -> Iterator[None]:
    """Read names from a received folder within the block; names in the texts `typed` are the user's own.

    Within `downloads_of` or another `received`, `allow_download` of the outermost block decides.
    """
    outer = _permitted.get()
    inner = (_EVERY if allow_download else ()) if outer is None else outer
    with downloads(inner if inner == _EVERY else (*inner, *filter(None, typed))):
        yield


@contextmanager
def downloads_of(texts: Iterable[str], *, allow_download: bool = False) -> Iterator[None]:
    """Permit only downloads of names that occur in `texts`, what the user typed; all of them with `allow_download`."""
    with downloads(_EVERY if allow_download else tuple(texts)):
        yield


@contextmanager
def downloads(permitted: Permitted) -> Iterator[None]:
    """Set the permitted downloads within the block, as returned by `permitted_downloads` in another process."""
    token = _permitted.set(permitted)
    try:
        yield
    finally:
        _permitted.reset(token)


def permitted_downloads() -> Permitted:
    """Return the permitted downloads, for `downloads` in another process."""
    return _permitted.get()


def may_download(name: str) -> bool:
    """Return whether the host (with its scheme) or the data set `name` may be downloaded here."""
    permitted = _permitted.get()
    if permitted is None or permitted == _EVERY:
        return True
    # a whole word, so that the host `hf:a` of a run is not permitted because its folder is `hf:a/b` or `data`
    word = re.compile(rf"(?<![\w./:-])(timm:)?{re.escape(name)}(?![\w./:-])")
    return any(word.search(text) for text in permitted)


@contextmanager
def caches_alone(name: str) -> Iterator[None]:
    """Within the block, let the clients that load `name` look only in their caches, unless it may be downloaded.

    Raises:
        DownloadRefused, or an error of huggingface_hub: a file is not in the cache.
    """
    if may_download(name):
        yield
        return
    with without_hub(), _without_torch_hub(name):
        yield


@contextmanager
def without_hub() -> Iterator[None]:
    """Let huggingface_hub use its cache alone within the block."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def _without_torch_hub(name: str) -> Iterator[None]:
    """Refuse downloads of torch.hub, which timm and torchvision use for weights with a URL."""
    import torch.hub

    hub: Any = torch.hub
    before = hub.urlopen

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if may_download(name):  # in another thread
            return before(*args, **kwargs)
        raise DownloadRefused

    hub.urlopen = refuse
    try:
        yield
    finally:
        hub.urlopen = before
