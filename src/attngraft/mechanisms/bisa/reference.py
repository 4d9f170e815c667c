"""The equations of bi-directional self-attention, spelled out: what every faster path is tested against.

Letters: B batch (windows), H heads, Nq queries, Nk keys, dk width of q and k, s width of q_hat and v_hat, dv width of what
comes out. One score matrix S serves both directions:

    S_ij = scale (q_i . k_j) + bias_ij                        i query, j key
    self-attention    A = softmax of S over keys j,     sa_i  = sum_j A_ij v_j                                   (Eq. 1)
    inverse           L = softmax of S over queries i,  isa_i = sum_j L_ij (q_hat_i W_j)                         (Eq. 2)
    hypernetwork      W_j[b, c] = sum_a v_hat_j[a] G[a, b, c], G shared by all heads                        (Sec. 3.1)

A pair that is masked (`visible` False, or a bias of -inf) takes part in neither direction: a query that sees no key, and a
key that no query sees, contribute zero.

Source: "Bi-Directional Self-Attention for Vision Transformers", Sec. 3.1, Eqs. 1-3, Alg. 1 read by Eq. 2 and the text (its
last line does not run as printed).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def scores(
    q: Tensor, k: Tensor, *, bias: Tensor | None = None, visible: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """S (B, H, Nq, Nk), -inf where a pair is masked."""
    found = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-2, -1)
    if bias is not None:
        found = found + (bias if bias.shape[0] == 1 else bias.repeat(found.shape[0] // bias.shape[0], 1, 1, 1))
    return found if visible is None else found.masked_fill(~visible, float("-inf"))


def masked_softmax(found: Tensor, dim: int) -> Tensor:
    """Softmax along `dim`; zeros, and no gradient, where all of it is -inf."""
    empty = (found == float("-inf")).all(dim, keepdim=True)
    return torch.softmax(found.masked_fill(empty, 0), dim).masked_fill(empty, 0)


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
    """sa (B, H, Nq, dv), None without values, and u_i = sum_j L_ij v_hat_j (B, H, Nq, s), of the same scores."""
    found = scores(q, k, bias=bias, visible=visible, scale=scale)
    attended = None if v is None else masked_softmax(found, -1) @ v
    return attended, masked_softmax(found, -2) @ v_hat


def hyper_transform(u: Tensor, q_hat: Tensor, hyper: Tensor) -> Tensor:
    """out_i[c] = sum_ab u_i[a] q_hat_i[b] G[a, b, c]: (B, H, N, dv)."""
    return torch.einsum("nhia,nhib,abc->nhic", u, q_hat, hyper)


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
    """isa (B, H, Nq, dv) as Eq. 2 says it: a matrix per value, every query through every value's matrix."""
    share = masked_softmax(scores(q, k, bias=bias, visible=visible, scale=scale), -2)
    matrices = torch.einsum("bhja,acd->bhjcd", v_hat, hyper)
    transformed = torch.einsum("bhic,bhjcd->bhijd", q_hat, matrices)  # (B, H, Nq, Nk, dv)
    return torch.einsum("bhij,bhijd->bhid", share, transformed)


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
    """The ablation (Table 3): isa_i = sum_j L_ij W2 GELU(W1 [q_hat_i ; v_hat_j] + b1) + b2, shared by heads.

    `expand` W1 is (m, 2 s), `contract` W2 (dv, m).
    """
    share = masked_softmax(scores(q, k, bias=bias, visible=visible, scale=scale), -2)
    nq, nk = share.shape[-2:]
    both = torch.cat(
        [q_hat.unsqueeze(3).expand(-1, -1, -1, nk, -1), v_hat.unsqueeze(2).expand(-1, -1, nq, -1, -1)], dim=-1
    )
    transformed = F.linear(F.gelu(F.linear(both, expand, expand_bias)), contract, contract_bias)
    return torch.einsum("bhij,bhijd->bhid", share, transformed)
