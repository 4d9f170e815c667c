"""The public operations of horizontal and vertical attention, with their backends."""

from __future__ import annotations

from torch import Tensor

from attngraft.dispatch import Backend, Op
from attngraft.mechanisms.horizontal_vertical import eager, reference

HORIZONTAL_ATTENTION = Op(
    "horizontal_attention",
    "heads weighed per token by alpha = softmax over heads of relu(heads W^A1 + x W^A2) W^B + b^B",
    backends={"reference": Backend(reference.horizontal_attention), "eager": Backend(eager.horizontal_attention)},
)
VERTICAL_ATTENTION = Op(
    "vertical_attention",
    "channels gated per token by beta = sigmoid(relu(x W^U1 + Y W^U2) W^U + b^U)",
    backends={"reference": Backend(reference.vertical_attention), "eager": Backend(eager.vertical_attention)},
)


def horizontal_attention(
    heads: Tensor,
    x: Tensor,
    *,
    head: Tensor,
    context: Tensor,
    score: Tensor,
    score_bias: Tensor,
    identity: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Re-weigh the heads of every token (Eqs. 5, 6), between attention and the output projection.

    alpha = softmax over heads of (relu(H_m W^A1 + x W^A2) W^B + b^B), the weights shared by all heads. Tokens are not
    mixed, so causal attention stays causal. b^B shifts all heads alike and changes nothing; its gradient is zero.

    Args:
        heads: (B, H, N, dv). x: what the attention module received as queries, (B, N, C).
        head, context, score, score_bias: W^A1 (dv, dv), W^A2 (dv, C), W^B (1, dv), b^B (1), laid out (out, in).
        identity: weigh by H alpha instead of alpha, which with score = 0 leaves the heads as they are.

    Returns:
        The weighed heads (B, H, N, dv), and alpha (B, N, H), which sums to 1 over heads.

    Raises:
        BackendError: a backend asked for by name cannot be used here.
    """
    return HORIZONTAL_ATTENTION(
        heads, x, head=head, context=context, score=score, score_bias=score_bias, identity=identity, backend=backend
    )


def vertical_attention(
    merged: Tensor,
    x: Tensor,
    *,
    context: Tensor,
    merged_weight: Tensor,
    gate: Tensor,
    gate_bias: Tensor,
    identity: bool = False,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Re-calibrate the channels of every token (Eqs. 7, 8), after the output projection and before its dropout.

    beta = sigmoid(relu(x W^U1 + Y W^U2) W^U + b^U); the result is beta * Y. Tokens are not mixed.

    Args:
        merged: Y, the output projection's output, its bias included, (B, N, C).
        x: what the attention module received as queries, (B, N, C), or of another width where the module widens its tokens.
        context, merged_weight, gate, gate_bias: W^U1 (Da, width of x), W^U2 (Da, C), W^U (C, Da), b^U (C), laid out
            (out, in).
        identity: gate by 2 beta instead of beta, which with gate = 0 and gate_bias = 0 leaves the tokens as they are.

    Returns:
        The gated tokens and beta, both (B, N, C).

    Raises:
        BackendError: a backend asked for by name cannot be used here.
    """
    return VERTICAL_ATTENTION(
        merged,
        x,
        context=context,
        merged_weight=merged_weight,
        gate=gate,
        gate_bias=gate_bias,
        identity=identity,
        backend=backend,
    )
