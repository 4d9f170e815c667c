"""The operations of bi-directional attention, with their shape checks and backends."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attngraft.dispatch import Backend, Op, Shapes, operands_obstacle, triton_obstacle
from attngraft.errors import UsageError
from attngraft.mechanisms.bisa import eager, hyper, mlp, reference

#: channels of q, v and v_hat per head that fit the tiles of a Triton program
WIDEST = 128


def _two_way_obstacle(
    q: Tensor, k: Tensor, v: Tensor | None, v_hat: Tensor, *, bias: Tensor | None = None, **_: Any
) -> str | None:
    values = (v_hat,) if v is None else (v_hat, v)
    obstacle = operands_obstacle(q, k, *values, widest=WIDEST)
    return triton_obstacle(bias) if obstacle is None and bias is not None else obstacle


def _inverse_obstacle(
    q: Tensor, k: Tensor, q_hat: Tensor, v_hat: Tensor, hyper: Tensor, *, bias: Tensor | None = None, **_: Any
) -> str | None:
    return _two_way_obstacle(q, k, None, v_hat, bias=bias) or operands_obstacle(v_hat, q_hat, hyper, widest=WIDEST)


def _triton_two_way(*operands: Any, **masks: Any) -> tuple[Tensor | None, Tensor]:
    from attngraft.mechanisms.bisa import triton  # here: needs Triton

    return triton.two_way_attention(*operands, **masks)


def _triton_hyper(u: Tensor, q_hat: Tensor, hyper: Tensor) -> Tensor:
    from attngraft.mechanisms.bisa import triton_hyper  # here: needs Triton

    return triton_hyper.hyper_transform(u, q_hat, hyper)


def _triton_inverse(q: Tensor, k: Tensor, q_hat: Tensor, v_hat: Tensor, hyper: Tensor, **masks: Any) -> Tensor:
    return _triton_hyper(_triton_two_way(q, k, None, v_hat, **masks)[1], q_hat, hyper)


def _check_masks(*, q: Tensor, k: Tensor, bias: Tensor | None = None, visible: Tensor | None = None, **_: Any) -> None:
    scores = (*q.shape[:3], k.shape[2])
    if bias is not None:
        if bias.dtype == torch.bool:
            raise UsageError("bias is added to the scores and cannot be boolean; pass it as visible")
        check_bias(bias, scores)
    if visible is not None:
        check_visible(visible, scores)


def check_bias(bias: Tensor, scores: tuple[int, ...]) -> None:
    """Check that a bias fits scores of this shape (B, H, Nq, Nk).

    Raises:
        UsageError: the bias is not (b, H or 1, Nq or 1, Nk or 1) with b a divisor of B.
    """
    batch, *rest = scores
    fits = bias.ndim == 4 and all(size in (1, full) for size, full in zip(bias.shape[1:], rest, strict=True))
    if not fits or bias.shape[0] == 0 or batch % bias.shape[0]:
        raise UsageError(
            f"bias must be (b, H or 1, Nq or 1, Nk or 1) with b a divisor of B = {batch} and (H, Nq, Nk) = {tuple(rest)}, "
            f"not {tuple(bias.shape)}"
        )


def check_visible(visible: Tensor, scores: tuple[int, ...]) -> None:
    """Check that a mask fits scores of this shape (B, H, Nq, Nk).

    Raises:
        UsageError: the mask is not boolean, or not broadcastable to the scores.
    """
    last = scores[max(4 - visible.ndim, 0) :]
    fits = visible.ndim <= 4 and all(size in (1, full) for size, full in zip(visible.shape, last, strict=True))
    if visible.dtype != torch.bool or not fits:
        raise UsageError(
            f"visible must be boolean and broadcastable to (B, H, Nq, Nk) = {tuple(scores)}, not {visible.dtype} of shape "
            f"{tuple(visible.shape)}"
        )


_PAIRS = {"q": "B, H, Nq, dk", "k": "B, H, Nk, dk", "v_hat": "B, H, Nk, s"}
_INVERSE = {**_PAIRS, "q_hat": "B, H, Nq, s"}

two_way_attention = Op(
    reference.two_way_attention,
    "softmax of one score matrix over keys times v, and over queries times v_hat",
    shapes=Shapes(**_PAIRS, v="B, H, Nk, dv"),
    check=_check_masks,
    eager=eager.two_way_attention,
    triton=Backend(_triton_two_way, _two_way_obstacle),
)
hyper_transform = Op(
    reference.hyper_transform,
    "sum_ab u_i[a] q_hat_i[b] G[a, b, c]",
    shapes=Shapes(u="B, H, N, s", q_hat="B, H, N, s", hyper="s, s, dv"),
    eager=hyper.hyper_transform,
    triton=Backend(_triton_hyper, partial(operands_obstacle, widest=WIDEST)),
)
inverse_attention = Op(
    reference.inverse_attention,
    "sum_j softmax over queries(S)_ij q_hat_i W_j, with W_j = v_hat_j G",
    shapes=Shapes(**_INVERSE, hyper="s, s, dv"),
    check=_check_masks,
    eager=eager.inverse_attention,
    triton=Backend(_triton_inverse, _inverse_obstacle),
)
inverse_attention_mlp = Op(
    reference.inverse_attention_mlp,
    "sum_j softmax over queries(S)_ij MLP([q_hat_i ; v_hat_j])",
    shapes=Shapes(**_INVERSE, expand="m, 2 s", expand_bias="m", contract="dv, m", contract_bias="dv"),
    check=_check_masks,
    eager=mlp.inverse_attention_mlp,
)
