"""The hypernetwork of inverse attention in optimized PyTorch: each query times the matrix of its values.

A row i is one token of one head, and G is used as an (s s) x dv matrix: out_i = (u_i (x) q_hat_i) G. Each product covers a
few hundred rows, whose s x s outer products are written to a reused buffer that stays in the cache; storing all of them at
once would cost more in page faults than the products themselves. The other order, q_hat_i (u_i G), takes s dv more
multiply-adds, and its large product writes more. Half precision is computed in float32. Only the inputs are saved for the
backward; with T_i = G g_i (s x s) and g the gradient,

    dq_hat_i = u_i T_i,    du_i = T_i q_hat_i,    dG = sum_i u_i (x) q_hat_i (x) g_i.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attngraft.dispatch.autograd import accumulation_dtype, cast_for_autocast, custom_op, needs_aten_ops
from attngraft.mechanisms.common import as_rows, empty_heads

#: bytes of the buffer per thread: a core's share of the L3 cache of common processors
BUFFER = 2**21
#: number of rows below which the product with G is slower per row
FEWEST_ROWS = 128


def hyper_transform(u: Tensor, q_hat: Tensor, hyper: Tensor) -> Tensor:
    """Return (B, H, N, dv), in memory as (B, N, H, dv), the input layout of the output projection."""
    u, q_hat, hyper = cast_for_autocast(u, q_hat, hyper)
    if needs_aten_ops(u, q_hat, hyper) or not (u.numel() and hyper.numel()):
        return formula(u, q_hat, hyper)
    return _transform(u, q_hat, hyper)


def formula(u: Tensor, q_hat: Tensor, hyper: Tensor) -> Tensor:
    """Compute `hyper_transform` as two plain products."""
    matrices = (u @ hyper.flatten(1)).unflatten(-1, hyper.shape[1:])
    return (q_hat.unsqueeze(-2) @ matrices).squeeze(-2)


def flops(u: Any, q_hat: Any, hyper: Any) -> int:
    """Count the FLOPs of u_i G and of its product with q_hat_i, as in the plain form."""
    batch, heads, tokens, width = u
    return int(2 * batch * heads * tokens * (width + 1) * width * hyper[2])


def empty_gradients(u: Tensor, q_hat: Tensor, hyper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    to_hyper = torch.empty_like(hyper, memory_format=torch.contiguous_format)
    return empty_heads(u, u), empty_heads(u, u), to_hyper


#: decorator of an implementation's forward
hyper_op = partial(
    custom_op,
    formula=lambda *operands: (formula(*operands),),
    outputs=lambda u, q_hat, hyper: empty_heads(u, hyper),
    gradients=empty_gradients,
    flops=flops,
)


def _transform_backward(to_outputs: Any, operands: Any, saved: Any) -> tuple[Tensor, ...]:
    """Return du, dq_hat and dG."""
    (gradient,), (_, _, hyper) = to_outputs, operands
    dtype = accumulation_dtype(gradient)
    with torch.autocast(gradient.device.type, enabled=False):
        u, q_hat, gradient = (as_rows(tensor).to(dtype) for tensor in (*operands[:2], gradient))
        matrix = hyper.to(dtype).flatten(0, 1).t()
        to_u, to_q_hat = torch.empty_like(u), torch.empty_like(q_hat)
        sums = matrix.new_zeros(_threads(u), *matrix.shape)  # each thread sums its part of the rows
        for rows, buffer in _chunks(u, matrix.shape[1]):
            # one part of the rows per thread, which is faster for many columns and short sums
            by_part, buffer_by_part = _in_parts(gradient[rows]), _in_parts(buffer)
            parts = len(by_part)
            torch.bmm(by_part, matrix.expand(parts, -1, -1), out=buffer_by_part)
            square = buffer.view(-1, *hyper.shape[:2])
            torch.bmm(u[rows, None], square, out=to_q_hat[rows, None])
            # as a row times the transposed matrices: a batch of matrix-vector products runs at half the speed
            torch.bmm(q_hat[rows, None], square.transpose(1, 2), out=to_u[rows, None])
            _products(u[rows], q_hat[rows], buffer)
            torch.baddbmm(sums[:parts], by_part.transpose(1, 2), buffer_by_part, out=sums[:parts])
        to_hyper = sums.sum(0).t().contiguous().view(hyper.shape).to(hyper.dtype)
        return *(_as_heads(rows, like=operands[0]) for rows in (to_u, to_q_hat)), to_hyper


@hyper_op("hyper_transform_lean", backward=_transform_backward)
def _transform(u: Tensor, q_hat: Tensor, hyper: Tensor) -> Tensor:
    dtype = accumulation_dtype(u)
    with torch.autocast(u.device.type, enabled=False):
        rows_of_u, query, matrix = as_rows(u).to(dtype), as_rows(q_hat).to(dtype), hyper.flatten(0, 1).to(dtype)
        out = rows_of_u.new_empty(len(rows_of_u), hyper.shape[2])
        for rows, buffer in _chunks(rows_of_u, len(matrix)):
            _products(rows_of_u[rows], query[rows], buffer)
            torch.mm(buffer, matrix, out=out[rows])
        return _as_heads(out, like=u)


def _as_heads(rows: Tensor, *, like: Tensor) -> Tensor:
    """Return rows (B * N * H, width) as heads (B, H, N, width) with the dtype of `like` (B, H, N, ...)."""
    batch, heads, tokens = like.shape[:3]
    return rows.to(like.dtype).view(batch, tokens, heads, -1).transpose(1, 2)


def _products(u: Tensor, q_hat: Tensor, out: Tensor) -> None:
    """Write u_i (x) q_hat_i of each row (rows, s) to `out` (rows, s s)."""
    torch.mul(u[:, :, None], q_hat[:, None], out=out.view(len(u), u.shape[1], q_hat.shape[1]))


def _threads(rows: Tensor) -> int:
    return torch.get_num_threads() if rows.device.type == "cpu" else 1


def _in_parts(rows: Tensor) -> Tensor:
    """Return (rows, columns) as (parts, rows / parts, columns): one part per thread if possible, else one."""
    parts = _threads(rows) if len(rows) % _threads(rows) == 0 else 1
    return rows.view(parts, len(rows) // parts, -1)


def _chunks(rows: Tensor, columns: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of `rows`, each with a buffer (rows of the slice, columns); all buffers share memory."""
    if rows.device.type == "cpu":
        fitting = BUFFER * torch.get_num_threads() // (columns * rows.element_size())
    else:
        fitting = 2**26 // columns  # on other devices this limit only saves memory
    step = min(max(fitting, FEWEST_ROWS), len(rows))
    buffer = rows.new_empty(step, columns)
    for start in range(0, len(rows), step):
        chunk = slice(start, min(start + step, len(rows)))
        yield chunk, buffer[: chunk.stop - start]
