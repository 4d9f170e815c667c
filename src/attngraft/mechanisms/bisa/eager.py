"""Bi-directional attention in lean PyTorch: the sum over keys is taken before the hypernetwork, which is exact.

L_ij knows no channel and W_j is linear in v_hat_j, so isa_i = hyper(sum_j L_ij v_hat_j, q_hat_i): no N x N x d tensor.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.mechanisms.bisa import reference


def two_way_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    v_hat: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor | None, Tensor]:
    """sa (B, H, Nq, dv) and u (B, H, Nq, s)."""
    return reference.two_way_attention(q, k, v, v_hat, bias=bias, visible=visible, scale=scale)


def hyper_transform(u: Tensor, q_hat: Tensor, hyper: Tensor) -> Tensor:
    """(B, H, N, dv)."""
    outer = (u.unsqueeze(-1) * q_hat.unsqueeze(-2)).flatten(-2)
    return outer @ hyper.flatten(0, 1)


def inverse_attention(
    q: Tensor,
    k: Tensor,
    q_hat: Tensor,
    v_hat: Tensor,
    hyper: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """isa (B, H, Nq, dv)."""
    _, u = two_way_attention(q, k, None, v_hat, bias=bias, visible=visible, scale=scale)
    return hyper_transform(u, q_hat, hyper)


def inverse_attention_mlp(
    q: Tensor,
    k: Tensor,
    q_hat: Tensor,
    v_hat: Tensor,
    *,
    expand: Tensor,
    expand_bias: Tensor,
    contract: Tensor,
    contract_bias: Tensor,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """isa (B, H, Nq, dv); W1 is split in a part for queries and one for values, W2 leaves the sum over keys."""
    share = reference.masked_softmax(reference.scores(q, k, bias=bias, visible=visible, scale=scale), -2)
    width = q_hat.shape[-1]
    a = F.linear(q_hat, expand[:, :width], expand_bias)
    b = F.linear(v_hat, expand[:, width:])
    hidden = F.gelu(a.unsqueeze(3) + b.unsqueeze(2))
    summed = torch.einsum("bhij,bhijm->bhim", share, hidden)
    return F.linear(summed, contract) + share.sum(-1, keepdim=True) * contract_bias
