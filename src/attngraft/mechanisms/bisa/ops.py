"""The public operations of bi-directional attention, with their backends.

Shapes: q (B, H, Nq, dk), k (B, H, Nk, dk), v (B, H, Nk, dv), q_hat (B, H, Nq, s), v_hat (B, H, Nk, s), hyper (s, s, dv).
`bias` is added to the scaled scores: (b, H or 1, Nq or 1, Nk or 1), where b divides B and entry i takes bias i mod b; a size
of 1 is broadcast. `visible` is boolean and broadcastable to (B, H, Nq, Nk). A masked pair (False, or a bias of -inf) takes
part in neither direction.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngraft.dispatch import Backend, Op, operands_obstacle, triton_obstacle
from attngraft.errors import UsageError
from attngraft.mechanisms.bisa import eager, hyper, mlp, reference
from attngraft.mechanisms.bisa.operands import check_bias, check_visible
from attngraft.mechanisms.sizes import Sizes

#: channels of q, v and v_hat per head that a Triton program's tiles have room for
WIDEST = 128
NOT_BROADCAST = "the kernels read each operand in the shape that this operation documents, and broadcast none"


def _kernel_obstacle(*operands: Tensor) -> str | None:
    return operands_obstacle(*operands, widest=WIDEST)


def _two_way_obstacle(
    q: Tensor, k: Tensor, v: Tensor | None, v_hat: Tensor, *, bias: Tensor | None = None, **_: Any
) -> str | None:
    values = (v_hat,) if v is None else (v_hat, v)
    obstacle = _kernel_obstacle(q, k, *values)
    if obstacle is None and bias is not None:
        obstacle = triton_obstacle(bias)
    alike = (
        q.shape[:2] == k.shape[:2] and q.shape[-1] == k.shape[-1] and all(x.shape[:3] == k.shape[:3] for x in values)
    )
    return NOT_BROADCAST if obstacle is None and not alike else obstacle


def _inverse_obstacle(
    q: Tensor, k: Tensor, q_hat: Tensor, v_hat: Tensor, weight: Tensor, *, bias: Tensor | None = None, **_: Any
) -> str | None:
    obstacle = _two_way_obstacle(q, k, None, v_hat, bias=bias) or _kernel_obstacle(v_hat, q_hat, weight)
    alike = q_hat.shape == (*q.shape[:3], v_hat.shape[-1]) and weight.shape[:2] == 2 * v_hat.shape[-1:]
    return NOT_BROADCAST if obstacle is None and not alike else obstacle


def _hyper_obstacle(u: Tensor, q_hat: Tensor, weight: Tensor) -> str | None:
    alike = u.ndim == 4 and u.shape == q_hat.shape and weight.shape[:2] == 2 * u.shape[-1:]
    return _kernel_obstacle(u, q_hat, weight) or (None if alike else NOT_BROADCAST)


def _triton_two_way_attention(*args: Any, **masks: Any) -> tuple[Tensor | None, Tensor]:
    from attngraft.mechanisms.bisa import triton  # here: needs Triton

    return triton.two_way_attention(*args, **masks)


def _triton_hyper_transform(u: Tensor, q_hat: Tensor, weight: Tensor) -> Tensor:
    from attngraft.mechanisms.bisa import triton_hyper  # here: needs Triton

    return triton_hyper.hyper_transform(u, q_hat, weight)


def _triton_inverse_attention(
    q: Tensor, k: Tensor, q_hat: Tensor, v_hat: Tensor, weight: Tensor, **masks: Any
) -> Tensor:
    _, u = _triton_two_way_attention(q, k, None, v_hat, **masks)
    return _triton_hyper_transform(u, q_hat, weight)


TWO_WAY_ATTENTION = Op(
    "two_way_attention",
    "softmax of one score matrix over keys times v, and over queries times v_hat",
    backends={
        "reference": Backend(reference.two_way_attention),
        "eager": Backend(eager.two_way_attention),
        "triton": Backend(_triton_two_way_attention, _two_way_obstacle),
    },
)
HYPER_TRANSFORM = Op(
    "hyper_transform",
    "sum_ab u_i[a] q_hat_i[b] G[a, b, c]",
    backends={
        "reference": Backend(reference.hyper_transform),
        "eager": Backend(hyper.hyper_transform),
        "triton": Backend(_triton_hyper_transform, _hyper_obstacle),
    },
)
INVERSE_ATTENTION = Op(
    "inverse_attention",
    "sum_j softmax over queries(S)_ij q_hat_i W_j, with W_j = v_hat_j G",
    backends={
        "reference": Backend(reference.inverse_attention),
        "eager": Backend(eager.inverse_attention),
        "triton": Backend(_triton_inverse_attention, _inverse_obstacle),
    },
)
INVERSE_ATTENTION_MLP = Op(
    "inverse_attention_mlp",
    "sum_j softmax over queries(S)_ij MLP([q_hat_i ; v_hat_j])",
    backends={"reference": Backend(reference.inverse_attention_mlp), "eager": Backend(mlp.inverse_attention_mlp)},
)


def _check_pairs(
    q: Tensor, k: Tensor, v_hat: Tensor, *, v: Tensor | None = None, bias: Tensor | None, visible: Tensor | None
) -> Sizes:
    """The operands that every operation on pairs has; what is known of their sizes is for the others."""
    sizes = Sizes()
    sizes.fit("q", q, "B H Nq dk")
    sizes.fit("k", k, "B H Nk dk")
    if v is not None:
        sizes.fit("v", v, "B H Nk dv")
    sizes.fit("v_hat", v_hat, "B H Nk s")
    scores = (*q.shape[:3], k.shape[2])
    if bias is not None:
        if bias.dtype == torch.bool:
            raise UsageError("bias is added to the scores, and this one is boolean; give it as visible")
        check_bias(bias, scores)
    if visible is not None:
        check_visible(visible, scores)
    return sizes


def two_way_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    v_hat: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> tuple[Tensor | None, Tensor]:
    """Both directions of one score matrix (Eq. 1, and the inner sum of Eq. 2); shapes as above.

    Args:
        v: None where only the inverse direction is wanted (MISA).
        scale: of q k^T; 1 / sqrt(dk) where not given.

    Returns:
        sa_i = sum_j A_ij v_j (B, H, Nq, dv) or None, and u_i = sum_j L_ij v_hat_j (B, H, Nq, s), A the softmax over keys
        and L that over queries. The columns of L sum to 1, its rows need not.

    Raises:
        UsageError: an operand of another shape, a mask that is not boolean.
        BackendError: a backend asked for by name cannot be used here.
    """
    _check_pairs(q, k, v_hat, v=v, bias=bias, visible=visible)
    found: tuple[Tensor | None, Tensor] = TWO_WAY_ATTENTION(
        q, k, v, v_hat, bias=bias, visible=visible, scale=scale, backend=backend
    )
    return found


def hyper_transform(u: Tensor, q_hat: Tensor, hyper: Tensor, *, backend: str = "auto") -> Tensor:
    """out_i[c] = sum_ab u_i[a] q_hat_i[b] G[a, b, c] (Sec. 3.1): each query through the matrix that its values make.

    Args:
        u, q_hat: (B, H, N, s). hyper: G (s, s, dv); its first axis contracts with the values, its second with the query.

    Errors as `two_way_attention`.
    """
    sizes = Sizes()
    sizes.fit("u", u, "B H N s")
    sizes.fit("q_hat", q_hat, "B H N s")
    sizes.fit("hyper", hyper, "s s dv")
    found: Tensor = HYPER_TRANSFORM(u, q_hat, hyper, backend=backend)
    return found


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
    backend: str = "auto",
) -> Tensor:
    """isa_i = sum_j L_ij (q_hat_i W_j), W_j = v_hat_j G, L the softmax of the scores over queries (Eq. 2); (B, H, Nq, dv).

    Errors as `two_way_attention`.
    """
    sizes = _check_pairs(q, k, v_hat, bias=bias, visible=visible)
    sizes.fit("q_hat", q_hat, "B H Nq s")
    sizes.fit("hyper", hyper, "s s dv")
    found: Tensor = INVERSE_ATTENTION(
        q, k, q_hat, v_hat, hyper, bias=bias, visible=visible, scale=scale, backend=backend
    )
    return found


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
    backend: str = "auto",
) -> Tensor:
    """isa_i = sum_j L_ij (W2 GELU(W1 [q_hat_i ; v_hat_j] + b1) + b2), the MLP shared by heads (Table 3); (B, H, Nq, dv).

    Args:
        expand, expand_bias: W1 (m, 2 s), b1 (m). contract, contract_bias: W2 (dv, m), b2 (dv).

    Errors as `two_way_attention`.
    """
    sizes = _check_pairs(q, k, v_hat, bias=bias, visible=visible)
    sizes.fit("q_hat", q_hat, "B H Nq s")
    for name, tensor, letters in (
        ("expand", expand, "m 2s"),
        ("expand_bias", expand_bias, "m"),
        ("contract", contract, "dv m"),
        ("contract_bias", contract_bias, "dv"),
    ):
        sizes.fit(name, tensor, letters)
    if not sizes.is_double("2s", "s"):
        raise UsageError(f"expand is (m, 2 s) with s = {q_hat.shape[-1]}, not of shape {tuple(expand.shape)}")
    found: Tensor = INVERSE_ATTENTION_MLP(
        q,
        k,
        q_hat,
        v_hat,
        expand=expand,
        expand_bias=expand_bias,
        contract=contract,
        contract_bias=contract_bias,
        bias=bias,
        visible=visible,
        scale=scale,
        backend=backend,
    )
    return found
