"""The public operations of bi-directional cross-attention, with their backends.

Shapes: r_latents (b, H, M, d), r_tokens (B, H, N, d), v_latents (b, H, M, dl), v_tokens (B, H, N, dt), where b is B, or 1
for latents that all images share; d = dl = dt where the projections of the tokens are in the operation.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from attngraft.dispatch import Backend, Op, operands_obstacle, triton_obstacle
from attngraft.errors import UsageError
from attngraft.mechanisms.bixt import eager, reference
from attngraft.mechanisms.bixt.formula import projected
from attngraft.mechanisms.sizes import Sizes

#: channels per head, and latents, that a Triton program's tiles have room for
WIDEST = 128
MOST_LATENTS = 128


def _obstacle(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor, *, dropout: float = 0.0, **_: Any
) -> str | None:
    obstacle = operands_obstacle(r_latents, r_tokens, v_latents, v_tokens, widest=WIDEST)
    if obstacle is None and r_latents.shape[2] > MOST_LATENTS:
        obstacle = f"the kernels take up to {MOST_LATENTS} latents, and these are {r_latents.shape[2]}"
    if obstacle is None and dropout:
        obstacle = "the kernels drop nothing, and dropout is asked for"
    return obstacle


def _triton(*operands: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    from attngraft.mechanisms.bixt import triton  # here: needs Triton

    options.pop("dropout", None)  # 0, or there was an obstacle
    found: tuple[Tensor, Tensor] = triton.bidirectional_attention(*operands, **options)
    return found


def _projected_obstacle(r_latents: Tensor, v_latents: Tensor, tokens: Tensor, *_: Any, **__: Any) -> str | None:
    return triton_obstacle(tokens) or _obstacle(r_latents, r_latents, v_latents, v_latents)


BIDIRECTIONAL_ATTENTION = Op(
    "bidirectional_attention",
    "softmax of one similarity over tokens times their values, and over latents times theirs",
    backends={
        "reference": Backend(reference.bidirectional_attention),
        "eager": Backend(eager.bidirectional_attention),
        "triton": Backend(_triton, _obstacle),
    },
)
PROJECTED_ATTENTION = Op(
    "projected_attention",
    "bidirectional_attention with the tokens' projections before and after it",
    backends={
        "reference": Backend(partial(projected, attention=reference.bidirectional_attention)),
        "eager": Backend(eager.projected_attention),
        "triton": Backend(partial(projected, attention=_triton), _projected_obstacle),
    },
)


def bidirectional_attention(
    r_latents: Tensor,
    r_tokens: Tensor,
    v_latents: Tensor,
    v_tokens: Tensor,
    *,
    scale: float,
    dropout: float = 0.0,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Both directions of A = scale r_latents r_tokens^T; shapes as above.

    Args:
        dropout: probability with which each entry of a direction's map is dropped, both directions apart; 0 outside
            training. With it the maps are held whole, M x N numbers per head.

    Returns:
        softmax over tokens(A) v_tokens (B, H, M, dt), and softmax over latents(A) v_latents (B, H, N, dl).

    Raises:
        UsageError: an operand of another shape, a dropout that is no probability below 1.
        BackendError: a backend asked for by name cannot be used here.
    """
    _check(r_latents, r_tokens, v_latents, v_tokens)
    if not 0 <= dropout < 1:
        raise UsageError(f"dropout is a probability from 0 to below 1, not {dropout}")
    found: tuple[Tensor, Tensor] = BIDIRECTIONAL_ATTENTION(
        r_latents, r_tokens, v_latents, v_tokens, scale=scale, dropout=dropout, backend=backend
    )
    return found


def projected_attention(
    r_latents: Tensor,
    v_latents: Tensor,
    tokens: Tensor,
    in_weight: Tensor,
    in_bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor,
    *,
    scale: float,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """`bidirectional_attention` of tokens that are projected on the way in and on the way out.

        r_tokens, v_tokens = in_weight tokens + in_bias, by head;  out_weight (what the tokens get, heads joined) + out_bias

    On the CPU, where there are many tokens, neither references and values nor maps of all of them exist whole, forward or
    backward: of the size of the tokens there is the output, and in training the gradient.

    Args:
        tokens: (B, N, c). in_weight: (2 H d, c), rows of the references before those of the values, each by head.
            in_bias: (2 H d). out_weight: (c', H d). out_bias: (c').

    Returns:
        Latents (B, H, M, d), not projected, and tokens (B, N, c').

    Errors as `bidirectional_attention`.
    """
    _check_projected(r_latents, v_latents, tokens, in_weight, in_bias, out_weight, out_bias)
    found: tuple[Tensor, Tensor] = PROJECTED_ATTENTION(
        r_latents, v_latents, tokens, in_weight, in_bias, out_weight, out_bias, scale=scale, backend=backend
    )
    return found


def _check_projected(
    r_latents: Tensor,
    v_latents: Tensor,
    tokens: Tensor,
    in_weight: Tensor,
    in_bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor,
) -> None:
    sizes = Sizes()
    sizes.fit("tokens", tokens, "B N c")
    for name, tensor in (("r_latents", r_latents), ("v_latents", v_latents)):
        sizes.fit(name, tensor, f"{_batch(tensor)} H M d")
    sizes.fit("in_weight", in_weight, "2Hd c")
    if in_bias is not None:
        sizes.fit("in_bias", in_bias, "2Hd")
    sizes.fit("out_weight", out_weight, "c' Hd")
    sizes.fit("out_bias", out_bias, "c'")
    width = r_latents.shape[1] * r_latents.shape[3]
    if in_weight.shape[0] != 2 * width or out_weight.shape[1] != width:
        raise UsageError(
            f"in_weight is (2 H d, c) and out_weight (c', H d) with H d = {width} by the latents, not of shapes "
            f"{tuple(in_weight.shape)} and {tuple(out_weight.shape)}"
        )


def _check(r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor) -> None:
    sizes = Sizes()
    sizes.fit("r_tokens", r_tokens, "B H N d")
    sizes.fit("v_tokens", v_tokens, "B H N dt")
    for name, tensor, width in (("r_latents", r_latents, "d"), ("v_latents", v_latents, "dl")):
        sizes.fit(name, tensor, f"{_batch(tensor)} H M {width}")


def _batch(latents: Tensor) -> str:
    """The letter for the batch of latents, which may be shared."""
    return "1" if latents.ndim == 4 and latents.shape[0] == 1 else "B"
