"""Bi-directional cross-attention with folded projections (folding.py), piece by piece, with its backward written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attngraft.dispatch.flops import register_flops
from attngraft.dispatch.formula import differentiable
from attngraft.mechanisms.bixt.folding import Latents, by_head, fold, unfold
from attngraft.mechanisms.bixt.formula import formula, projected
from attngraft.mechanisms.bixt.pieces import Backward, Buffers, Forward, pieces


def _of(latents: Latents, image: int, heads: int) -> dict[str, Any]:
    """What `Forward` and `Backward` take of an image: all heads share its tokens, as one matrix."""
    keys, answers = _at(image, latents.keys), _at(image, latents.answers)
    return {
        "r_latents": latents.keys[keys],
        "v_latents": latents.answers[answers],
        "heads": heads,
        "shift": latents.shifts[keys],
    }


def _at(image: int, latents: Tensor) -> slice:
    """Where an image has its own, or those that all share: references and values may differ in that."""
    return slice(image, image + 1) if len(latents) > 1 else slice(1)


def _pieces(tiles: int, r_latents: Tensor, tokens: Tensor) -> tuple[list[slice], Buffers]:
    columns = r_latents.shape[1] * r_latents.shape[2]
    steps = pieces(tokens.shape[1], columns, tokens.device)
    return steps, Buffers(tiles, (steps[0].stop, columns), tokens)


@torch.library.custom_op("attngraft::projected_attention_lean", mutates_args=())
def attend(
    r_latents: Tensor,
    v_latents: Tensor,
    tokens: Tensor,
    in_weight: Tensor,
    in_bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Latents (B, H, M, d), tokens (B, N, c'), what was gathered (B, H M, c), log sum over tokens of exp(A) (B, H M).

    All of one dtype, float32 or float64; neither M nor N is 0.
    """
    found, out, gathered, log_sums = _empty_outputs(r_latents, tokens, out_weight)
    heads = r_latents.shape[1]
    weights = by_head(in_weight, in_bias, out_weight, heads)
    latents = fold(r_latents, v_latents, weights, out_bias, scale)
    steps, buffers = _pieces(2, r_latents, tokens)
    for image in range(len(tokens)):
        one = slice(image, image + 1)
        walk = Forward(**_of(latents, image, heads), buffers=buffers)
        for step in steps:
            piece = tokens[one, step]
            walk.step(piece, piece, out=out[one, step])
        gathered[one], log_sums[one] = walk.latents()
    found.copy_(unfold(gathered, weights))
    return found, out, gathered, log_sums


