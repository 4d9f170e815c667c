"""BLEU, ROUGE-L, CIDEr-D and METEOR of captions, as defined by COCO's evaluation.

Metrics are from 0 to 100, CIDEr-D from 0 to 1000, on tokens of `ptb.tokenize`. All but METEOR are statistics over images,
for confidence intervals.
"""

from __future__ import annotations

import importlib
import math
import shutil
import threading
from collections.abc import Hashable, Mapping, Sequence
from functools import partial

import numpy as np

from attngraft.results.column_rules import COUNT, SHARE, ColumnRules
from attngraft.results.measured import ClosedForm, MeanScore, Measured, Statistic
from attngraft.suggest import first_line
from attngraft.tasks.captioning.cider import ORDERS, Frequencies, Tokens, cider_d, ngrams

DOCUMENT_FREQUENCIES = "the document frequencies of CIDEr-D"
_BETA = 1.2  #: weight of recall in ROUGE-L
_PATIENCE = 1800.0  #: seconds until METEOR's Java program is killed if it does not answer
_TINY, _SMALL = 1e-15, 1e-9  #: added to counts by COCO's evaluation, so that BLEU without matches is nearly 0


RULES = ColumnRules(
    ranges={**dict.fromkeys(("nll", "tokens", "cider", "bleu"), COUNT), "rouge_l": SHARE},
    ordered=[(("bleu", slice(2, 2 + ORDERS)), ("bleu", slice(2 + ORDERS, None)))],
    truth=["references"],
)


def statistics(
    hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]], *, frequencies: Frequencies | None = None
) -> dict[str, np.ndarray]:
    """Return what is known of each of N images: `cider` and `rouge_l` (N,), and `bleu` (N, 10).

    Args:
        hypotheses: tokens of each caption.
        references: tokens of one or more references for each caption.
        frequencies: document frequencies of CIDEr-D; by default those of all `references`.
    """
    return {
        "cider": cider_d(hypotheses, references, frequencies=frequencies),
        "rouge_l": rouge_l(hypotheses, references),
        "bleu": bleu_counts(hypotheses, references),
    }


def measure(columns: Mapping[str, np.ndarray]) -> Measured:
    """Return CIDEr-D, BLEU-1 to BLEU-4 and ROUGE-L of the `statistics`, multiplied by 100.

    Resamples of images keep the document frequencies of CIDEr-D.
    """
    found: dict[str, Statistic] = {"cider": MeanScore(100 * columns["cider"], held_fixed=DOCUMENT_FREQUENCIES)}
    for order in range(1, ORDERS + 1):
        found[f"bleu{order}"] = ClosedForm(columns["bleu"].astype(float), partial(bleu, order=order))
    found["rouge_l"] = MeanScore(100 * columns["rouge_l"])
    return Measured(values={name: each.point for name, each in found.items()}, statistics=found)


def bleu_counts(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> np.ndarray:
    """Return what BLEU sums over images, (N, 10).

    Lengths of the hypothesis and of the closest reference (the shorter of two), then correct and total n-grams of orders 1
    to 4; an n-gram is correct at most as often as it occurs in one reference.
    """
    rows = np.zeros((len(hypotheses), 2 + 2 * ORDERS))
    for row, hypothesis, captions in zip(rows, hypotheses, references, strict=True):
        length = len(hypothesis)
        row[0] = length
        row[1] = min((abs(len(each) - length), len(each)) for each in captions)[1]
        known = [ngrams(each) for each in captions]
        for gram, count in ngrams(hypothesis).items():
            row[1 + len(gram)] += min(count, max(each[gram] for each in known))
        row[2 + ORDERS :] = np.maximum(length - np.arange(ORDERS), 0)
    return rows


def bleu(sums: np.ndarray, *, order: int = ORDERS) -> np.ndarray:
    """Return BLEU (R,), from 0 to 100, up to an order from sums (R, 10) of `bleu_counts`."""
    lengths, references = sums[:, 0], sums[:, 1]
    precisions = (sums[:, 2 : 2 + order] + _TINY) / (sums[:, 2 + ORDERS : 2 + ORDERS + order] + _SMALL)
    ratio = (lengths + _TINY) / (references + _SMALL)
    penalty = np.exp(np.minimum(0.0, 1 - 1 / ratio))
    return 100 * penalty * np.exp(np.log(precisions).mean(axis=1))


def rouge_l(hypotheses: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> np.ndarray:
    """Return ROUGE-L of each image, (N,).

        (1 + beta^2) P R / (R + beta^2 P)

    where P and R are the longest common subsequence over the lengths of hypothesis and reference, each the maximum over
    the references by itself, and beta is 1.2.
    """
    scores = np.zeros(len(hypotheses))
    for index, (hypothesis, captions) in enumerate(zip(hypotheses, references, strict=True)):
        common = [longest_common_subsequence(hypothesis, each) for each in captions]
        if any(common):
            precision = max(common) / len(hypothesis)
            recall = max(length / max(len(each), 1) for length, each in zip(common, captions, strict=True))
            scores[index] = (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)
    return scores


def longest_common_subsequence(first: Tokens, second: Tokens) -> int:
    """Return the length of the longest common subsequence.

    It is computed on the bits of integers (Hyyrö, "Bit-parallel LCS-length computation revisited", 2004): the bit of
    a token of `first` is 0 where the row of the usual table grows by 1.
    """
    places = dict[Hashable, int]()
    for index, token in enumerate(first):
        places[token] = places.get(token, 0) | 1 << index
    whole = (1 << len(first)) - 1
    row = whole
    for token in second:
        matches = row & places.get(token, 0)
        row = (row + matches | row - matches) & whole
    return len(first) - row.bit_count()


def meteor(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> float | str:
    """Return METEOR 1.5 of all captions, from 0 to 100, from its Java program, or why it was not computed.

    It requires the extra `caption-java` and Java, and takes half a minute to load its table of paraphrases.
    """
    if shutil.which("java") is None:
        return "METEOR: not computed (no Java)"
    try:
        program = importlib.import_module("pycocoevalcap.meteor.meteor")
    except ImportError:
        return "METEOR: not computed (run pip install 'attngraft[caption-java]')"
    truth = {index: [" ".join(each) for each in captions] for index, captions in enumerate(references)}
    scorer, timer = None, None
    try:
        scorer = program.Meteor()
        timer = threading.Timer(_PATIENCE, scorer.meteor_p.kill)
        timer.daemon = True
        timer.start()
        score = float(scorer.compute_score(truth, {i: [" ".join(each)] for i, each in enumerate(hypotheses)})[0])
        if not math.isfinite(score):
            raise ValueError(f"the score is {score}")
        return 100 * score
    except Exception as error:  # of any class: the program may print nothing, or something else
        if scorer is not None and scorer.lock.locked():  # on which its __del__ would wait
            scorer.lock.release()
        return f"METEOR: not computed (its Java program failed: {first_line(error)})"
    finally:
        if timer is not None:
            timer.cancel()
