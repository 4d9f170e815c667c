"""BLEU, chrF2++, perplexity and accuracy of translations, as formulas of counts per sentence.

Sacrebleu counts the n-grams of each sentence; the formulas are its own, for many sums of counts at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attngraft.errors import ConfigError
from attngraft.results.column_rules import COUNT, ColumnRules
from attngraft.results.measured import ClosedForm, Measured
from attngraft.results.records import RecordTable

MISSING = "task translation: BLEU requires sacrebleu; run pip install 'attngraft[text]'"
_CHARACTERS, _WORDS = 6, 2  #: orders of n-grams in chrF2++
_BETA = 2  #: weight of recall in chrF2++

_TRANSLATED, _REFERENCES, _BOTH = (("chrf", slice(start, None, 3)) for start in range(3))  #: see `chrf`
RULES = ColumnRules(
    ranges=dict.fromkeys(("nll", "tokens", "correct", "bleu", "chrf"), COUNT),
    ordered=[
        ("correct", "tokens"),
        (("bleu", slice(2, 6)), ("bleu", slice(6, 10))),
        (_BOTH, _TRANSLATED),
        (_BOTH, _REFERENCES),
    ],
    truth=[("bleu", slice(1, 2))],  # lengths of references
)


class Scorer:
    """Sacrebleu's BLEU and chrF2++ counts of sentences.

    Args:
        lower_case: ignore case, for models of lower-cased words.
        language: target language; sacrebleu splits Chinese, Japanese and Korean in its own way, and others by `13a`.

    Raises:
        ConfigError: sacrebleu, or a package that it needs for the language, is not installed.
    """

    def __init__(self, *, lower_case: bool = False, language: str = "") -> None:
        try:
            from sacrebleu.metrics.bleu import BLEU
            from sacrebleu.metrics.chrf import CHRF
        except ImportError:
            raise ConfigError(MISSING) from None
        try:
            bleu = BLEU(lowercase=lower_case, trg_lang=language, force=True)
        except (ImportError, RuntimeError) as error:
            raise ConfigError(f"task.target: {language}: sacrebleu cannot split this language ({error})") from None
        self._metrics = {"bleu": bleu, "chrf": CHRF(lowercase=lower_case, word_order=_WORDS)}

    def counts(self, translations: Sequence[str], references: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the counts of each sentence: `bleu` (N, 10) and `chrf` (N, 24)."""
        return {
            name: np.array(metric._extract_corpus_statistics(translations, [references]), dtype=np.int32)
            for name, metric in self._metrics.items()
        }

    @property
    def signatures(self) -> dict[str, str]:
        """The signatures that sacrebleu prints beside its scores."""
        self.counts([""], [""])  # they contain the number of references
        return {name: metric.get_signature().format() for name, metric in self._metrics.items()}


def bleu(sums: np.ndarray) -> np.ndarray:
    """Return BLEU (R,), from 0 to 100, with exponential smoothing.

    Args:
        sums: (R, 10): lengths of translations and references, then correct and total n-grams of orders 1 to 4.
    """
    lengths, references, correct, total = sums[:, 0], sums[:, 1], sums[:, 2:6], sums[:, 6:10]
    smoothing = np.cumprod(np.where(correct == 0, 2.0, 1.0), axis=1)
    logarithms = np.log(np.where(correct > 0, correct, 1 / smoothing) / total)
    penalty = np.exp(np.minimum(0.0, 1 - references / lengths))
    defined = (total > 0).all(axis=1) & (correct > 0).any(axis=1)
    return np.where(defined, 100 * penalty * np.exp(logarithms.mean(axis=1)), 0.0)


def chrf(sums: np.ndarray) -> np.ndarray:
    """Return chrF2++ (R,), from 0 to 100.

    Args:
        sums: (R, 24): n-grams in translations, in references and in both, for characters of orders 1 to 6 and words of 1
            and 2.
    """
    translated, references, both = np.moveaxis(sums.reshape(len(sums), _CHARACTERS + _WORDS, 3), 2, 0)
    defined = (translated > 0) & (references > 0)
    orders = np.maximum(defined.sum(axis=1), 1)
    precision, recall = (np.where(defined, both / each, 0.0).sum(axis=1) / orders for each in (translated, references))
    score = (1 + _BETA**2) * precision * recall / (_BETA**2 * precision + recall)
    return np.where(precision + recall > 0, 100 * score, 0.0)


_FORMULAS: Mapping[str, tuple[Sequence[str], Callable[[np.ndarray], np.ndarray]]] = {
    "bleu": (["bleu"], bleu),
    "chrf": (["chrf"], chrf),
    "perplexity": (["nll", "tokens"], lambda sums: np.exp(sums[:, 0] / sums[:, 1])),
    "accuracy": (["correct", "tokens"], lambda sums: sums[:, 0] / sums[:, 1]),
    "loss": (["nll", "tokens"], lambda sums: sums[:, 0] / sums[:, 1]),
}


def measure(table: RecordTable, *, units: str) -> Measured:
    """Return all metrics of translated sentences.

    Perplexity is exp(total negative log-likelihood / number of target tokens), end tokens included, without smoothing.

    Args:
        table: the statistics of `Translation.infer`.
        units: tokenizer of the target, since metrics per token can only be compared for the same tokenizer.
    """
    statistics: dict[str, Any] = {}
    for name, (columns, formula) in _FORMULAS.items():
        arrays = [table.array(column) for column in columns]
        summands = np.concatenate([each.reshape(len(each), -1).astype(float) for each in arrays], axis=1)
        statistics[name] = ClosedForm(summands, formula)
    comparable = dict.fromkeys(("perplexity", "accuracy", "loss"), units)
    values = {name: statistic.point for name, statistic in statistics.items()}
    return Measured(values=values, statistics=statistics, comparable=comparable)
