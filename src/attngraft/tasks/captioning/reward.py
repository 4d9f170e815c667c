"""CIDEr-D of token ids as the reward of self-critical training, for a batch at a time.

An n-gram is packed into one integer. The references' n-grams are weighted once and kept in sorted arrays, in which those of
a batch are found by binary search. Equal to `cider.cider_d`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from attngraft.tasks.captioning.cider import ORDERS, SIGMA

_BASE = 55_108  #: its fourth power is the largest below 2^63; one more than the largest id + 1

Ids = Sequence[int]


class Grams(NamedTuple):
    """The distinct n-grams of each caption, sorted by caption and n-gram."""

    row: np.ndarray  #: (G,), index of the caption
    key: np.ndarray  #: (G,), packed n-gram
    order: np.ndarray  #: (G,), 0 to 3
    times: np.ndarray  #: (G,), how often the caption contains it


class CiderReward:
    """CIDEr-D of sampled captions, with the document frequencies of the training captions.

    Args:
        references: token ids of one or more captions of each image, without start, end and padding.
        documents: whether a document is an image with all its captions, or one caption.

    Raises:
        ValueError: a token id is negative or above 55,106.
    """

    def __init__(
        self, references: Sequence[Sequence[Ids]], *, documents: Literal["images", "captions"] = "images"
    ) -> None:
        captions = list(chain.from_iterable(references))
        self._captions = np.array([len(each) for each in references], dtype=np.int64)
        image = np.repeat(np.arange(len(references)), self._captions)
        self._lengths = _in_bigrams(captions)

        grams = packed_ngrams(captions)
        self._keys, gram = np.unique(grams.key, return_inverse=True)
        document = image[grams.row] if documents == "images" else grams.row
        in_documents = np.unique(gram * (len(captions) + 1) + document) // (len(captions) + 1)
        number = len(references) if documents == "images" else len(captions)
        self._unknown = np.log(max(number, 1))
        self._weights = self._unknown - np.log(np.bincount(in_documents, minlength=len(self._keys)))

        values = grams.times * self._weights[gram]
        self._norms = _norms(grams, values, len(captions))
        places = image[grams.row] * len(self._keys) + gram
        sorting = np.argsort(places, kind="stable")
        sorting = sorting[values[sorting] > 0]  # others add nothing
        self._places, self._values, self._rows = places[sorting], values[sorting], grams.row[sorting]

    def score(self, hypotheses: Sequence[Ids], images: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return CIDEr-D of captions, (N,), float64.

        Args:
            hypotheses: N captions as token ids, of any lengths, without start, end and padding.
            images: index of each caption's image among the references.
        """
        images = np.asarray(images, dtype=np.int64)
        if len(hypotheses) != len(images):
            raise ValueError(f"{len(hypotheses)} captions for {len(images)} images")
        grams = packed_ngrams(hypotheses)
        gram = np.searchsorted(self._keys, grams.key)
        known = gram < len(self._keys)
        known[known] = self._keys[gram[known]] == grams.key[known]
        values = grams.times * np.full(len(gram), self._unknown)
        values[known] = grams.times[known] * self._weights[gram[known]]
        norms = _norms(grams, values, len(hypotheses))

        found = np.flatnonzero(known & (values > 0))
        places = images[grams.row[found]] * len(self._keys) + gram[found]
        start = np.searchsorted(self._places, places)
        matches = np.searchsorted(self._places, places, side="right") - start
        own = np.repeat(found, matches)  # n-gram of the batch, for each of its matches
        other = np.repeat(start - np.cumsum(matches) + matches, matches) + np.arange(matches.sum())
        row, reference, order = grams.row[own], self._rows[other], grams.order[own]
        agreement = np.minimum(values[own], self._values[other]) * self._values[other]
        agreement /= norms[row, order] * self._norms[reference, order]
        difference = _in_bigrams(hypotheses)[row] - self._lengths[reference]
        sums = np.bincount(row, agreement * np.exp(-(difference**2) / (2 * SIGMA**2)), minlength=len(hypotheses))
        return 10 * sums / (ORDERS * self._captions[images])


def packed_ngrams(captions: Sequence[Ids]) -> Grams:
    """Return the distinct n-grams of 1 to 4 ids in each caption."""
    lengths = np.array([len(each) for each in captions], dtype=np.int64)
    ids = np.fromiter(chain.from_iterable(captions), dtype=np.int64, count=int(lengths.sum()))
    if len(ids) and not 0 <= ids.min() <= ids.max() < _BASE - 1:
        raise ValueError(f"token ids from {ids.min()} to {ids.max()}; n-grams are packed for ids from 0 to {_BASE - 2}")
    rows = np.repeat(np.arange(len(lengths)), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(ids))  # tokens from here to the caption's end
    key = np.zeros(len(ids), dtype=np.int64)
    parts = []
    for order in range(min(ORDERS, len(ids))):
        key = key[: len(ids) - order] * _BASE + ids[order:] + 1  # no digit is 0, so orders differ
        complete = left[: len(key)] > order
        parts.append((rows[: len(key)][complete], key[complete], np.full(complete.sum(), order)))
    row, keys, orders = (np.concatenate(each) for each in zip(*parts, strict=True)) if parts else [ids] * 3
    sorting = np.lexsort((keys, row))
    row, keys, orders = row[sorting], keys[sorting], orders[sorting]
    new = np.flatnonzero(np.append(True, (np.diff(row) != 0) | (np.diff(keys) != 0))) if len(row) else ids
    return Grams(row[new], keys[new], orders[new], np.diff(np.append(new, len(row))))


def _norms(grams: Grams, values: np.ndarray, captions: int) -> np.ndarray:
    """Return the norm of each caption's weighted n-grams, (captions, 4)."""
    squares = np.bincount(grams.row * ORDERS + grams.order, values**2, minlength=captions * ORDERS)
    return np.sqrt(squares).reshape(captions, ORDERS)


def _in_bigrams(captions: Sequence[Ids]) -> np.ndarray:
    return np.array([max(len(each) - 1, 0) for each in captions], dtype=np.int64)
