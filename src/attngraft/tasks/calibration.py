"""How far stated probabilities can be believed: expected calibration error and the bins behind it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from attngraft.results.sections import Reliability

BINS = 15


def reliability(stated: Sequence[np.ndarray], true: Sequence[np.ndarray], *, bins: int = BINS) -> Reliability:
    """Per seed the stated probabilities (N,) and whether each came true (N,).

    The error of a seed is sum_b n_b / N |mean stated - share true| over bins of equal width (Guo et al. 2017, equation 3);
    the bins that are shown hold all seeds.
    """
    errors = [_error(p.astype(float), hit.astype(float), bins) for p, hit in zip(stated, true, strict=True)]
    probability, hit = np.concatenate(stated).astype(float), np.concatenate(true).astype(float)
    place = bin_of(probability, bins=bins)
    counts = np.bincount(place, minlength=bins)

    def means(values: np.ndarray) -> list[float | None]:
        sums = np.bincount(place, weights=values, minlength=bins)
        return [float(total / count) if count else None for total, count in zip(sums, counts, strict=True)]

    return Reliability(counts=counts.tolist(), stated=means(probability), observed=means(hit), error_by_seed=errors)


def _error(stated: np.ndarray, true: np.ndarray, bins: int) -> float:
    gaps = np.bincount(bin_of(stated, bins=bins), weights=stated - true, minlength=bins)
    return float(np.abs(gaps).sum() / len(stated))


def bin_of(probability: np.ndarray, *, bins: int = BINS) -> np.ndarray:
    """The bin of each probability; 1 is in the last one (torchmetrics gives it a bin more, of its own)."""
    edges = torch.linspace(0, 1, bins + 1).double().numpy()  # torchmetrics' own, to the last digit
    place: np.ndarray = np.clip(np.searchsorted(edges, probability, side="right") - 1, 0, bins - 1)
    return place


def share_or_none(part: np.ndarray, whole: np.ndarray) -> list[float | None]:
    """`part / whole` by entry; None where the whole is 0."""
    return [float(p / w) if w else None for p, w in zip(part, whole, strict=True)]


def mean_over_seeds(by_seed: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Means entry by entry over the seeds that have a value there."""
    found = []
    for values in zip(*by_seed, strict=True):
        known = [value for value in values if value is not None]
        found.append(sum(known) / len(known) if known else None)
    return found
