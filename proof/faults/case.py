"""One row of the table: a fault, the promised effect, and the function that causes it and checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proof.faults.bench import Bench


class NotHere(Exception):
    """The fault cannot be caused on this machine; the message has the reason."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault.

    `run` causes it and returns the measurement in a few words. It raises AssertionError for a broken promise and `NotHere`
    if the fault cannot be caused.
    """

    name: str  #: for tests and `--only`
    fault: str
    happens: str
    kept: str
    remedy: str
    run: Callable[[Bench], str]
    quick: bool = False  #: part of the default tests
