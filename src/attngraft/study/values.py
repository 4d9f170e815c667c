"""Values that a study takes as text: seeds, durations, and how to halve."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from attngraft.errors import UsageError

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?")


def parse_seeds(value: str | int | Sequence[int]) -> tuple[int, ...]:
    """`3` is the seeds 0, 1, 2; `5,7` are these; `5,` is 5 alone. A list is taken as it is.

    Raises:
        UsageError: no seed, one given twice, or something that is no whole number from 0 on.
    """
    refusal = UsageError(f"seeds: a number of seeds (3) or seeds with commas (5,7) are expected, not {value!r}")
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isdecimal() for part in parts[:-1]) or not (
            parts[-1].isdecimal() or (parts[-1] == "" and parts[:-1])
        ):
            raise refusal
        numbers = [int(part) for part in parts if part]
        seeds = tuple(range(numbers[0])) if len(parts) == 1 else tuple(numbers)
    elif isinstance(value, int) and not isinstance(value, bool):
        seeds = tuple(range(value))
    elif isinstance(value, list | tuple) and all(
        isinstance(each, int) and not isinstance(each, bool) for each in value
    ):
        seeds = tuple(value)
    else:
        raise refusal
    if not seeds or min(seeds) < 0:
        raise refusal
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds: a seed is given twice in {value!r}")
    return seeds


@dataclass(frozen=True)
class Halving:
    """Asynchronous successive halving: at each rung of epochs the best 1 / `eta` of the variants go on."""

    eta: int = 3
    first: int | None = None  #: the first rung's epoch, later ones are `eta` times as far; None: counted from the end

    def __str__(self) -> str:
        return str(self.eta) if self.first is None else f"{self.eta},{self.first}"


def parse_halving(value: str | int) -> Halving | None:
    """`3` lets the best third go on; `3,2` also says that the first rung is after epoch 2; `off` is none.

    Raises:
        UsageError: something else.
    """
    if value == "off":
        return None
    parts = [part.strip() for part in str(value).split(",")]
    if len(parts) > 2 or not all(part.isdecimal() for part in parts) or int(parts[0]) < 2 or "0" in parts[1:]:
        raise UsageError(
            "halving: a factor from 2 on (3: the best third goes on), optionally with the first rung's epoch (3,2), or "
            f"off is expected, not {value!r}"
        )
    return Halving(int(parts[0]), int(parts[1]) if parts[1:] else None)


def parse_duration(value: str) -> float:
    """Seconds of `90s`, `10m`, `1.5h`, `1h30m`.

    Raises:
        UsageError: something else, or nothing at all.
    """
    found = _DURATION.fullmatch(value.strip().replace(" ", ""))
    hours, minutes, seconds = (float(part or 0) for part in found.groups()) if found else (0.0, 0.0, 0.0)
    total = 3600 * hours + 60 * minutes + seconds
    if total <= 0:
        raise UsageError(f"time budget: a duration with its unit is expected (90s, 10m, 1h30m), not {value!r}")
    return total


def shown_duration(seconds: float) -> str:
    """A duration for people: 45 s, 12 min, 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
