"""CIDEr-D, the agreement of captions with references in rare n-grams.

    CIDEr-D(h) = 10 / (4 |R|) sum over references r and orders n of
                 exp(-(l_h - l_r)^2 / 72) <min(h_n, r_n), r_n> / (|h_n| |r_n|)

where h_n and r_n contain count x log(D / df) of each n-gram: D documents, of which df contain it. A document is usually an
image with all its references. The length l is counted in bigrams, so it differs from the number of words by 1.

`cider_d` is the plain form; `attngraft.tasks.captioning.reward` computes the same for training.

Source: R. Vedantam, C. L. Zitnick, D. Parikh, "CIDEr: Consensus-based Image Description Evaluation", 2015.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

ORDERS = 4  #: n-grams of 1 to 4 tokens
SIGMA = 6.0  #: of the Gaussian of the difference in length

Tokens = Sequence[Hashable]  #: a caption, as words or token ids
NGram = tuple[Hashable, ...]
Vectors = tuple[list[dict[NGram, float]], list[float]]  #: of each order, and their norms


def ngrams(tokens: Tokens) -> Counter[NGram]:
    """Return the counts of all n-grams of 1 to 4 tokens."""
    return Counter(
        tuple(tokens[start : start + order])
        for order in range(1, ORDERS + 1)
        for start in range(len(tokens) - order + 1)
    )


@dataclass(frozen=True)
class Frequencies:
    """In how many documents each n-gram occurs."""

    counts: Counter[NGram]
    documents: int

    @classmethod
    def of(cls, documents: Sequence[Sequence[Tokens]]) -> Frequencies:
        """Return the frequencies in documents of one or more captions each, such as an image's references."""
        counts: Counter[NGram] = Counter()
        for captions in documents:
            counts.update(set().union(*map(ngrams, captions)))
        return cls(counts, len(documents))

    def weighted(self, tokens: Tokens) -> Vectors:
        """Return count x log(D / df) of a caption's n-grams, for each order, and the norms. Unknown n-grams have df 1."""
        vectors: list[dict[NGram, float]] = [{} for _ in range(ORDERS)]
        for gram, count in ngrams(tokens).items():
            vectors[len(gram) - 1][gram] = count * math.log(self.documents / max(1, self.counts[gram]))
        return vectors, [math.sqrt(sum(value**2 for value in vector.values())) for vector in vectors]


def cider_d(
    hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]], *, frequencies: Frequencies | None = None
) -> np.ndarray:
    """Return CIDEr-D of each image, (N,), from 0 to 10.

    Args:
        hypotheses: one caption for each image.
        references: one or more captions of each image.
        frequencies: document frequencies; by default those of `references`, an image being a document. A single image then
            scores 0, since log(D / df) is 0 for all its n-grams.
    """
    frequencies = frequencies or Frequencies.of(references)
    scores = []
    for hypothesis, captions in zip(hypotheses, references, strict=True):
        vectors = frequencies.weighted(hypothesis)
        similarities = [
            _gaussian(len(hypothesis), len(caption)) * _similarity(vectors, frequencies.weighted(caption))
            for caption in captions
        ]
        scores.append(10 * sum(similarities) / (ORDERS * len(captions)))
    return np.array(scores)


def _gaussian(first: int, second: int) -> float:
    difference = max(first - 1, 0) - max(second - 1, 0)  # in bigrams
    return math.exp(-(difference**2) / (2 * SIGMA**2))


def _similarity(hypothesis: Vectors, reference: Vectors) -> float:
    """Return the sum over orders of the clipped cosine."""
    total = 0.0
    for own, other, norm, other_norm in zip(hypothesis[0], reference[0], hypothesis[1], reference[1], strict=True):
        if norm and other_norm:
            shared = ((value, other[gram]) for gram, value in own.items() if gram in other)
            total += sum(min(first, second) * second for first, second in shared) / (norm * other_norm)
    return total
