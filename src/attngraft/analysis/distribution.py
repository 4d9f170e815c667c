"""Distributions of more values than fit in memory, such as gates over a data set (HV)."""

import numpy as np
import torch
from torch import Tensor

from attngraft.errors import UsageError


class Distribution:
    """Histogram with mean, extremes and quantiles, updated batch by batch.

        by_layer = {site: Distribution(0, 1) for site in sites}
        for images in loader:
            with torch.no_grad(), attngraft.record(model, "horizontal.alpha") as recording:
                model(images)
            for site in recording:
                by_layer[site].add(recording[site]["horizontal.alpha"])
        by_layer[site].quantile(0.5)

    Mean and extremes are exact. Quantiles between `low` and `high` are accurate to the width of a bin.

    Args:
        low: lower end of the bins.
        high: upper end of the bins. Values outside are counted in the outermost bins, where quantiles are less accurate.
        bins: number of bins of equal width.

    Raises:
        UsageError: `bins` is less than 1, or `high` is not greater than `low`.
    """

    def __init__(self, low: float, high: float, *, bins: int = 200) -> None:
        if bins < 1 or not low < high:
            raise UsageError(
                f"bins must be at least 1 and high greater than low, got bins={bins}, low={low}, high={high}"
            )
        self.low, self.high = low, high
        self.counts = torch.zeros(bins, dtype=torch.int64)
        self.least, self.largest = float("inf"), float("-inf")
        self._sum = 0.0

    def add(self, numbers: Tensor) -> None:
        """Add all values of a tensor of any shape.

        Raises:
            UsageError: some values are NaN or infinite.
        """
        flat = numbers.detach().flatten().double().cpu()
        if not flat.isfinite().all():
            raise UsageError(
                f"{int((~flat.isfinite()).sum())} of {len(flat)} values are NaN or infinite; add only finite values"
            )
        if len(flat) == 0:
            return
        counts = torch.histc(flat.clamp(self.low, self.high), len(self.counts), self.low, self.high)
        self.counts += counts.long()
        self._sum += float(flat.sum())
        self.least, self.largest = min(self.least, float(flat.min())), max(self.largest, float(flat.max()))

    @property
    def total(self) -> int:
        """Number of added values."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """Mean of all added values.

        Raises:
            UsageError: nothing was added.
        """
        return self._sum / self._nonzero_total()

    def quantile(self, share: float) -> float:
        """Return a quantile, interpolated linearly within its bin.

        The result is between the smallest and largest added value.

        Raises:
            UsageError: nothing was added, or `share` is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise UsageError(f"share must be between 0 and 1, got {share}")
        rank = share * self._nonzero_total()
        below = np.concatenate([[0], self.counts.cumsum(0)])
        value = float(np.interp(rank, below, np.linspace(self.low, self.high, len(below))))
        return min(max(value, self.least), self.largest)

    def _nonzero_total(self) -> int:
        if not self.total:
            raise UsageError("the distribution is empty; add values first")
        return self.total
