"""Permission to import `module:` hosts, whose import runs the user's code.

A name that the user types, on the command line or in Python, is permitted; a name read from a folder or a file is permitted
only with `--trust-code` or `trust_code=True`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from attngraft.downloads import received
from attngraft.errors import UsageError

SCHEME = "module:"
_EVERY = "*"
_trusted: ContextVar[frozenset[str]] = ContextVar("trusted", default=frozenset())


@contextmanager
def trusting(*names: str | None, every: bool = False) -> Iterator[None]:
    """Permit the hosts `names` within the block; with `every`, all hosts."""
    token = _trusted.set(_trusted.get() | {name for name in names if name} | ({_EVERY} if every else set()))
    try:
        yield
    finally:
        _trusted.reset(token)


@contextmanager
def from_folder(*typed: str | None, trust_code: bool, allow_download: bool) -> Iterator[None]:
    """Use the names in a received folder within the block.

    Args:
        typed: texts of the user, whose names may be downloaded.
        trust_code: permit `module:` hosts.
        allow_download: permit downloads (`attngraft.downloads`).
    """
    with trusting(every=trust_code), received(*typed, allow_download=allow_download):
        yield


def refuse_untrusted(name: str) -> None:
    """Check that the `module:` host `name` is permitted here.

    Raises:
        UsageError: the host is not permitted.
    """
    if not _trusted.get() & {name, _EVERY}:
        raise UsageError(
            f"the host {name} was read from a file or folder, and importing it runs its code; if you trust that code, add "
            "--trust-code (in Python: trust_code=True)"
        )
