"""Distributions of values that are too many to keep, such as head weights and gates over a data set (HV)."""

import torch
from torch import Tensor

from attngraft.errors import UsageError


class Distribution:
    """A histogram that grows batch by batch, with mean, extremes and quantiles.

        by_layer = {site: Distribution(0, 1) for site in sites}
        for images in loader:
            with torch.no_grad(), attngraft.record(model, "horizontal.alpha") as recording:
                model(images)
            for site in recording:
                by_layer[site].add(recording[site]["horizontal.alpha"])
        by_layer[site].quantile(0.5)

    The mean and the extremes are exact; quantiles are accurate to the width of a bin, between `low` and `high`.

    Args:
        low: start of the bins.
        high: end of the bins. Values outside count in the outermost bins, whose quantiles are then less accurate.
        bins: number of bins, equally wide.

    Raises:
        UsageError: no bins, or `high` is not above `low`.
    """

    def __init__(self, low: float, high: float, *, bins: int = 200) -> None:
        if bins < 1 or not low < high:
            raise UsageError(f"{bins} bins from {low} to {high}: give one or more, and a high above the low")
        self.low, self.high = low, high
        self.counts = torch.zeros(bins, dtype=torch.int64)
        self.least, self.largest = float("inf"), float("-inf")
        self._sum = 0.0

    def add(self, numbers: Tensor) -> None:
        """Count all values of a tensor of any shape.

        Raises:
            UsageError: some are NaN or infinite.
        """
        flat = numbers.detach().flatten().double().cpu()
        if not flat.isfinite().all():
            raise UsageError(f"{int((~flat.isfinite()).sum())} of {len(flat)} numbers are NaN or infinite")
        if len(flat) == 0:
            return
        bins = len(self.counts)
        index = ((flat - self.low) / (self.high - self.low) * bins).floor().clamp_(0, bins - 1).long()
        self.counts += torch.bincount(index, minlength=bins)
        self._sum += float(flat.sum())
        self.least, self.largest = min(self.least, float(flat.min())), max(self.largest, float(flat.max()))

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """
        Raises:
            UsageError: nothing was added.
        """
        return self._sum / self._nonzero_total()

    def quantile(self, share: float) -> float:
        """Quantile, by linear interpolation within its bin, between the smallest and the largest value.

        Raises:
            UsageError: nothing was added, or the share is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise UsageError(f"share={share}: give a number between 0 and 1")
        rank = share * self._nonzero_total()
        below = torch.cat([torch.zeros(1, dtype=torch.int64), self.counts.cumsum(0)]).double()
        bin_ = min(int(torch.searchsorted(below, rank, right=True)) - 1, len(self.counts) - 1)
        while self.counts[bin_] == 0:  # the share ends where a full bin ends
            bin_ -= 1
        inside = (rank - float(below[bin_])) / int(self.counts[bin_])
        value = self.low + (bin_ + min(max(inside, 0.0), 1.0)) * (self.high - self.low) / len(self.counts)
        return min(max(value, self.least), self.largest)

    def _nonzero_total(self) -> int:
        if not self.total:
            raise UsageError("nothing was added")
        return self.total
