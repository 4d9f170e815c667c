"""The rule of successive halving: rungs, promotions, and that they follow from what is kept."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attngraft.errors import UsageError
from attngraft.study.ladder import Ladder, expected_share, rungs
from attngraft.study.values import Halving
from attngraft.training.recipe import ScheduleConfig


def ladder(names: str, *, eta: int = 3, higher_is_better: bool = True) -> Ladder:
    return Ladder(list(names), [1, 3], epochs=9, eta=eta, metric="top1", higher_is_better=higher_is_better)


@pytest.mark.parametrize(
    ("halving", "epochs", "expected"),
    [
        (Halving(3), 30, [3, 10]),  # 1 lies within the three epochs of warm-up
        (Halving(2), 30, [3, 7, 15]),
        (Halving(3, 2), 30, [2, 6, 18]),
        (Halving(3), 9, [1, 3]),
        (Halving(4), 2, None),
        (Halving(2, 5), 5, None),
    ],
)
def test_rungs(halving: Halving, epochs: int, expected: list[int] | None) -> None:
    schedule = ScheduleConfig(epochs=epochs)
    if expected is None:
        with pytest.raises(UsageError, match="no room for a rung"):
            rungs(halving, schedule)
    else:
        assert rungs(halving, schedule) == expected


def test_the_expected_share() -> None:
    """Of 9 variants, 9 train 1 epoch, 3 train 2 more, and 1 trains 6 more: 21 of 81 epochs."""
    assert expected_share(Halving(3), ScheduleConfig(epochs=9), variants=9) == pytest.approx(21 / 81)
    assert expected_share(Halving(3), ScheduleConfig(epochs=9), variants=1) == 1


def test_nobody_waits_and_a_promotion_stands() -> None:
    it = ladder("abcdef")
    for name, score in (("a", 0.5), ("b", 0.4)):
        it.arrive(name, 1, score)
    assert it.until("a") == 1  # one of two is more than a third
    it.arrive("c", 1, 0.3)
    assert (it.until("a"), it.until("b")) == (3, 1)
    for name, score in (("d", 0.6), ("e", 0.7), ("f", 0.8)):
        it.arrive(name, 1, score)
    assert {name for name in "abcdef" if it.until(name) == 3} == {"a", "d", "e", "f"}  # each was the best when it came
    for name, score in (("a", 0.6), ("e", 0.8)):
        it.arrive(name, 3, score)
    assert it.until("e") == 3  # others are still to come
    it.arrive("d", 3, 0.7)
    assert [it.until(name) for name in "adef"] == [3, 3, 9, 3]


def test_few_variants_still_have_one_that_goes_on() -> None:
    it = ladder("ab")
    it.arrive("a", 1, 0.5)
    assert it.until("a") == 1
    it.arrive("b", 1, 0.4)
    assert (it.until("a"), it.until("b")) == (3, 1)


def test_lower_may_be_better_and_no_number_is_never_good() -> None:
    it = ladder("abc", higher_is_better=False)
    for name, score in (("a", None), ("b", 0.2), ("c", 0.1)):
        it.arrive(name, 1, score)
    assert [it.until(name) for name in "abc"] == [1, 1, 3]


def test_nobody_waits_for_one_that_failed() -> None:
    it = ladder("ab")
    it.arrive("a", 1, 0.5)
    it.lose("b")
    assert it.until("a") == 3
    it.arrive("b", 1, 0.9)  # tried again, later
    assert it.until("b") == 3


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(2, 4), st.booleans())
def test_decisions_follow_from_what_is_kept(seed: int, count: int, eta: int, higher_is_better: bool) -> None:
    """A study with any order of arrivals, with failures: `Ladder.of` decides the same, and somebody comes to the end."""
    chance = random.Random(seed)
    names = [f"v{number}" for number in range(count)]
    it = Ladder(names, [1, 2, 5], epochs=9, eta=eta, metric="top1", higher_is_better=higher_is_better)
    at, lost = dict.fromkeys(names, 0), set()
    while ready := [name for name in names if name not in lost and at[name] < it.until(name)]:
        name = chance.choice(ready)
        if chance.random() < 0.1:
            it.lose(name)
            lost.add(name)
            continue
        at[name] = it.until(name)
        if at[name] < 9:
            it.arrive(name, at[name], chance.choice([None, chance.random(), 0.5]))
    kept = it.result()
    again = Ladder.of(kept, names)
    assert again.result() == kept
    assert [again.until(name) for name in names] == [it.until(name) for name in names]
    assert len(lost) == count or 9 in at.values()
    for rung in (1, 2, 5):
        here = [each for each in kept.standings if each.epoch == rung]
        assert sum(each.promoted for each in here) >= len(here) // eta - len(lost)
