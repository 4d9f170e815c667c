"""The operations of local attention, with their shape checks and backends."""

from typing import Any

from torch import Tensor

from attngraft.dispatch import Backend, Op, Shapes, operands_obstacle
from attngraft.errors import UsageError
from attngraft.mechanisms.local import eager, reference
from attngraft.mechanisms.local.geometry import Neighborhood

WIDEST = 128  #: channels of a head that fit the kernels' tiles


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
        obstacle = f"the kernels take heads of up to {WIDEST} channels, not {width}"
    return obstacle


def _check(
    values: Tensor,
    filters: Tensor,
    multiplier: Tensor | None,
    addend: Tensor | None,
    *,
    neighborhood: Neighborhood,
    **_: Any,
) -> None:
    size, stride, offsets = neighborhood.size, neighborhood.stride, neighborhood.offsets
    (channels, *sizes), (maps, *filter_sizes) = values.shape[1:], filters.shape[1:]
    if maps % offsets or not maps or channels % (maps // offsets):
        raise UsageError(
            f"filters must have {offsets} maps per head for a {size} x {size} neighborhood, and a number of heads that "
            f"divides the {channels} channels of the values; {maps} maps do not fit"
        )
    for axis, whole, part in zip("YX", sizes, filter_sizes, strict=True):
        if part not in (whole // stride, -(-whole // stride)):
            raise UsageError(
                f"the values have {axis} = {whole}, so the filters cannot have {axis} = {part} with stride {stride}"
            )
    for name, ghost in (("mul", multiplier), ("add", addend)):
        if ghost is not None and ghost.shape != (channels, size, size):
            raise UsageError(f"{name} must be ({channels}, {size}, {size}) for these values, not {tuple(ghost.shape)}")


LOCAL_FILTER = Op(
    reference.local_filter,
    "sum over the neighbors of a pixel of (mul^lam weights + gamma add) values",
    shapes=Shapes(values="B, C, Y, X", filters="B, HK, Y', X'"),
    check=_check,
    eager=eager.local_filter,
    triton=Backend(_triton, _obstacle),
)
LOCAL_SCORES = Op(
    reference.local_scores,
    "the products of a pixel's query with its neighbors' keys",
    shapes=Shapes(queries="B, C, Y, X", keys="B, C, Y, X"),
    eager=eager.local_scores,
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
    """Weight the neighborhood of every pixel by its own filters and by the ghost head's matrices.

        out_i[c] = sum_o (mul[c, o]^lam * softmax over o(filters_i[h(c)])[o] + gamma * add[c, o]) v_(s i + d o)[c]

    Here s is the stride, d the dilation, and h(c) = c // (C / H), as in the published code; Eq. 8 has c mod H, which differs
    only in the order of the channels. Values outside of the map are zero; the softmax includes their offsets.

    Args:
        values: (B, C, Y, X).
        filters: (B, H K, Y', X'), with the K = kernel_size^2 offsets of each head row by row. Y' and X' are Y and X divided
            by `stride`, rounded up or down.
        mul, add: the ghost head's matrices, (C, kernel_size, kernel_size). Each is omitted if it is None, or if its
            exponent `lam` or factor `gamma` is 0. A fractional `lam` turns negative entries of `mul` into NaN.
        stride: always 1 in published models; other strides are tested only against the equation (`reference`).
        softmax: apply a softmax to the filters; False uses them unchanged.

    Returns:
        (B, C, Y', X') in the dtype of the values. A non-finite value can also turn a few pixels outside its neighborhood
        into NaN, because matrix products multiply it by zeros.

    Raises:
        UsageError: the kernel size is even, or the operands' shapes do not match.
        BackendError: the backend cannot be used here.

    Source: ELSA, Eq. 5 and 8.
    """
    neighborhood = Neighborhood(kernel_size, dilation, stride)
    multiplier = None if mul is None or lam == 0 else mul if lam == 1 else mul**lam
    addend = None if add is None or gamma == 0 else add if gamma == 1 else gamma * add
    return LOCAL_FILTER(
        values, filters, multiplier, addend, neighborhood=neighborhood, softmax=softmax, backend=backend
    )


def local_scores(
    queries: Tensor, keys: Tensor, *, heads: int, kernel_size: int, dilation: int = 1, backend: str = "auto"
) -> Tensor:
    """Compute scores of every pixel with its neighborhood: q_i . k_(i + dilation o) per head and offset o, without scale.

    Args:
        queries, keys: (B, C, Y, X); C is a multiple of `heads`, and each head is a contiguous block of channels.

    Returns:
        (B, H K, Y, X), for `local_filter`; 0 where the neighbor is outside of the map.

    Raises:
        UsageError: the kernel size is even, the shapes differ, or the channels are not divisible by the number of heads.
        BackendError: the backend cannot be used here.

    Source: ELSA, Eq. 4, its first term.
    """
    neighborhood = Neighborhood(kernel_size, dilation)
    if heads < 1 or queries.shape[1] % heads:
        raise UsageError(f"the {queries.shape[1]} channels are not divisible by {heads} heads; choose another number")
    return LOCAL_SCORES(queries, keys, heads=heads, neighborhood=neighborhood, backend=backend)
