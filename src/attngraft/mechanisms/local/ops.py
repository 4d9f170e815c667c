"""The public operations of local attention, with their backends."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attngraft.dispatch import Backend, Op, operands_obstacle
from attngraft.errors import UsageError
from attngraft.mechanisms.local import eager, reference
from attngraft.mechanisms.local.offsets import Neighborhood

WIDEST = 128  #: channels of a head that the kernels' tiles have room for


def _triton(*operands: Any, **options: Any) -> Tensor:
    from attngraft.mechanisms.local import triton  # here: needs Triton

    return triton.local_filter(*operands, **options)


def _obstacle(
    values: Tensor, filters: Tensor, *ghosts: Tensor | None, neighborhood: Neighborhood, softmax: bool
) -> str | None:
    given = [tensor for tensor in (values, filters, *ghosts) if tensor is not None]
    obstacle = operands_obstacle(*given, widest=max(tensor.shape[-1] for tensor in given))
    width = values.shape[1] * neighborhood.offsets // filters.shape[1]
    if obstacle is None and width > WIDEST:
        obstacle = f"the kernels take heads of up to {WIDEST} channels, and these have {width}"
    return obstacle


LOCAL_FILTER = Op(
    "local_filter",
    "sum over the neighbors of a pixel of (mul^lam weights + gamma add) values",
    backends={
        "reference": Backend(reference.local_filter),
        "eager": Backend(eager.local_filter),
        "triton": Backend(_triton, _obstacle),
    },
)

LOCAL_SCORES = Op(
    "local_scores",
    "a pixel's query times the keys of its neighbors",
    backends={"reference": Backend(reference.local_scores), "eager": Backend(eager.local_scores)},
)


def local_filter(
    values: Tensor,
    filters: Tensor,
    mul: Tensor | None = None,
    add: Tensor | None = None,
    *,
    kernel_size: int,
    dilation: int = 1,
    stride: int = 1,
    lam: float = 1.0,
    gamma: float = 1.0,
    softmax: bool = True,
    backend: str = "auto",
) -> Tensor:
    """Weigh the neighborhood of every pixel by its own filters, and by the ghost head's matrices.

        out_i[c] = sum_o (mul[c, o]^lam * softmax over o(filters_i[h(c)])[o] + gamma * add[c, o]) v_(s i + d o)[c]

    s is the stride, d the dilation; h(c) is the contiguous block of channels that c lies in; values outside of the
    map are zero, and the softmax counts them.

    Args:
        values: (B, C, Y, X).
        filters: (B, H K, Y', X'), the K = kernel_size^2 offsets of a head row by row. Y' and X' are Y and X over `stride`,
            rounded up or down.
        stride: 1 in all that was published, so another one is held to the equation (`reference`) alone.
        mul, add: (C, kernel_size, kernel_size), the ghost head; without one, or with its exponent `lam` or factor `gamma`
            0, that part is left out. A `lam` that is no whole number makes NaN of negative entries of `mul`.
        softmax: False takes the filters as they are.

    Returns:
        (B, C, Y', X') in the dtype of the values. A value that is not finite can make NaN of a few pixels beside its
        neighborhood, too, as products of matrices multiply it by zeros.

    Raises:
        UsageError: a kernel size that is even, operands whose shapes do not fit each other.
        BackendError: a backend asked for by name cannot be used here.

    Source: ELSA, Eq. 5 and 8.
    """
    neighborhood = Neighborhood(kernel_size, dilation, stride)
    _check(values, filters, mul, add, neighborhood)
    multiplier = None if mul is None or lam == 0 else mul if lam == 1 else mul**lam
    addend = None if add is None or gamma == 0 else add if gamma == 1 else gamma * add
    found: Tensor = LOCAL_FILTER(
        values, filters, multiplier, addend, neighborhood=neighborhood, softmax=softmax, backend=backend
    )
    return found


def local_scores(
    queries: Tensor, keys: Tensor, *, heads: int, kernel_size: int, dilation: int = 1, backend: str = "auto"
) -> Tensor:
    """Scores of every pixel with its neighborhood: q_i . k_(i + dilation o) for each head and offset o, no scale.

    Args:
        queries, keys: (B, C, Y, X); C is a multiple of `heads`, contiguous blocks of channels.

    Returns:
        (B, H K, Y, X), as `local_filter` takes them; 0 where the neighbor is outside of the map.

    Raises:
        UsageError: a kernel size that is even, operands of different shapes, heads that do not divide the channels.
        BackendError: a backend asked for by name cannot be used here.

    Source: ELSA, Eq. 4, its first term.
    """
    neighborhood = Neighborhood(kernel_size, dilation)
    check_neighborhood(neighborhood)
    if queries.ndim != 4 or queries.shape != keys.shape:
        raise UsageError(
            f"queries and keys are (B, C, Y, X) both, not of shapes {tuple(queries.shape)} and {tuple(keys.shape)}"
        )
    if heads < 1 or queries.shape[1] % heads:
        raise UsageError(f"{heads} heads do not divide the {queries.shape[1]} channels; give another number")
    found: Tensor = LOCAL_SCORES(queries, keys, heads=heads, neighborhood=neighborhood, backend=backend)
    return found


def check_neighborhood(neighborhood: Neighborhood) -> None:
    """Refuse one without a middle, or with steps of less than a pixel.

    Raises:
        UsageError: says which.
    """
    size = neighborhood.size
    if size < 1 or size % 2 == 0:
        raise UsageError(f"kernel_size is an odd number, so that every pixel stands in the middle, not {size}")
    if neighborhood.dilation < 1 or neighborhood.stride < 1:
        raise UsageError(f"dilation and stride are 1 or more, not {neighborhood.dilation} and {neighborhood.stride}")


def _check(values: Tensor, filters: Tensor, mul: Tensor | None, add: Tensor | None, neighborhood: Neighborhood) -> None:
    check_neighborhood(neighborhood)
    size, stride = neighborhood.size, neighborhood.stride
    for name, tensor, axes in (("values", values, "B, C, Y, X"), ("filters", filters, "B, H K, Y', X'")):
        if tensor.ndim != 4:
            raise UsageError(f"{name} are ({axes}), not of shape {tuple(tensor.shape)}")
    (batch, channels, *sizes), (of_filters, maps, *found) = values.shape, filters.shape
    if batch != of_filters:
        raise UsageError(f"values of {batch} images and filters of {of_filters} do not fit each other")
    if maps % neighborhood.offsets or not maps or channels % (maps // neighborhood.offsets):
        raise UsageError(
            f"filters have {neighborhood.offsets} maps for each head of a {size} x {size} neighborhood, and the heads "
            f"divide the {channels} channels of the values; {maps} maps do not"
        )
    for axis, whole, part in zip("YX", sizes, found, strict=True):
        if part not in (whole // stride, -(-whole // stride)):
            raise UsageError(
                f"{axis} is {whole} in the values and, with stride {stride}, cannot be {part} in the filters"
            )
    for name, ghost in (("mul", mul), ("add", add)):
        if ghost is not None and ghost.shape != (channels, size, size):
            raise UsageError(f"{name} is ({channels}, {size}, {size}) by the values, not of shape {tuple(ghost.shape)}")
