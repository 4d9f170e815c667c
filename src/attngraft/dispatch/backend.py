"""A backend: one implementation of an operation, and its reasons not to serve a call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

#: every backend's name, the one that `auto` prefers first
BACKENDS = ("triton", "eager", "reference")
#: environment variable that stands for `backend=` where a call does not name one
ENVIRONMENT = "ATTNGRAFT_BACKEND"


def no_obstacle(*args: Any, **kwargs: Any) -> None:
    """For backends that serve every call."""


@dataclass(frozen=True)
class Backend:
    """One implementation of an operation.

    `obstacle` is called with the arguments of the call and returns why this backend cannot serve it, as a phrase that
    continues "cannot be used here: ...", or None. It runs on every call under `auto`: it reads devices, dtypes and
    shapes, never values.
    """

    function: Callable[..., Any]
    obstacle: Callable[..., str | None] = no_obstacle


_KEY = os.environ.encodekey(ENVIRONMENT)


def named_by_environment() -> str | None:
    """What `ENVIRONMENT` says now.

    Where it says nothing, `os.environ.get` raises and catches two errors on the way, which takes longer than all else that
    is asked before a small operation; so what it looks into is looked into.
    """
    named = os.environ._data.get(_KEY)  # type: ignore[attr-defined]
    return None if named is None else str(os.environ.decodevalue(named))


@contextmanager
def reference_backend() -> Iterator[None]:
    """Inside, every op runs its reference backend, the equation itself."""
    before = os.environ.get(ENVIRONMENT)
    os.environ[ENVIRONMENT] = "reference"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ENVIRONMENT]
        else:
            os.environ[ENVIRONMENT] = before
