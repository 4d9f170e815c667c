"""Similarity of the layers of two models on the same images: linear CKA over any number of batches."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from attngraft.analysis.layers import ticks
from attngraft.analysis.panels import mean, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content
from attngraft.analysis.tensors import recorded
from attngraft.errors import UsageError
from attngraft.results.analysis import Grid

#: HSIC(K, K) below this fraction of its value without centering is a rounding error (float64, float32 features)
_ROUNDING = 1e-13

_LEAST = 4  #: smallest number of images in a batch for the unbiased estimate

_UNEQUAL = "CKA requires features of the same images for all layers, with at least four images per batch"


class CentredKernelAlignment:
    """Linear CKA between all layers of one model and all layers of another, estimated batch by batch.

    For features X (n, p) and Y (n, q) of the same n images, with K = X X^T and L = Y Y^T,

        CKA = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)),

    which is between 0 and 1 up to estimation error, and 1 for features that differ by a rotation, a shift and a scale. HSIC
    is estimated without bias (Song et al. 2012), so that its mean over batches does not depend on the batch size (Nguyen,
    Raghu and Kornblith 2021, equations 3 to 5):

        HSIC(K, L) = (tr(K' L') + sum(K') sum(L') / ((n - 1)(n - 2)) - 2 sum(K' L') / (n - 2)) / (n (n - 3)),

    where K' and L' are K and L with the diagonal set to 0.

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
        #: sums over batches: HSIC(K, L), HSIC(K, K), HSIC(L, L), then HSIC(K, K) and HSIC(L, L) without centering
        self._sums: tuple[Tensor, ...] | None = None

    def add(self, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
        """Add the features (n, ...) of one batch by layer; all axes but the first are flattened.

        Raises:
            UsageError: there are fewer than four images, the numbers of images differ, or the layers are not those of the
                previous batches.
        """
        a, b = _kernels(first), _kernels(second)
        if len(a) == 0 or len(b) == 0 or a.shape[1:] != b.shape[1:] or a.shape[1] < _LEAST:
            raise UsageError(_UNEQUAL)
        names = tuple(first), tuple(second)
        if self._sums is not None and names != (self.first, self.second):
            raise UsageError("the layers differ from the previous batch; add the same layers for every batch")
        self.first, self.second = names
        both = torch.stack([_hsic(kernel, b) for kernel in a])
        batch = both, _hsic(a, a), _hsic(b, b), _uncentered(a), _uncentered(b)
        sums = self._sums or tuple(map(torch.zeros_like, batch))
        self._sums = tuple(total + each for total, each in zip(sums, batch, strict=True))

    def matrix(self) -> Tensor:
        """Return CKA, (layers of the first model, layers of the second), in float64.

        Entries are NaN for a layer with the same features for all images, since HSIC(K, K) is 0 up to rounding.

        Raises:
            UsageError: nothing was added.
        """
        if self._sums is None:
            raise UsageError("no features were added; call add first")
        both, a, b, size_a, size_b = self._sums
        a = torch.where(a > _ROUNDING * size_a, a, torch.nan)
        b = torch.where(b > _ROUNDING * size_b, b, torch.nan)
        return both / (a[:, None] * b[None, :]).sqrt()


def _kernels(features: Mapping[str, Tensor]) -> Tensor:
    """Return K' of each layer, (layers, n, n)."""
    flat = [each.flatten(1).double() for each in features.values()]
    if len({len(each) for each in flat}) > 1:
        raise UsageError(_UNEQUAL)
    return torch.stack([(each @ each.T).fill_diagonal_(0) for each in flat]) if flat else torch.empty(0, 0, 0)


def _uncentered(kernels: Tensor) -> Tensor:
    n = kernels.shape[-1]
    return kernels.square().sum((-2, -1)) / (n * (n - 3))


def _hsic(first: Tensor, second: Tensor) -> Tensor:
    """Return the HSIC of kernels (..., n, n) with zero diagonals."""
    n = first.shape[-1]
    trace = (first * second).sum((-2, -1))
    sums = first.sum((-2, -1)) * second.sum((-2, -1)) / ((n - 1) * (n - 2))
    crossed = (first.sum(-1) * second.sum(-1)).sum(-1) * 2 / (n - 2)
    return (trace + sums - crossed) / (n * (n - 3))


def run(request: AnalysisRequest) -> Content:
    first, second = request.models[0], request.models[-1]
    alignment, batches = CentredKernelAlignment(), 0
    with torch.no_grad():
        for x, y in zip(request.batches(first, least=_LEAST), request.batches(second, least=_LEAST), strict=True):
            a, b = (
                recorded(model, inputs, "mlp.end", sites=request.sites) for model, inputs in ((first, x), (second, y))
            )
            alignment.add({site: a[site]["mlp.end"] for site in a}, {site: b[site]["mlp.end"] for site in b})
            batches += 1
    if not batches:
        raise UsageError(
            f"cka: requires at least {_LEAST} images in a batch, got {min(len(request.images), request.limit)} images with "
            f"--batch {request.batch}; use more images or a larger batch"
        )
    matrix = alignment.matrix().clamp(0, 1)
    values = [[None if math.isnan(each) else each for each in row] for row in matrix.tolist()]
    diagonal = mean(row[index] for index, row in enumerate(values)) if matrix.shape[0] == matrix.shape[1] else None
    return Content(
        note="CKA between the MLP outputs (inside the residual branch) of each layer of both models, on the same images; it "
        "is 1 for features that differ by a rotation and a scale. The unbiased estimate can lie slightly outside of the "
        "range 0 to 1 and is clipped. Two runs that differ only in their seed show the effect of initialization. Cells of "
        "layers with the same features for all images are empty.",
        panels=[
            Grid(
                title="CKA",
                rows=ticks(alignment.first),
                columns=ticks(alignment.second),
                row_axis=first.name,
                column_axis=second.name,
                cells=values,
                low=0.0,
                high=1.0,
            )
        ],
        table=table(
            [f"layer of {first.name}", f"layer of {second.name}", "CKA"],
            [
                (a, b, values[row][column])
                for row, a in enumerate(alignment.first)
                for column, b in enumerate(alignment.second)
            ],
        ),
        numbers={} if diagonal is None else {"mean over layers of one depth": diagonal},
    )


ANALYSIS = Analysis(
    name="cka",
    title="Similarity of layers (CKA)",
    summary="CKA between the layers of two models, or of one with itself",
    source="Nguyen, Raghu and Kornblith 2021",
    run=run,
    models=(1, 2),
)
