"""The reward equals the plain form of CIDEr-D."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from attngraft.tasks.captioning.cider import Frequencies, cider_d
from attngraft.tasks.captioning.reward import CiderReward
from tests.tasks.captioning.captions import flickr8k, random_captions, random_references


@pytest.mark.parametrize("documents", ["images", "captions"])
def test_reward_is_cider_d(documents: Literal["images", "captions"]) -> None:
    references = random_references(20)
    units = references if documents == "images" else [[each] for each in chain.from_iterable(references)]
    captions = random_captions(100, words=40)  # 10 ids are in no reference
    images = np.arange(100) % 20
    found = CiderReward(references, documents=documents).score(captions, images)
    expected = cider_d(captions, [references[image] for image in images], frequencies=Frequencies.of(units))
    assert found == pytest.approx(expected, abs=1e-12)
    assert (found > 0.01).sum() > 30


def test_reward_of_flickr8k_is_the_score_of_its_words(shared: Path) -> None:
    captions = flickr8k(shared, "test")
    ids: dict[str, int] = {}
    numbered = [[[ids.setdefault(word, len(ids)) for word in each] for each in image] for image in captions]
    found = CiderReward([each[:-1] for each in numbered]).score([each[-1] for each in numbered], range(len(numbered)))
    expected = cider_d([each[-1] for each in captions], [each[:-1] for each in captions])
    assert found == pytest.approx(expected, abs=1e-12)


def test_empty_captions_and_images_in_any_order() -> None:
    reward = CiderReward([[[1, 2]], [[3], []], [[0, 1, 0]]])
    assert reward.score([], []).tolist() == []
    assert reward.score([[], []], [0, 1]).tolist() == [0, 0]
    assert reward.score([[3], [1, 2], [3], [7]], [1, 0, 0, 2]) == pytest.approx([1.25, 5, 0, 0])


def test_one_image_has_no_reward() -> None:
    assert CiderReward([[[1, 2], [3]]]).score([[1, 2]], [0]).tolist() == [0]


def test_the_largest_ids_do_not_overflow() -> None:
    largest = [55_106] * 4
    assert CiderReward([[largest], [[0]]]).score([largest], [0]) == pytest.approx([10])
    with pytest.raises(ValueError, match="55107; n-grams are packed for ids from 0 to 55106"):
        CiderReward([[[55_107]]])
    with pytest.raises(ValueError, match="from -1 to 2"):
        CiderReward([[[1]]]).score([[2, -1]], [0])
    with pytest.raises(ValueError, match="2 captions for 1 images"):
        CiderReward([[[1]]]).score([[1], [1]], [0])
