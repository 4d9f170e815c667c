"""Captions without a model."""

from __future__ import annotations

import numpy as np
import pytest

from attngraft.tasks.captioning import floors as module
from attngraft.tasks.captioning.cider import cider_d
from attngraft.tasks.captioning.floors import CONSTANT, HUMAN, RANDOM, constant_caption, floors
from attngraft.tasks.captioning.metrics import measure, statistics
from tests.tasks.captioning import captions

TRAIN = [["a dog runs", "the dog"], ["a dog runs fast", "dogs"], ["two men", "men sit"]]
JUDGED = [["a dog runs", "a dog runs away"], ["a man", "a man stands"]]


def words(texts: list[list[str]]) -> list[list[list[str]]]:
    return [[text.split() for text in of_image] for of_image in texts]


@pytest.mark.parametrize("at_once", [1, 25, 10_000])
def test_no_candidate_is_better_than_the_constant_caption(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    references, candidates = captions.random_references(10), captions.random_captions(30, words=20)
    means = [cider_d([each] * 10, references).mean() for each in candidates]
    assert constant_caption(candidates, references) == candidates[int(np.argmax(means))]


def test_floors_are_the_metrics_of_captions_without_a_model() -> None:
    constant, known = floors(TRAIN, {"val": JUDGED})
    caption, references, found = constant.split(), words(JUDGED), known["val"]
    assert constant in {captions[0] for captions in TRAIN}
    assert found[CONSTANT] == measure(statistics([caption, caption], references)).values
    last, others = [each[-1] for each in references], [each[:-1] for each in references]
    assert found[HUMAN] == measure(statistics(last, others)).values
    assert (constant, known) == floors(TRAIN, {"val": JUDGED}) and found[RANDOM].keys() == found[CONSTANT].keys()


def test_images_with_one_caption_have_no_human_one() -> None:
    assert HUMAN not in floors(TRAIN, {"val": [["a dog"], ["men"]]})[1]["val"]
