"""Bi-directional cross-attention with the projections of the tokens in it, folded into the latents.

Tokens x_n become references and values by W_r, W_v, and what they get leaves by W_out. All of that is linear, and the
latents are few. So they are projected in the tokens' place, and tokens are used as they are; of head h and latent m:

    A        x_n . key_hm                                key_hm     scale r_latent_hm W_r,h
    latents  (softmax over tokens(A) x)_hm W_v,h^T
    tokens   sum_hm softmax over m(A)_nhm answer_hm      answer_hm  v_latent_hm W_out,h^T

What is left per token are three products, each with all heads at once: less than before where d > M c / (M + c), d a head's
width and c the tokens' (three quarters of it for heads of 64, 64 latents, c = 192). References, values and what the tokens
get before it is projected are never made. A bias is the weight of one more channel, which is 1 for every token; that of the
output is shared out among the heads, because the weights of each add up to 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngraft.dispatch.flops import register_flops
from attngraft.dispatch.formula import differentiable
from attngraft.mechanisms.bixt.formula import formula, projected
from attngraft.mechanisms.bixt.pieces import Backward, Buffers, Forward, pieces


class _Weights(NamedTuple):
    """The projections by head, biases among them."""

    to_r: Tensor  #: (H, d, c + 1)
    to_v: Tensor  #: (H, d, c + 1)
    out: Tensor  #: (H, d, c')


def _by_head(in_weight: Tensor, in_bias: Tensor | None, out_weight: Tensor, heads: int) -> _Weights:
    bias = in_weight.new_zeros(len(in_weight)) if in_bias is None else in_bias
    to_r, to_v = torch.cat([in_weight, bias.unsqueeze(-1)], -1).unflatten(0, (2, heads, -1))
    return _Weights(to_r, to_v, out_weight.t().unflatten(0, (heads, -1)))


class _Latents:
    """The latents as the tokens meet them: keys (b, H M, c), shifts (b, 1, H M) and answers (b, H M, c')."""

    def __init__(self, r_latents: Tensor, v_latents: Tensor, weights: _Weights, out_bias: Tensor, scale: float) -> None:
        self.heads = r_latents.shape[1]
        keys = torch.einsum("bhmd,hdc->bhmc", r_latents * scale, weights.to_r).flatten(1, 2)
        answers = torch.einsum("bhmd,hdo->bhmo", v_latents, weights.out).flatten(1, 2)
        self.keys, self.shifts = keys[..., :-1].contiguous(), keys[..., -1].unsqueeze(1)
        self.answers = answers + out_bias / self.heads

    def of(self, image: int) -> dict[str, Any]:
        """What `Forward` and `Backward` take of an image: all heads share its tokens, as one matrix."""
        keys, answers = _at(image, self.keys), _at(image, self.answers)
        return {
            "r_latents": self.keys[keys],
            "v_latents": self.answers[answers],
            "heads": self.heads,
            "shift": self.shifts[keys],
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
    """Latents (B, H, M, d), tokens (B, N, c'), what was gathered (B, H M, c + 1), log sum over tokens of exp(A) (B, H M).

    All of one dtype, float32 or float64; neither M nor N is 0.
    """
    found, out, gathered, log_sums = _empty_outputs(r_latents, tokens, out_weight)
    weights = _by_head(in_weight, in_bias, out_weight, r_latents.shape[1])
    latents = _Latents(r_latents, v_latents, weights, out_bias, scale)
    steps, buffers = _pieces(2, r_latents, tokens)
    gathered[..., -1] = 1
    for image in range(len(tokens)):
        one = slice(image, image + 1)
        walk = Forward(**latents.of(image), buffers=buffers)
        for step in steps:
            piece = tokens[one, step]
            walk.step(piece, piece, out=out[one, step])
        gathered[one, :, :-1], log_sums[one] = walk.latents()
    found.copy_(torch.einsum("bhmc,hdc->bhmd", gathered.unflatten(1, (latents.heads, -1)), weights.to_v))
    return found, out, gathered, log_sums


def _empty_outputs(r_latents: Tensor, tokens: Tensor, out_weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (batch, count, width), (heads, rows, head_width) = tokens.shape, r_latents.shape[1:]
    return (
        tokens.new_empty(batch, rows, heads, head_width).transpose(1, 2),
        tokens.new_empty(batch, count, out_weight.shape[0]),
        tokens.new_empty(batch, heads * rows, width + 1),
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
        weights = _by_head(in_weight, in_bias, out_weight, heads)
        latents = _Latents(r_latents, v_latents, weights, out_bias, scale)
        steps, buffers = _pieces(3, r_latents, tokens)
        to_tokens = torch.empty_like(tokens, memory_format=torch.contiguous_format)
        to_keys = tokens.new_zeros(len(r_latents), *gathered.shape[1:])  # the shifts' last
        to_answers = torch.zeros_like(latents.answers)
        to_gathered = torch.einsum("bhmd,hdc->bhmc", to_latents, weights.to_v).flatten(1, 2)[..., :-1].contiguous()
        for image in range(len(tokens)):
            one = slice(image, image + 1)
            walk = Backward(
                **latents.of(image),
                to_latents=to_gathered[one],
                latents=gathered[one, :, :-1],
                log_sums=log_sums[one],
                buffers=buffers,
            )
            for step in steps:
                piece, out = tokens[one, step], to_tokens[one, step]
                walk.step(piece, piece, to_out[one, step], to_r=out, to_v=out)
            here = to_keys[_at(image, to_keys)]
            here[..., :-1] += walk.to_r
            here[..., -1:] += walk.to_shift.mT
            to_answers[_at(image, to_answers)] += walk.to_v
        to_keys, by_head = (tensor.unflatten(1, (heads, -1)) for tensor in (to_keys, to_answers))
        to_in = torch.stack(
            [
                torch.einsum("bhmc,bhmd->hdc", to_keys, r_latents * scale),
                torch.einsum("bhmc,bhmd->hdc", gathered.unflatten(1, (heads, -1)), to_latents),
            ]
        ).flatten(0, 2)
        return (
            torch.einsum("bhmc,hdc->bhmd", to_keys, weights.to_r * scale).contiguous(),
            torch.einsum("bhmo,hdo->bhmd", by_head, weights.out).contiguous(),
            to_tokens,
            to_in[:, :-1].contiguous(),
            to_in[:, -1].contiguous(),
            torch.einsum("bhmo,bhmd->ohd", by_head, v_latents).flatten(1).contiguous(),
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
