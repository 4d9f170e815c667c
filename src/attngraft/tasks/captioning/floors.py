"""Captions without a model, beside which a captioner is reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attngraft.tasks.captioning.cider import Tokens
from attngraft.tasks.captioning.metrics import measure, statistics
from attngraft.tasks.captioning.ptb import tokenize
from attngraft.tasks.captioning.reward import CiderReward

CONSTANT, RANDOM, HUMAN = "constant", "random", "human"

_IMAGES, _CANDIDATES = 200, 100  #: of the training part, among which the constant caption is chosen
_AT_ONCE = 10_000  #: scored captions in memory at a time


def floors(
    train: Sequence[Sequence[str]], judged: Mapping[str, Sequence[Sequence[str]]]
) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return a constant caption, and the metrics of captions without a model on the images of each part.

    `constant`: the training caption with the highest mean CIDEr-D if it is written for every training image, among 100
    captions and for 200 images; `random`: another training caption for each image; `human`: each image's last caption,
    judged by its others, if images have several.

    Args:
        train: captions of each training image.
        judged: captions of each of the images on which models are judged, by part.
    """
    some = [train[int(i)] for i in np.linspace(0, len(train) - 1, min(_IMAGES, len(train)))]
    chosen = [some[int(i)] for i in np.linspace(0, len(some) - 1, min(_CANDIDATES, len(some)))]
    tokens = [[tokenize(each) for each in captions] for captions in some]
    constant = constant_caption([tokenize(captions[0]) for captions in chosen], tokens)
    every = [caption for captions in train for caption in captions]
    return " ".join(map(str, constant)), {part: _floors(constant, every, images) for part, images in judged.items()}


def _floors(constant: Tokens, every: Sequence[str], judged: Sequence[Sequence[str]]) -> dict[str, Any]:
    drawn = np.random.default_rng(0).integers(len(every), size=len(judged))
    references = [[tokenize(each) for each in captions] for captions in judged]
    written: dict[str, Sequence[Tokens]] = {
        CONSTANT: [constant] * len(judged),
        RANDOM: [tokenize(every[i]) for i in drawn],
    }
    found = {name: dict(measure(statistics(captions, references)).values) for name, captions in written.items()}
    several = [captions for captions in references if len(captions) > 1]
    if several:
        last, others = [captions[-1] for captions in several], [captions[:-1] for captions in several]
        found[HUMAN] = dict(measure(statistics(last, others)).values)
    return found


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