def _empty_outputs(r_latents: Tensor, tokens: Tensor, out_weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (batch, count, width), (heads, rows, head_width) = tokens.shape, r_latents.shape[1:]
    return (
        tokens.new_empty(batch, rows, heads, head_width).transpose(1, 2),
        tokens.new_empty(batch, count, out_weight.shape[0]),
        tokens.new_empty(batch, heads * rows, width),
        tokens.new_empty(batch, heads * rows),
    )


@attend.register_fake
def _(
    r_latents: Tensor,
    v_latents: Tensor,
    tokens: Tensor,
    in_weight: Tensor,
    in_bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _empty_outputs(r_latents, tokens, out_weight)


@torch.library.custom_op("attngraft::projected_attention_lean_backward", mutates_args=())
def attend_backward(
    to_latents: Tensor,
    to_out: Tensor,
    r_latents: Tensor,
    v_latents: Tensor,
    tokens: Tensor,
    in_weight: Tensor,
    in_bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor,
    gathered: Tensor,
    log_sums: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the seven operands; that of `in_bias` also where it is None, and means nothing then."""
    with torch.autocast(tokens.device.type, enabled=False):
        heads = r_latents.shape[1]
        weights = by_head(in_weight, in_bias, out_weight, heads)
        latents = fold(r_latents, v_latents, weights, out_bias, scale)
        steps, buffers = _pieces(3, r_latents, tokens)
        to_tokens = torch.empty_like(tokens, memory_format=torch.contiguous_format)
        to_keys, to_shifts, to_answers = (torch.zeros_like(tensor) for tensor in latents)
        to_gathered = (to_latents @ weights.to_v).flatten(1, 2)
        for image in range(len(tokens)):
            one = slice(image, image + 1)
            walk = Backward(
                **_of(latents, image, heads),
                to_latents=to_gathered[one],
                latents=gathered[one],
                log_sums=log_sums[one],
                buffers=buffers,
            )
            for step in steps:
                piece, out = tokens[one, step], to_tokens[one, step]
                walk.step(piece, piece, to_out[one, step], to_r=out, to_v=out)
            to_keys[_at(image, to_keys)] += walk.to_r
            to_shifts[_at(image, to_shifts)] += walk.to_shift
            to_answers[_at(image, to_answers)] += walk.to_v
        of_keys, of_answers = (tensor.unflatten(1, (heads, -1)) for tensor in (to_keys, to_answers))
        of_shifts = to_shifts.view(*of_keys.shape[:3], 1)
        to_scaled = of_keys @ weights.to_r.mT
        if weights.r_bias is not None:
            to_scaled += of_shifts * weights.r_bias
        scaled, by_latent = r_latents * scale, gathered.unflatten(1, (heads, -1))
        to_in = [torch.einsum("bhmd,bhmc->hdc", *pair) for pair in ((scaled, of_keys), (to_latents, by_latent))]
        to_biases = [(scaled * of_shifts).sum((0, 2)), to_latents.sum((0, 2))]
        return (
            (to_scaled * scale).contiguous(),
            (of_answers @ weights.out.mT).contiguous(),
            to_tokens,
            torch.stack(to_in).flatten(0, 2),
            torch.stack(to_biases).flatten(),
            torch.einsum("bhmo,bhmd->ohd", of_answers, v_latents).flatten(1).contiguous(),
            to_answers.sum((0, 1)).div_(heads),
        )


@attend_backward.register_fake
def _(
    to_latents: Tensor,
    to_out: Tensor,
    r_latents: Tensor,
    v_latents: Tensor,
    tokens: Tensor,
    in_weight: Tensor,
    in_bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor,
    *_: Any,
) -> tuple[Tensor, ...]:
    bias = in_weight.new_empty(len(in_weight))
    operands = (r_latents, v_latents, tokens, in_weight, bias, out_weight, out_bias)
    return tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in operands)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output[2:])


def _backward(ctx: Any, to_latents: Tensor, to_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, gathered, log_sums = ctx.saved_tensors
    if torch.is_grad_enabled():  # these gradients are to be differentiated again

        def plain(*operands: Tensor) -> tuple[Tensor, Tensor]:
            return projected(*operands, attention=formula, scale=ctx.scale)

        return *differentiable(plain, inputs, (to_latents, to_out)), None
    found = attend_backward(to_latents, to_out, *inputs, gathered, log_sums, ctx.scale)
    return *(gradient if tensor is not None else None for tensor, gradient in zip(inputs, found, strict=True)), None


attend.register_autograd(_backward, setup_context=_setup_context)


def _forward_flops(*operands: Any, **options: Any) -> int:
    """Of the layer as it is defined, unfolded: projections, similarity and both sums, each once."""
    r_latents, tokens, in_weight, out_weight = operands[0], operands[2], operands[3], operands[5]
    (batch, count, _), (heads, rows, width) = tokens, r_latents[1:]
    per_token = in_weight[0] * in_weight[1] + out_weight[0] * out_weight[1] + 3 * heads * rows * width
    return int(2 * batch * count * per_token)


register_flops(torch.ops.attngraft.projected_attention_lean, _forward_flops)
register_flops(
    torch.ops.attngraft.projected_attention_lean_backward,  # two products for each one of the forward
    lambda to_latents, to_out, *operands, **options: 2 * _forward_flops(*operands, **options),
)
