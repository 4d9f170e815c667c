"""A suite that fails says nothing of the others: of which errors that is true, and how those of several suites are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attngraft.errors import AttngraftError

if TYPE_CHECKING:
    from attngraft.evaluation.suites.result import SuiteRun

#: what one suite may fail with while it is evaluated: an image that cannot be read, no memory, a full disk
FAILURES = (AttngraftError, RuntimeError, OSError)


class SuitesFailed(AttngraftError):
    """Some of several suites failed; the others were evaluated, and are in `found`."""

    def __init__(self, found: Sequence[SuiteRun], failed: Mapping[str, str]) -> None:
        """`failed` has the suites' errors, by what was asked for."""
        self.found, self.failed = list(found), dict(failed)
        alike: dict[str, list[str]] = {}  # weights that are not there fail every suite, and are told of once
        for text, error in failed.items():
            alike.setdefault(error, []).append(text)
        super().__init__(
            "\n".join(
                f"suite{'s' * (len(texts) > 1)} {', '.join(texts)} failed: {error}" for error, texts in alike.items()
            )
        )
