"""The equations of horizontal and vertical attention, spelled out; every faster path is tested against them.

Letters: B batch, N query tokens, H heads, dv width of a head's values, C model width, Da squeezed width. Weights are
stored as (out, in), like those of `torch.nn.Linear`.
"""

import torch
from torch import Tensor


def horizontal_attention(
    heads: Tensor, x: Tensor, head: Tensor, context: Tensor, score: Tensor, score_bias: Tensor, identity: bool = False
) -> tuple[Tensor, Tensor]:
    """Re-weight the heads of every token (Eqs. 5, 6), between attention and the output projection.

        A_m = relu(H_m W^A1 + x W^A2);  alpha = softmax over m of (A_m W^B + b^B);  alpha_m H_m

    The weights are shared by all heads. Tokens are not mixed, so causal attention stays causal. b^B shifts the scores of all
    heads equally, so it does not change alpha and its gradient is zero.

    Args:
        heads: (B, H, N, dv).
        x: query input of the attention module, (B, N, C).
        head, context, score, score_bias: W^A1 (dv, dv), W^A2 (dv, C), W^B (1, dv), b^B (1), laid out (out, in).
        identity: weight by H alpha instead of alpha, which with score = 0 leaves the heads unchanged.

    Returns:
        The weighted heads (B, H, N, dv), and alpha (B, N, H), which sums to 1 over heads.

    Raises:
        BackendError: the backend cannot be used here.
    """
    hidden = torch.relu(heads @ head.T + (x @ context.T).unsqueeze(1))  # (B, H, N, dv)
    scores = hidden @ score.T + score_bias  # (B, H, N, 1)
    alpha = torch.softmax(scores, dim=1)
    weighted = (heads.shape[1] * alpha if identity else alpha) * heads
    return weighted, alpha.squeeze(-1).transpose(1, 2)


def vertical_attention(
    merged: Tensor,
    x: Tensor,
    context: Tensor,
    merged_weight: Tensor,
    gate: Tensor,
    gate_bias: Tensor,
    identity: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gate the channels of every token (Eqs. 7, 8), after the output projection and before its dropout.

        U = relu(x W^U1 + Y W^U2);  beta = sigmoid(U W^U + b^U);  beta * Y

    Tokens are not mixed.

    Args:
        merged: Y, the output of the output projection, bias included, (B, N, C).
        x: query input of the attention module, (B, N, C), or (B, N, another width) if the module widens its tokens.
        context, merged_weight, gate, gate_bias: W^U1 (Da, width of x), W^U2 (Da, C), W^U (C, Da), b^U (C), laid out
            (out, in).
        identity: gate by 2 beta instead of beta, which with gate = 0 and gate_bias = 0 leaves the tokens unchanged.

    Returns:
        The gated tokens and beta, both (B, N, C).

    Raises:
        BackendError: the backend cannot be used here.
    """
    hidden = torch.relu(x @ context.T + merged @ merged_weight.T)
    beta = torch.sigmoid(hidden @ gate.T + gate_bias)
    return (2 * beta if identity else beta) * merged, beta
