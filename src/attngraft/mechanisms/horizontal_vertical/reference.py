"""The equations of horizontal and vertical attention, spelled out: what every faster path is tested against.

Letters: B batch, N query tokens, H heads, dv width of a head's values, C model width, Da squeezed width. Weights are
stored as torch's linears store them, (out, in).
"""

from __future__ import annotations

import torch
from torch import Tensor


def horizontal_attention(
    heads: Tensor,
    x: Tensor,
    *,
    head: Tensor,
    context: Tensor,
    score: Tensor,
    score_bias: Tensor,
    identity: bool = False,
) -> tuple[Tensor, Tensor]:
    """Weigh the heads of every token (Eqs. 5, 6); returns the weighed heads (B, H, N, dv) and alpha (B, N, H).

    A_m = relu(H_m W^A1 + x W^A2);  alpha = softmax over m of (A_m W^B + b^B);  alpha_m H_m,

    with W^A1 `head` (dv, dv), W^A2 `context` (dv, C), W^B `score` (1, dv), b^B `score_bias` (1). `identity`: H alpha_m H_m.
    """
    hidden = torch.relu(heads @ head.T + (x @ context.T).unsqueeze(1))  # (B, H, N, dv)
    scores = hidden @ score.T + score_bias  # (B, H, N, 1)
    alpha = torch.softmax(scores, dim=1)
    weighed = (heads.shape[1] * alpha if identity else alpha) * heads
    return weighed, alpha.squeeze(-1).transpose(1, 2)


def vertical_attention(
    merged: Tensor,
    x: Tensor,
    *,
    context: Tensor,
    merged_weight: Tensor,
    gate: Tensor,
    gate_bias: Tensor,
    identity: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gate the channels of the merged heads (Eqs. 7, 8); returns the gated tokens and beta, both (B, N, C).

    U = relu(x W^U1 + Y W^U2);  beta = sigmoid(U W^U + b^U);  beta * Y,

    with Y `merged`, W^U1 `context` (Da, C), W^U2 `merged_weight` (Da, C), W^U `gate` (C, Da), b^U `gate_bias` (C).
    `identity`: 2 beta * Y.
    """
    hidden = torch.relu(x @ context.T + merged @ merged_weight.T)
    beta = torch.sigmoid(hidden @ gate.T + gate_bias)
    return (2 * beta if identity else beta) * merged, beta
