"""The equations of bi-directional self-attention, spelled out; every faster path is tested against them.

Letters: B batch (windows), H heads, Nq queries, Nk keys, dk width of q and k, s width of q_hat and v_hat, dv width of the
result. One score matrix S serves both directions:

    S_ij = scale (q_i . k_j) + bias_ij                        i query, j key
    self-attention    A = softmax of S over keys j,     sa_i  = sum_j A_ij v_j                                   (Eq. 1)
    inverse           L = softmax of S over queries i,  isa_i = sum_j L_ij (q_hat_i W_j)                         (Eq. 2)
    hypernetwork      W_j[b, c] = sum_a v_hat_j[a] G[a, b, c], G shared by all heads                        (Sec. 3.1)

Shapes: q (B, H, Nq, dk), k (B, H, Nk, dk), v (B, H, Nk, dv), q_hat (B, H, Nq, s), v_hat (B, H, Nk, s), hyper (s, s, dv).
`bias` is added to the scaled scores: (b, H or 1, Nq or 1, Nk or 1), where b divides B and entry i has bias i mod b; a size
of 1 is broadcast. `visible` is boolean and broadcastable to (B, H, Nq, Nk). `scale` is 1 / sqrt(dk) by default.

A masked pair (`visible` False, or a bias of -inf) is excluded from both directions: a query without visible keys, and a
key that is visible to no query, contribute zero.

Source: "Bi-Directional Self-Attention for Vision Transformers", Sec. 3.1, Eqs. 1-3, Alg. 1 as corrected by Eq. 2 and the
text (its last line does not run as printed).
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def scores(
    q: Tensor, k: Tensor, *, bias: Tensor | None = None, visible: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Return S (B, H, Nq, Nk), -inf where a pair is masked."""
    s = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-2, -1)
    if bias is not None:
        s = s + (bias if bias.shape[0] == 1 else bias.repeat(s.shape[0] // bias.shape[0], 1, 1, 1))
    return s if visible is None else s.masked_fill(~visible, float("-inf"))


def masked_softmax(scores: Tensor, dim: int) -> Tensor:
    """Return the softmax along `dim`; zeros, and no gradient, where all scores are -inf."""
    empty = (scores == float("-inf")).all(dim, keepdim=True)
    return torch.softmax(scores.masked_fill(empty, 0), dim).masked_fill(empty, 0)


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
    """Compute both directions of one score matrix (Eq. 1, and the inner sum of Eq. 2); shapes as above.

    Args:
        v: None for the inverse direction alone (MISA).

    Returns:
        sa_i = sum_j A_ij v_j (B, H, Nq, dv) or None, and u_i = sum_j L_ij v_hat_j (B, H, Nq, s), where A is the
        softmax over keys and L the softmax over queries. The columns of L sum to 1, its rows need not.

    Raises:
        UsageError: an operand has another shape, or a mask is not boolean.
        BackendError: the backend cannot be used here.
    """
    s = scores(q, k, bias=bias, visible=visible, scale=scale)
    attended = None if v is None else masked_softmax(s, -1) @ v
    return attended, masked_softmax(s, -2) @ v_hat


def hyper_transform(u: Tensor, q_hat: Tensor, hyper: Tensor) -> Tensor:
    """Multiply each query by the matrix of its values: out_i[c] = sum_ab u_i[a] q_hat_i[b] G[a, b, c] (Sec. 3.1).

    Args:
        u, q_hat: (B, H, N, s).
        hyper: G (s, s, dv); its first axis is contracted with the values, its second with the query.

    Returns:
        (B, H, N, dv). Raises the same errors as `two_way_attention`.
    """
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
    """Compute isa_i = sum_j L_ij (q_hat_i W_j), W_j = v_hat_j G, L the softmax over queries (Eq. 2): (B, H, Nq, dv).

    Raises the same errors as `two_way_attention`.
    """
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
    """Compute isa_i = sum_j L_ij (W2 GELU(W1 [q_hat_i ; v_hat_j] + b1) + b2), the MLP shared by heads (Table 3).

    Args:
        expand, expand_bias: W1 (m, 2 s), b1 (m).
        contract, contract_bias: W2 (dv, m), b2 (dv).

    Raises the same errors as `two_way_attention`.
    """
    share = masked_softmax(scores(q, k, bias=bias, visible=visible, scale=scale), -2)
    nq, nk = share.shape[-2:]
    both = torch.cat(
        [q_hat.unsqueeze(3).expand(-1, -1, -1, nk, -1), v_hat.unsqueeze(2).expand(-1, -1, nq, -1, -1)], dim=-1
    )
    transformed = F.linear(F.gelu(F.linear(both, expand, expand_bias)), contract, contract_bias)
    return torch.einsum("bhij,bhijd->bhid", share, transformed)
