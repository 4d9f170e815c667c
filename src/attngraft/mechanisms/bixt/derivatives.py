"""What the custom operations with a written-out backward have in common: room for results, derivatives, costs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngraft.dispatch.flops import register_flops
from attngraft.dispatch.formula import accurate, differentiable
from attngraft.mechanisms.bixt.formula import formula
from attngraft.mechanisms.layout import room


def empty_outputs(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """For latents (B, H, M, dt), tokens (B, H, N, dl) and the latents' log-sum-exp (B, H, M), this in full precision."""
    latents = r_latents.expand(len(r_tokens), -1, -1, -1)
    lse = r_latents.new_empty(latents.shape[:3], dtype=accurate(r_latents))
    return room(latents, v_tokens), room(r_tokens, v_latents), lse


def empty_gradients(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For those of the operands, a batch of 1 as such."""
    return room(r_latents, r_latents), room(r_tokens, r_tokens), room(v_latents, v_latents), room(v_tokens, v_tokens)


def register(name: str, attend: Any, backward: Any) -> None:
    """Tell torch about the custom operations `attngraft::<name>` and `attngraft::<name>_backward`.

    Args:
        attend: from r_latents, r_tokens, v_latents, v_tokens and scale to what `empty_outputs` has room for.
        backward: from the gradients of latents and tokens, the four operands, latents, log-sum-exp and scale to what
            `empty_gradients` has room for.
    """

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *operands, ctx.scale = inputs
        latents, _, lse = output
        ctx.save_for_backward(*operands, latents, lse)

    def gradients(ctx: Any, dlatents: Tensor, dtokens: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        *operands, latents, lse = ctx.saved_tensors
        if torch.is_grad_enabled():  # these gradients are to be differentiated again
            return *differentiable(lambda *o: formula(*o, scale=ctx.scale), operands, (dlatents, dtokens)), None
        return *backward(dlatents, dtokens, *operands, latents, lse, ctx.scale), None

    attend.register_fake(lambda *inputs: empty_outputs(*inputs[:4]))
    backward.register_fake(lambda dlatents, dtokens, *rest: empty_gradients(*rest[:4]))
    attend.register_autograd(gradients, setup_context=setup_context)
    register_flops(getattr(torch.ops.attngraft, name), _flops)
    register_flops(
        getattr(torch.ops.attngraft, f"{name}_backward"),  # two products for each one of the forward
        lambda dlatents, dtokens, *operands, **options: 2 * _flops(*operands, **options),
    )


def _flops(r_latents: Any, r_tokens: Any, v_latents: Any, v_tokens: Any, *_: Any, **__: Any) -> int:
    """The similarity and both sums, each once: how often an implementation makes its scores again is its own affair."""
    batch, heads, tokens, width = r_tokens
    return int(2 * batch * heads * tokens * r_latents[2] * (width + v_latents[-1] + v_tokens[-1]))
