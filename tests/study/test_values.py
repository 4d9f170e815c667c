"""Seeds and durations as people write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attngraft.counting import format_duration
from attngraft.errors import UsageError
from attngraft.study.config import parse_duration, parse_seeds


@pytest.mark.parametrize(
    ("given_", "seeds"),
    [("3", (0, 1, 2)), ("5,7", (5, 7)), ("5,", (5,)), (" 1 , 2 ", (1, 2)), (2, (0, 1)), ([4, 9], (4, 9)), ("1", (0,))],
)
def test_seeds(given_: Any, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(given_) == seeds


@pytest.mark.parametrize(
    "given_", ["", "0", 0, -1, "a", "1,1", [2, 2], [], "1,,2", ",", [-1], True, [True], 1.5, None, "-3"]
)
def test_no_seeds(given_: Any) -> None:
    with pytest.raises(UsageError, match="seed"):
        parse_seeds(given_)


@given(st.lists(st.integers(0, 10**6), min_size=2, unique=True))
def test_any_list_of_seeds(seeds: list[int]) -> None:
    assert parse_seeds(",".join(map(str, seeds))) == tuple(seeds)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("10 min", 600), ("1.5h", 5400), ("1h30m", 5400), ("1h 2m 3s", 3723)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-3m", "0s", "ten minutes", "5d", "1m1h"])
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError, match="duration with its unit"):
        parse_duration(text)


def test_durations_for_people() -> None:
    assert [format_duration(s) for s in (45, 600, 3 * 3600 + 300)] == ["45 s", "10 min", "3 h 05 min"]
