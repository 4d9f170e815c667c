"""The rule of successive halving: rungs, promotions, and that they follow from what is kept."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attngraft.errors import UsageError
from attngraft.study.config import Halving
from attngraft.study.rungs import Rungs, expected_share, rung_epochs
from attngraft.training.recipe import ScheduleConfig


def rungs(names: str, *, eta: int = 3, higher_is_better: bool = True) -> Rungs:
    return Rungs(list(names), [1, 3], total=9, eta=eta, metric="top1", higher_is_better=higher_is_better)


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
        with pytest.raises(UsageError, match="too few for a rung"):
            rung_epochs(halving, schedule)
    else:
        assert rung_epochs(halving, schedule) == expected


def test_the_expected_share() -> None:
    """Of 9 variants, 9 train 1 epoch, 3 train 2 more, and 1 trains 6 more: 21 of 81 epochs."""
    assert expected_share(Halving(3), ScheduleConfig(epochs=9), variants=9) == pytest.approx(21 / 81)
    assert expected_share(Halving(3), ScheduleConfig(epochs=9), variants=1) == 1


def test_nobody_waits_and_a_promotion_stands() -> None:
    it = rungs("abcdef")
    for name, score in (("a", 0.5), ("b", 0.4)):
        it.add(name, 1, score)
    assert it.limit("a") == 1  # one of two is more than a third
    it.add("c", 1, 0.3)
    assert (it.limit("a"), it.limit("b")) == (3, 1)
    for name, score in (("d", 0.6), ("e", 0.7), ("f", 0.8)):
        it.add(name, 1, score)
    assert {name for name in "abcdef" if it.limit(name) == 3} == {"a", "d", "e", "f"}  # each was the best when it came
    for name, score in (("a", 0.6), ("e", 0.8)):
        it.add(name, 3, score)
    assert it.limit("e") == 3  # others are still to come
    it.add("d", 3, 0.7)
    assert [it.limit(name) for name in "adef"] == [3, 3, 9, 3]


def test_few_variants_still_have_one_that_goes_on() -> None:
    it = rungs("ab")
    it.add("a", 1, 0.5)
    assert it.limit("a") == 1
    it.add("b", 1, 0.4)
    assert (it.limit("a"), it.limit("b")) == (3, 1)


def test_lower_may_be_better_and_no_number_is_never_good() -> None:
    it = rungs("abc", higher_is_better=False)
    for name, score in (("a", None), ("b", 0.2), ("c", 0.1)):
        it.add(name, 1, score)
    assert [it.limit(name) for name in "abc"] == [1, 1, 3]


def test_nobody_waits_for_one_that_failed() -> None:
    it = rungs("ab")
    it.add("a", 1, 0.5)
    it.lose("b")
    assert it.limit("a") == 3
    it.add("b", 1, 0.9)  # tried again, later
    assert it.limit("b") == 3


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(2, 4), st.booleans())
def test_decisions_follow_from_what_is_kept(seed: int, count: int, eta: int, higher_is_better: bool) -> None:
    """A study with any order of arrivals, with failures: `Rungs.replay` decides the same, and somebody comes to the end."""
    chance = random.Random(seed)
    names = [f"v{number}" for number in range(count)]
    it = Rungs(names, [1, 2, 5], total=9, eta=eta, metric="top1", higher_is_better=higher_is_better)
    at, lost = dict.fromkeys(names, 0), set()
    while ready := [name for name in names if name not in lost and at[name] < it.limit(name)]:
        name = chance.choice(ready)
        if chance.random() < 0.1:
            it.lose(name)
            lost.add(name)
            continue
        at[name] = it.limit(name)
        if at[name] < 9:
            it.add(name, at[name], chance.choice([None, chance.random(), 0.5]))
    kept = it.result()
    again = Rungs.replay(kept, names)
    assert again.result() == kept
    assert [again.limit(name) for name in names] == [it.limit(name) for name in names]
    assert len(lost) == count or 9 in at.values()
    for rung in (1, 2, 5):
        here = [each for each in kept.standings if each.epoch == rung]
        assert sum(each.promoted for each in here) >= len(here) // eta - len(lost)
