"""Captions without a model, beside which a captioner is reported."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attngraft.tasks.captioning.cider import Tokens
from attngraft.tasks.captioning.reward import CiderReward

_AT_ONCE = 10_000  #: scored captions in memory at a time


def constant_caption(candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> Tokens:
    """Return the candidate with the highest mean CIDEr-D if it is written for every image.

    Candidates should be captions of other images, and few: time grows with candidates x images, 50 microseconds each.
    """
    ids: dict[object, int] = {}

    def numbered(tokens: Tokens) -> list[int]:
        return [ids.setdefault(token, len(ids)) for token in tokens]

    reward = CiderReward([[numbered(each) for each in captions] for captions in references])
    different = list(dict.fromkeys(map(tuple, candidates)))
    images = np.arange(len(references))
    step = max(1, _AT_ONCE // len(images))
    means: list[float] = []
    for start in range(0, len(different), step):
        some = [numbered(each) for each in different[start : start + step]]
        scores = reward.score([each for each in some for _ in images], np.tile(images, len(some)))
        means.extend(scores.reshape(len(some), -1).mean(axis=1))
    return list(different[int(np.argmax(means))])


def random_captions(candidates: Sequence[Tokens], images: int, *, seed: int = 0) -> list[Tokens]:
    """Return a random candidate for each image."""
    return [candidates[index] for index in np.random.default_rng(seed).integers(len(candidates), size=images)]


def human_captions(references: Sequence[Sequence[Tokens]]) -> tuple[list[Tokens], list[Sequence[Tokens]]]:
    """Return the last reference of each image as its caption, and the others as its references.

    Images with one reference are left out. A model should be compared on the same remaining references, because scores
    grow with their number.
    """
    several = [captions for captions in references if len(captions) > 1]
    return [captions[-1] for captions in several], [captions[:-1] for captions in several]
