"""One row of the table: a fault, its guarantees, and the function that causes and checks it."""

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

    `run` causes it and returns a short summary of the measurement. It raises AssertionError if a guarantee is violated,
    and `NotHere` if the fault cannot be caused.
    """

    name: str  #: in tests and on the command line
    fault: str
    happens: str
    kept: str
    remedy: str  #: for the user
    run: Callable[[Bench], str]
