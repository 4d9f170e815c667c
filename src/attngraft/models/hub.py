"""Access to the Hugging Face Hub without waiting for an unreachable network."""

from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 5.0  #: longest wait for the Hub's answer

_reached: set[str] = set()  #: addresses that have answered this process


@contextmanager
def hub_or_cache() -> Iterator[Exception | None]:
    """Use the cache alone in the block if the Hub does not answer, and yield the error of the attempt, else None.

    huggingface_hub would try again for a minute, even for files that are in the cache.
    """
    from huggingface_hub import constants

    error = None if constants.HF_HUB_OFFLINE else _connect(constants.ENDPOINT)
    if error is None:
        yield None
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield error
    finally:
        constants.HF_HUB_OFFLINE = False


def _connect(address: str) -> Exception | None:
    """Return the error of a connection, with the proxies and certificates that huggingface_hub uses; None if it works."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    if address in _reached:
        return None
    try:
        get_session().head(address, timeout=SECONDS)
    except Exception as error:  # of any of the HTTP clients that releases of huggingface_hub use
        return error
    _reached.add(address)
    return None
