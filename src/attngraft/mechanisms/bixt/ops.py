"""The public operation of bi-directional cross-attention, with its backends.

Shapes: r_latents (b, H, M, d), r_tokens (B, H, N, d), v_latents (b, H, M, dl), v_tokens (B, H, N, dt), where b is B, or 1
for latents that all images share.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attngraft.dispatch import Backend, Op, operands_obstacle
from attngraft.errors import UsageError
from attngraft.mechanisms.bixt import eager, reference
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


BIDIRECTIONAL_ATTENTION = Op(
    "bidirectional_attention",
    "softmax of one similarity over tokens times their values, and over latents times theirs",
    backends={
        "reference": Backend(reference.bidirectional_attention),
        "eager": Backend(eager.bidirectional_attention),
        "triton": Backend(_triton, _obstacle),
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


def _check(r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor) -> None:
    sizes = Sizes()
    sizes.fit("r_tokens", r_tokens, "B H N d")
    sizes.fit("v_tokens", v_tokens, "B H N dt")
    for name, tensor, width in (("r_latents", r_latents, "d"), ("v_latents", v_latents, "dl")):
        shared = tensor.ndim == 4 and tensor.shape[0] == 1
        sizes.fit(name, tensor, f"{'1' if shared else 'B'} H M {width}")
