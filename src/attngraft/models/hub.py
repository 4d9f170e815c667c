"""Access to the Hugging Face Hub without waiting for an unreachable network."""

from collections.abc import Iterator
from contextlib import contextmanager

from attngraft.downloads import DownloadRefused, may_download, without_hub

SECONDS = 5.0  #: longest wait for the Hub's answer

_reached: set[str] = set()  #: addresses that have answered this process


@contextmanager
def hub_or_cache(name: str) -> Iterator[Exception | None]:
    """Use the cache alone in the block if `name` may not be downloaded or the Hub does not answer, and yield the reason.

    huggingface_hub would try again for a minute, even for files that are in the cache.
    """
    from huggingface_hub import constants

    error: Exception | None
    if not may_download(name):
        error = DownloadRefused()
    else:
        error = None if constants.HF_HUB_OFFLINE else _connect(constants.ENDPOINT)
    if error is None:
        yield None
        return
    with without_hub():
        yield error


def _connect(address: str) -> Exception | None:
    """Return the error of a connection, with the proxies and certificates that huggingface_hub uses; None if it works."""
    from huggingface_hub import get_session

    if address in _reached:
        return None
    try:
        get_session().head(address, timeout=SECONDS)
    except Exception as error:  # of any of the HTTP clients that releases of huggingface_hub use
        return error
    _reached.add(address)
    return None
