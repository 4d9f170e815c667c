"""Captions without a model."""

from __future__ import annotations

import numpy as np
import pytest

from attngraft.tasks.captioning import floors
from attngraft.tasks.captioning.cider import cider_d
from attngraft.tasks.captioning.floors import constant_caption, human_captions, random_captions
from tests.tasks.captioning import captions


@pytest.mark.parametrize("at_once", [1, 25, 10_000])
def test_no_candidate_is_better_than_the_constant_caption(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "_AT_ONCE", at_once)
    references, candidates = captions.random_references(10), captions.random_captions(30, words=20)
    means = [cider_d([each] * 10, references).mean() for each in candidates]
    assert constant_caption(candidates, references) == candidates[int(np.argmax(means))]


def test_random_captions_are_candidates() -> None:
    candidates = [["a"], ["b"], ["c"]]
    found = random_captions(candidates, 50)
    assert len(found) == 50
    assert {each[0] for each in found} == {"a", "b", "c"}
    assert found == random_captions(candidates, 50) != random_captions(candidates, 50, seed=1)


def test_the_last_reference_is_the_human_caption() -> None:
    assert human_captions([[["a"], ["b"], ["c"]], [["d"]], [["e"], ["f"]]]) == (
        [["c"], ["f"]],
        [[["a"], ["b"]], [["e"]]],
    )
