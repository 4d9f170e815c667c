"""Calibration of predicted probabilities: expected calibration error and reliability diagrams."""

from collections.abc import Sequence

import numpy as np
import torch

from attngraft.results.measured import ClosedForm, calibration_error
from attngraft.results.sections import Reliability, Section

BINS = 15


def reliability(stated: Sequence[np.ndarray], true: Sequence[np.ndarray], *, bins: int = BINS) -> Reliability:
    """Return the bins of the reliability diagram over all seeds, and each seed's expected calibration error.

        error = sum_b n_b / N |mean predicted probability - observed frequency|, over bins of equal width

    Source: Guo et al. 2017, equation 3.

    Args:
        stated: per seed, the predicted probabilities (N,).
        true: per seed, the outcomes (N,).
    """
    errors = []
    for p, hit in zip(stated, true, strict=True):
        p = p.astype(float)
        gaps = np.bincount(bin_of(p, bins=bins), weights=p - hit.astype(float), minlength=bins)
        errors.append(float(np.abs(gaps).sum() / len(p)))
    probability, hit = np.concatenate(stated).astype(float), np.concatenate(true).astype(float)
    index = bin_of(probability, bins=bins)
    counts = np.bincount(index, minlength=bins)

    def means(values: np.ndarray) -> list[float | None]:
        return share_or_none(np.bincount(index, weights=values, minlength=bins), counts)

    return Reliability(counts=counts.tolist(), stated=means(probability), observed=means(hit), error_by_seed=errors)


def calibration_statistic(stated: np.ndarray, true: np.ndarray) -> ClosedForm:
    """Return the expected calibration error of K predicted probabilities per example, as a statistic.

    Args:
        stated: predicted probabilities, (N, K).
        true: outcomes, (N, K).
    """
    examples = len(stated)
    rows = np.arange(examples)[:, None] * BINS + bin_of(stated.astype(float))
    difference = stated.astype(float) - true.astype(float)
    sums = np.bincount(rows.reshape(-1), weights=difference.reshape(-1), minlength=examples * BINS)
    return calibration_error(sums.reshape(examples, BINS) / stated.shape[1])


def reliability_section(
    stated: Sequence[np.ndarray], true: Sequence[np.ndarray], *, title: str, definition: str
) -> Section:
    """Return the report section with the reliability diagram; its note starts with `definition`."""
    result = reliability(stated, true)
    return Section(
        name="reliability",
        title=title,
        note=f"{definition} ECE, the expected calibration error, is the mean distance from the diagonal over 15 bins, "
        "averaged over seeds.",
        numbers={"ECE": float(np.mean(result.error_by_seed))},
        reliability=result,
    )


def bin_of(probability: np.ndarray, *, bins: int = BINS) -> np.ndarray:
    """Return the bin index of each probability. The last bin includes 1, unlike in torchmetrics."""
    edges = torch.linspace(0, 1, bins + 1).double().numpy()  # the same edges as torchmetrics, to the last digit
    index: np.ndarray = np.clip(np.searchsorted(edges, probability, side="right") - 1, 0, bins - 1)
    return index


def share_or_none(part: np.ndarray, whole: np.ndarray) -> list[float | None]:
    """Return `part / whole` elementwise; None where `whole` is 0."""
    return [float(p / w) if w else None for p, w in zip(part, whole, strict=True)]


Shares = list[float | None]


def recall_precision_f1(
    correct: np.ndarray, predicted: np.ndarray, positives: np.ndarray
) -> tuple[Shares, Shares, Shares]:
    """Return recall, precision and F1 of each class from counts of examples; None where undefined.

    F1 is also None for classes without positives.
    """
    both = np.where(positives > 0, positives + predicted, 0)
    return share_or_none(correct, positives), share_or_none(correct, predicted), share_or_none(2 * correct, both)


def mean_over_seeds(by_seed: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return elementwise means over the seeds whose value is not None."""
    means: list[float | None] = []
    for values in zip(*by_seed, strict=True):
        known = [value for value in values if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means
