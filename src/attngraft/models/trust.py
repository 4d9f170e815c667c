"""Permission to import `module:` hosts, whose import runs the user's code.

A name that the user types, on the command line or in Python, is permitted; a name read from a folder or a file is permitted
only with `--trust-code` or `trust_code=True`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
