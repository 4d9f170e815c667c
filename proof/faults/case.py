"""One line of the table: a fault, what is promised of it, and the function that makes it and looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proof.faults.bench import Bench


class NotHere(Exception):
    """This machine does not let the fault be made; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault.

    `run` makes it and says in a few words what was measured; it raises AssertionError where a promise is broken and
    `NotHere` where the fault cannot be made.
    """

    name: str  #: for tests, and for running it alone
    fault: str
    happens: str
    kept: str
    remedy: str  #: how to go on
    run: Callable[[Bench], str]
    quick: bool = False  #: part of the default tests
