"""The hypernetwork of inverse attention in optimized PyTorch: each query times the matrix of its values.

A row i is one token of one head, and G is used as an (s s) x dv matrix: out_i = (u_i (x) q_hat_i) G. Each product covers a
few hundred rows, whose s x s outer products are written to a reused buffer that stays in the cache; storing all of them at
once would cost more in page faults than the products themselves. The other order, q_hat_i (u_i G), takes s dv more
multiply-adds, and its large product writes more. Half precision is computed in float32. Only the inputs are saved for the
backward; with T_i = G g_i (s x s) and g the gradient,

    dq_hat_i = u_i T_i,    du_i = T_i q_hat_i,    dG = sum_i u_i (x) q_hat_i (x) g_i.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attngraft.dispatch.autograd import (
    Gradients,
    accumulation_dtype,
    cast_for_autocast,
    differentiable_gradients,
    in_dispatch_mode,
    is_traced,
    without_autocast,
)
from attngraft.mechanisms.common import as_rows

#: bytes of the buffer per thread: a core's share of the L3 cache of common processors
BUFFER = 2**21
#: number of rows below which the product with G is slower per row
FEWEST_ROWS = 128


def hyper_transform(u: Tensor, q_hat: Tensor, hyper: Tensor) -> Tensor:
    """Return (B, H, N, dv), in memory as (B, N, H, dv), the input layout of the output projection."""
    u, q_hat, hyper = cast_for_autocast(u, q_hat, hyper)
    if is_traced(u, q_hat, hyper) or not (u.numel() and hyper.numel()):
        return formula(u, q_hat, hyper)
    with torch.autocast(u.device.type, enabled=False):
        return _Hyper.apply(u, q_hat, hyper)


def formula(u: Tensor, q_hat: Tensor, hyper: Tensor) -> Tensor:
    """Compute `hyper_transform` as two plain products."""
    matrices = (u @ hyper.flatten(1)).unflatten(-1, hyper.shape[1:])
    return (q_hat.unsqueeze(-2) @ matrices).squeeze(-2)


class _Hyper(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, q_hat: Tensor, hyper: Tensor) -> Tensor:
        ctx.save_for_backward(u, q_hat, hyper)
        if in_dispatch_mode():
            return formula(u, q_hat, hyper)
        batch, heads, tokens, _ = u.shape
        dtype_of_u, dtype = u.dtype, accumulation_dtype(u)
        u, q_hat, matrix = as_rows(u).to(dtype), as_rows(q_hat).to(dtype), hyper.flatten(0, 1).to(dtype)
        out = u.new_empty(len(u), hyper.shape[2])
        for rows, buffer in _chunks(u, len(matrix)):
            _products(u[rows], q_hat[rows], buffer)
            torch.mm(buffer, matrix, out=out[rows])
        return out.to(dtype_of_u).view(batch, tokens, heads, -1).transpose(1, 2)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        inputs: tuple[Tensor, ...] = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_gradients(lambda *tensors: (formula(*tensors),), inputs, (gradient,))
        batch, heads, tokens, width = inputs[0].shape
        dtype_of_gradient, dtype = gradient.dtype, accumulation_dtype(gradient)
        u, q_hat, gradient = (as_rows(tensor).to(dtype) for tensor in (*inputs[:2], gradient))
        hyper = inputs[2].to(dtype)
        matrix = hyper.flatten(0, 1).t()
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
        shape = (batch, tokens, heads, width)
        return (
            to_u.to(dtype_of_gradient).view(shape).transpose(1, 2),
            to_q_hat.to(dtype_of_gradient).view(shape).transpose(1, 2),
            sums.sum(0).t().reshape(hyper.shape).to(dtype_of_gradient),
        )


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
