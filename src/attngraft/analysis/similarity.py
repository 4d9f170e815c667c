"""How alike the layers of two models represent the same images: linear CKA, over any number of batches."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from attngraft.errors import UsageError

#: the share of its kernel's size below which a layer's own HSIC is rounding, in float64 of float32 features
_ROUNDING = 1e-13


class CentredKernelAlignment:
    """Linear CKA between every layer of one model and every layer of another, estimated batch by batch.

    For features X (n, p) and Y (n, q) of the same n images, with K = X X^T and L = Y Y^T,

        CKA = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)),

    between 0 and 1 but for the estimate's error; 1 for features that differ by a rotation, a shift and a scale. HSIC is the
    unbiased estimate of Song et al. (2012), whose mean over batches does not depend on how large they are (Nguyen, Raghu
    and Kornblith 2021, equations 3 to 5):

        HSIC(K, L) = (tr(K' L') + sum(K') sum(L') / ((n - 1)(n - 2)) - 2 sum(K' L') / (n - 2)) / (n (n - 3)),

    K' and L' with zeros on their diagonals.

        alignment = CentredKernelAlignment()
        for images in loader:
            with attngraft.record(first, "mlp.end") as a, attngraft.record(second, "mlp.end") as b:
                first(images), second(images)
            alignment.add({site: a[site]["mlp.end"] for site in a}, {site: b[site]["mlp.end"] for site in b})
        alignment.matrix()  # (layers of first, layers of second)
    """

    def __init__(self) -> None:
        self.first: tuple[str, ...] = ()
        self.second: tuple[str, ...] = ()
        self._both: Tensor | None = None
        self._alone: tuple[Tensor, Tensor] | None = None
        self._sizes: tuple[Tensor, Tensor] | None = None  # what a layer's own HSIC would be, were it not centred

    def add(self, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
        """Features (n, ...) by layer of one batch; all axes but the first are taken together.

        Raises:
            UsageError: fewer than four images, other layers than before, or models that saw unlike numbers of images.
        """
        ours, theirs = (_kernels(features) for features in (first, second))
        if len(ours) == 0 or len(theirs) == 0 or ours.shape[1:] != theirs.shape[1:] or ours.shape[1] < 4:
            raise UsageError("CKA compares layers that saw the same images, four or more in a batch")
        names = tuple(first), tuple(second)
        if self._both is not None and names != (self.first, self.second):
            raise UsageError("the layers are others than in the batch before")
        self.first, self.second = names
        both = torch.stack([_hsic(kernel, theirs) for kernel in ours])
        alone = _hsic(ours, ours), _hsic(theirs, theirs)
        sizes = _size(ours), _size(theirs)
        if self._both is None or self._alone is None or self._sizes is None:
            self._both, self._alone, self._sizes = both, alone, sizes
        else:
            self._sizes = self._sizes[0] + sizes[0], self._sizes[1] + sizes[1]
            self._both = self._both + both
            self._alone = self._alone[0] + alone[0], self._alone[1] + alone[1]

    def matrix(self) -> Tensor:
        """CKA (layers of the first model, layers of the second), in float64.

        NaN for a layer that is the same for all images, whose own HSIC is 0 but for rounding.

        Raises:
            UsageError: nothing was added.
        """
        if self._both is None or self._alone is None or self._sizes is None:
            raise UsageError("no batch was added")
        ours, theirs = (
            torch.where(alone > _ROUNDING * size, alone, torch.nan)
            for alone, size in zip(self._alone, self._sizes, strict=True)
        )
        return self._both / (ours[:, None] * theirs[None, :]).sqrt()


def _kernels(features: Mapping[str, Tensor]) -> Tensor:
    """K' of each layer, (layers, n, n)."""
    flat = [each.flatten(1).double() for each in features.values()]
    if len({len(each) for each in flat}) > 1:
        raise UsageError("CKA compares layers that saw the same images, four or more in a batch")
    return torch.stack([(each @ each.T).fill_diagonal_(0) for each in flat]) if flat else torch.empty(0, 0, 0)


def _size(kernels: Tensor) -> Tensor:
    n = kernels.shape[-1]
    return kernels.square().sum((-2, -1)) / (n * (n - 3))


def _hsic(first: Tensor, second: Tensor) -> Tensor:
    """Of kernels (..., n, n), their diagonals zero."""
    n = first.shape[-1]
    trace = (first * second).sum((-2, -1))
    sums = first.sum((-2, -1)) * second.sum((-2, -1)) / ((n - 1) * (n - 2))
    crossed = (first.sum(-1) * second.sum(-1)).sum(-1) * 2 / (n - 2)
    return (trace + sums - crossed) / (n * (n - 3))
