"""The operations of bi-directional cross-attention, with their shape checks and backends."""

from functools import partial
from typing import Any

from torch import Tensor

from attngraft.dispatch import Backend, Op, Shapes, operands_obstacle, triton_obstacle
from attngraft.errors import UsageError
from attngraft.mechanisms.bixt import eager, reference

#: channels per head, and latents, that fit the tiles of a Triton program
WIDEST = 128
MOST_LATENTS = 128


def _obstacle(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor, *, dropout: float = 0.0, **_: Any
) -> str | None:
    obstacle = operands_obstacle(r_latents, r_tokens, v_latents, v_tokens, widest=WIDEST)
    if obstacle is None and r_latents.shape[2] > MOST_LATENTS:
        obstacle = f"the kernels take up to {MOST_LATENTS} latents, not {r_latents.shape[2]}"
    if obstacle is None and dropout:
        obstacle = "the kernels have no dropout"
    return obstacle


def _projected_obstacle(r_latents: Tensor, v_latents: Tensor, tokens: Tensor, *_: Any, **__: Any) -> str | None:
    return triton_obstacle(tokens) or _obstacle(r_latents, r_latents, v_latents, v_latents)


def _eager_obstacle(r_latents: Tensor, *_: Any, **__: Any) -> str | None:
    return "it is written for CPUs; on a GPU the reference is faster" if r_latents.is_cuda else None


def _triton(*operands: Tensor, dropout: float = 0.0, **options: Any) -> tuple[Tensor, Tensor]:
    from attngraft.mechanisms.bixt import triton  # here: needs Triton

    return triton.bidirectional_attention(*operands, **options)


def _check_dropout(*, dropout: float = 0.0, **_: Any) -> None:
    if not 0 <= dropout < 1:
        raise UsageError(f"dropout must be a probability in [0, 1), not {dropout}")


bidirectional_attention = Op(
    reference.bidirectional_attention,
    "softmax of one similarity over tokens times their values, and over latents times theirs",
    shapes=Shapes(r_tokens="B, H, N, d", v_tokens="B, H, N, dt", r_latents="b, H, M, d", v_latents="b, H, M, dl"),
    check=_check_dropout,
    eager=Backend(eager.bidirectional_attention, _eager_obstacle),
    triton=Backend(_triton, _obstacle),
)
projected_attention = Op(
    reference.projected_attention,
    "bidirectional_attention with the tokens' projections before and after it",
    shapes=Shapes(
        tokens="B, N, c",
        r_latents="b, H, M, d",
        v_latents="b, H, M, d",
        in_weight="2 H d, c",
        in_bias="2 H d",
        out_weight="c', H d",
        out_bias="c'",
    ),
    eager=Backend(eager.projected_attention, _eager_obstacle),
    triton=Backend(partial(reference.projected_attention, attention=_triton), _projected_obstacle),
)
