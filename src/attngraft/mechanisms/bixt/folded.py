"""Bi-directional cross-attention with the tokens' projections folded into the latents, which are few.

Tokens x_n are projected to references and values by W_r and W_v, and their results to outputs by W_out. All of these maps
are linear, so the latents can be projected instead and the tokens are used unprojected. For head h and latent m:

    A        x_n . key_hm                                key_hm     scale r_latent_hm W_r,h
    latents  (softmax over tokens(A) x)_hm W_v,h^T
    tokens   sum_hm softmax over m(A)_nhm answer_hm      answer_hm  v_latent_hm W_out,h^T

Three products per token remain, each with all heads at once. This is less work if d > M c / (M + c), where d is the width of
a head and c the width of the tokens (three quarters of the work for d = 64, M = 64, c = 192). References, values and the
tokens' results before their projection are never computed.

The bias of the references shifts a latent's scores equally for all tokens, which matters in the softmax over latents. The
other two biases are added after weighting, because the weights sum to 1; the output bias is divided equally among the heads.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attngraft.dispatch.autograd import custom_op
from attngraft.mechanisms.bixt import reference
from attngraft.mechanisms.bixt.formula import formula
from attngraft.mechanisms.bixt.pieces import Backward, Buffers, Forward, pieces

#: largest ratio of folded to unfolded multiply-adds for which folding pays, given the time spent on folding
WORTH = 0.9


def pays(r_latents: Tensor, tokens: Tensor, out_weight: Tensor) -> bool:
    """Return whether folding the projections saves enough multiply-adds.

    For one head, with k = 2 c + c' input and output channels of the tokens: M (N + d) k folded, N d k + 3 N M d unfolded.
    """
    rows, width, count = *r_latents.shape[2:], tokens.shape[1]
    channels = 2 * tokens.shape[2] + out_weight.shape[0]
    return rows * channels * (count + width) < WORTH * count * width * (channels + 3 * rows)


class Weights(NamedTuple):
    """Projections of the tokens, split into heads."""

    to_r: Tensor  #: (H, d, c)
    to_v: Tensor  #: (H, d, c)
    out: Tensor  #: (H, d, c')
    r_bias: Tensor | None  #: (H, 1, d)
    v_bias: Tensor | None  #: (H, 1, d)


class Latents(NamedTuple):
    """Latents combined with the projections of the tokens, so that raw tokens can attend to them."""

    keys: Tensor  #: (b, H M, c)
    shifts: Tensor  #: (b, 1, H M), added to the scores of all tokens
    answers: Tensor  #: (b, H M, c')


def by_head(in_weight: Tensor, in_bias: Tensor | None, out_weight: Tensor, heads: int) -> Weights:
    to_r, to_v = in_weight.unflatten(0, (2, heads, -1))
    biases = (None, None) if in_bias is None else in_bias.view(2, heads, 1, -1).unbind()
    return Weights(to_r, to_v, out_weight.t().unflatten(0, (heads, -1)), *biases)


def fold(r_latents: Tensor, v_latents: Tensor, weights: Weights, out_bias: Tensor, scale: float) -> Latents:
    scaled = r_latents * scale
    keys = (scaled @ weights.to_r).flatten(1, 2)
    if weights.r_bias is None:
        shifts = keys.new_zeros(len(keys), 1, keys.shape[1])
    else:
        shifts = (scaled @ weights.r_bias.mT).view(len(keys), 1, -1)
    return Latents(keys, shifts, (v_latents @ weights.out).flatten(1, 2) + out_bias / r_latents.shape[1])


def unfold(gathered: Tensor, weights: Weights) -> Tensor:
    """Project the tokens that each latent gathered (B, H M, c) to values (B, H, M, d)."""
    values = gathered.unflatten(1, (len(weights.to_v), -1)) @ weights.to_v.mT
    return values if weights.v_bias is None else values + weights.v_bias


def attend(
    r_latents: Tensor, v_latents: Tensor, tokens: Tensor, *projections: Any, scale: float
) -> tuple[Tensor, Tensor]:
    """Return latents (B, H, M, d) and tokens (B, N, c') in plain operations, with the maps of all images at once."""
    in_weight, in_bias, out_weight, out_bias = projections
    batch, heads = len(tokens), r_latents.shape[1]
    weights = by_head(in_weight, in_bias, out_weight, heads)
    latents = fold(r_latents, v_latents, weights, out_bias, scale)
    keys, shifts, answers = (tensor.expand(batch, -1, -1) for tensor in latents)
    scores = torch.baddbmm(shifts, tokens, keys.mT)
    attended = unfold(torch.bmm(scores.softmax(1).mT, tokens), weights)
    return attended, torch.bmm(scores.unflatten(2, (heads, -1)).softmax(-1).flatten(2), answers)


def attend_in_groups(
    r_latents: Tensor, v_latents: Tensor, tokens: Tensor, *projections: Any, scale: float, images: int
) -> tuple[Tensor, Tensor]:
    """Run `attend` with the maps of `images` images at once."""
    some = tokens.split(images)
    groups = (
        latents.split(images) if len(latents) > 1 else [latents] * len(some) for latents in (r_latents, v_latents)
    )
    results = [attend(*group, *projections, scale=scale) for group in zip(*groups, some, strict=True)]
    latents, out = zip(*results, strict=True)
    return torch.cat(latents), torch.cat(out)


def _of_image(latents: Latents, image: int, heads: int) -> dict[str, Any]:
    """Return the arguments of `Forward` and `Backward` for an image: all heads share its tokens, as one matrix."""
    keys, answers = _index(image, latents.keys), _index(image, latents.answers)
    return {
        "r_latents": latents.keys[keys],
        "v_latents": latents.answers[answers],
        "heads": heads,
        "shift": latents.shifts[keys],
    }


def _index(image: int, latents: Tensor) -> slice:
    """Return the index of an image's references or values, either of which all images may share."""
    return slice(image, image + 1) if len(latents) > 1 else slice(1)


def _pieces(tiles: int, r_latents: Tensor, tokens: Tensor) -> tuple[list[slice], Buffers]:
    columns = r_latents.shape[1] * r_latents.shape[2]
    steps = pieces(tokens.shape[1], columns, tokens.device)
    return steps, Buffers(tiles, (steps[0].stop, columns), tokens)


def _formula(*arguments: Any) -> tuple[Tensor, Tensor]:
    *operands, scale = arguments
    return reference.projected_attention(*operands, attention=formula, scale=scale)


def _empty_outputs(
    r_latents: Tensor, v_latents: Tensor, tokens: Tensor, in_weight: Tensor, in_bias: Any, out_weight: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (batch, count, width), (heads, rows, head_width) = tokens.shape, r_latents.shape[1:]
    return (
        tokens.new_empty(batch, rows, heads, head_width).transpose(1, 2),
        tokens.new_empty(batch, count, out_weight.shape[0]),
        tokens.new_empty(batch, heads * rows, width),
        tokens.new_empty(batch, heads * rows),
    )


def _flops(*arguments: Any) -> int:
    """Count the FLOPs of the unfolded layer: projections, similarity and both sums, each once."""
    r_latents, tokens, in_weight, out_weight = arguments[0], arguments[2], arguments[3], arguments[5]
    (batch, count, _), (heads, rows, width) = tokens, r_latents[1:]
    per_token = in_weight[0] * in_weight[1] + out_weight[0] * out_weight[1] + 3 * heads * rows * width
    return int(2 * batch * count * per_token)


def _attend_backward(to_outputs: Any, operands: Any, saved: Any, scale: float) -> tuple[Tensor, ...]:
    """Return the gradients of the seven operands; that of `in_bias` is empty if `in_bias` is None."""
    (to_latents, to_out), (gathered, log_sums) = to_outputs, saved
    r_latents, v_latents, tokens, in_weight, in_bias, out_weight, out_bias = operands
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
            backward = Backward(
                **_of_image(latents, image, heads),
                to_latents=to_gathered[one],
                latents=gathered[one],
                log_sums=log_sums[one],
                buffers=buffers,
            )
            for step in steps:
                piece, out = tokens[one, step], to_tokens[one, step]
                backward.step(piece, piece, to_out[one, step], to_r=out, to_v=out)
            to_keys[_index(image, to_keys)] += backward.to_r
            to_shifts[_index(image, to_shifts)] += backward.to_shift
            to_answers[_index(image, to_answers)] += backward.to_v
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
            in_weight.new_empty(0) if in_bias is None else torch.stack(to_biases).flatten(),
            torch.einsum("bhmo,bhmd->ohd", of_answers, v_latents).flatten(1).contiguous(),
            to_answers.sum((0, 1)).div_(heads),
        )


@custom_op(
    "projected_attention_lean",
    backward=_attend_backward,
    formula=_formula,
    outputs=_empty_outputs,
    flops=_flops,
    results=2,
    saves=(2, 3),
)
def attend_in_pieces(
    r_latents: Tensor,
    v_latents: Tensor,
    tokens: Tensor,
    in_weight: Tensor,
    in_bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return latents (B, H, M, d), tokens (B, N, c'), the gathered tokens (B, H M, c), log sum of exp(A) (B, H M).

    All of one dtype, float32 or float64; neither M nor N is 0.
    """
    attended, out, gathered, log_sums = _empty_outputs(r_latents, v_latents, tokens, in_weight, in_bias, out_weight)
    heads = r_latents.shape[1]
    weights = by_head(in_weight, in_bias, out_weight, heads)
    latents = fold(r_latents, v_latents, weights, out_bias, scale)
    steps, buffers = _pieces(2, r_latents, tokens)
    for image in range(len(tokens)):
        one = slice(image, image + 1)
        forward = Forward(**_of_image(latents, image, heads), buffers=buffers)
        for step in steps:
            piece = tokens[one, step]
            forward.step(piece, piece, out=out[one, step])
        gathered[one], log_sums[one] = forward.latents()
    attended.copy_(unfold(gathered, weights))
    return attended, out, gathered, log_sums
