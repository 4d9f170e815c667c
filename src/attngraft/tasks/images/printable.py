"""Names of files that are not UTF-8 (as old archives have them), made fit for JSON, tables and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def printable(value: T) -> T:
    """`value`, plain nested data, with what is no character of any name in it replaced (`caf\ufffd.png`). Python keeps such
    bytes as lone surrogates, which no encoder takes."""
    found: object = value
    if isinstance(value, str):
        found = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    elif isinstance(value, Mapping):
        found = {printable(key): printable(entry) for key, entry in value.items()}
    elif isinstance(value, list | tuple):
        found = type(value)(map(printable, value))
    return found  # type: ignore[return-value]
