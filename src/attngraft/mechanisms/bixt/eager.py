"""Bi-directional cross-attention in lean PyTorch: no map of all tokens, forward or backward.

The tokens of an image come piece by piece (pieces.py); the backward makes the scores of a piece once more. Half precision
is worked on in float32. Where the maps are so small that to keep them costs nothing, plain operations run, which are faster
there, and without gradients, unless an image has few tokens, PyTorch's fused attention, once for each direction. With
dropout the equation itself runs: what is dropped is kept for the backward, and is as large as the maps.

With the projections of the tokens in the operation, these are folded into the latents where that is less work (folding.py),
and of very many tokens: in plain operations where the maps are small, else piece by piece (folded.py). One image's few
tokens take fewer calls.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.dispatch.formula import accurate, counted, in_autocast_dtype, plain_wanted
from attngraft.mechanisms.bixt import folded, folding, reference
from attngraft.mechanisms.bixt.derivatives import empty_gradients, empty_outputs, register
from attngraft.mechanisms.bixt.formula import formula, projected
from attngraft.mechanisms.bixt.pieces import Backward, Buffers, Forward, pieces

#: numbers in one direction's maps together up to which plain operations or fused attention are the faster ones
SMALL = 2**22
#: tokens of an image from which on fused attention, which makes the similarity twice, is faster than maps
FUSED_FROM = 512
#: the same for several images together, whose maps are slower without AVX-512
FUSED_FROM_OF_SEVERAL = FUSED_FROM if torch.backends.cpu.get_cpu_capability() == "AVX512" else 0
#: tokens of an image from which on their projections are too large to exist, though to fold them may be more work
MANY_TOKENS = 2**17
#: tokens of one image up to which calls are felt beside the work
FEW_TOKENS = 256
#: dtypes that softmaxes and long sums need not leave
ACCURATE = (torch.float32, torch.float64)
#: tokens of an image from which on piece by piece is faster than the maps of some images at once
FEWEST_TOKENS = 1024


def bidirectional_attention(
    r_latents: Tensor,
    r_tokens: Tensor,
    v_latents: Tensor,
    v_tokens: Tensor,
    *,
    scale: float,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Latents (B, H, M, dt) and tokens (B, H, N, dl)."""
    if dropout:
        return reference.bidirectional_attention(r_latents, r_tokens, v_latents, v_tokens, scale=scale, dropout=dropout)
    operands = in_autocast_dtype(r_latents, r_tokens, v_latents, v_tokens)
    if torch.compiler.is_exporting():  # may leave sizes open, and is not to be asked for them
        return formula(*operands, scale=scale)
    numbers = r_tokens.shape[0] * r_tokens.shape[1] * r_tokens.shape[2] * r_latents.shape[2]
    if numbers <= SMALL:
        fewest = FUSED_FROM if len(r_tokens) == 1 else FUSED_FROM_OF_SEVERAL
        fused = r_tokens.shape[2] >= fewest and _unwatched(*operands)
        return (_fused if fused else formula)(*operands, scale=scale)
    if plain_wanted(*operands):
        return formula(*operands, scale=scale)
    with torch.autocast(r_tokens.device.type, enabled=False):
        latents, tokens, _ = attend(*(tensor.to(accurate(tensor)) for tensor in operands), float(scale))
    return latents.to(operands[3].dtype), tokens.to(operands[2].dtype)


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
) -> tuple[Tensor, Tensor]:
    """Latents (B, H, M, d) and tokens (B, N, c')."""
    operands = (r_latents, v_latents, tokens, in_weight, in_bias, out_weight, out_bias)
    if not torch.compiler.is_exporting():  # an exporter may leave sizes open, and is not to be asked for them
        if _few_of_one_image(tokens):
            return _of_one_image(*operands, scale=scale)
        pays = tokens.shape[1] >= MANY_TOKENS or folding.pays(r_latents, tokens, out_weight)
        if pays and r_latents.numel() and not plain_wanted(*operands) and not _mixed(operands):
            return _folded(*operands, scale=scale)
    return projected(*operands, attention=bidirectional_attention, scale=scale)


def _few_of_one_image(tokens: Tensor) -> bool:
    """Whether calls are felt, with no backward to follow, and nothing is to be cast."""
    return (
        len(tokens) == 1
        and not torch.is_grad_enabled()
        and tokens.shape[1] <= FEW_TOKENS
        and tokens.dtype in ACCURATE
        and not torch._C._is_any_autocast_enabled()
    )


def _folded(r_latents: Tensor, v_latents: Tensor, tokens: Tensor, *weights: Any, scale: float) -> tuple[Tensor, Tensor]:
    """With the maps of all images where these are small, else of none, or of some of few tokens at once."""
    operands = (r_latents, v_latents, tokens, *weights)
    images = SMALL // (tokens.shape[1] * r_latents.shape[1] * r_latents.shape[2])
    if images >= len(tokens) and not counted():
        return folding.attend(*operands, scale=scale)
    if images and tokens.shape[1] < FEWEST_TOKENS and _unwatched(r_latents, v_latents, tokens):
        return folding.attend_by_groups(*operands, scale=scale, images=images)
    latents, out, *_ = folded.attend(*operands, float(scale))
    return latents, out


def _unwatched(*operands: Tensor) -> bool:
    """Whether nobody differentiates, compiles, casts or looks on: then a small call needs no further questions, and the
    similarity may be made twice, where a counter of multiply-adds is to see the equation's one.

    Small calls take less than a millisecond, of which Python's questions are a part that one sees: few, and in few words.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled():
        return False
    if counted() or torch._C._are_functorch_transforms_active():
        return False
    dtype = operands[0].dtype
    for tensor in operands:
        if not (type(tensor) is Tensor and tensor.is_cpu and tensor.dtype == dtype and tensor.numel()):
            return False
    return dtype in ACCURATE


def _fused(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    if len(r_latents) < len(r_tokens):
        r_latents = r_latents.expand(len(r_tokens), -1, -1, -1)
    if len(v_latents) < len(r_tokens):
        v_latents = v_latents.expand(len(r_tokens), -1, -1, -1)
    latents = F.scaled_dot_product_attention(r_latents, r_tokens, v_tokens, scale=scale)
    return latents, F.scaled_dot_product_attention(r_tokens, r_latents, v_latents, scale=scale)


def _of_one_image(
    r_latents: Tensor,
    v_latents: Tensor,
    tokens: Tensor,
    in_weight: Tensor,
    in_bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor,
    *,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`projected` by head from the start, without an axis of images, so that nothing is copied, and in few calls: of half a
    millisecond, theirs is a part that one sees."""
    heads, width = r_latents.shape[1], r_latents.shape[3]
    inputs, weight = tokens.expand(2 * heads, -1, -1), in_weight.reshape(2 * heads, width, -1).mT
    if in_bias is None:
        parts = torch.bmm(inputs, weight)
    else:
        parts = torch.baddbmm(in_bias.reshape(2 * heads, 1, width), inputs, weight)
    r_tokens, v_tokens = parts.split(heads)
    scores = torch.baddbmm(tokens.new_empty(1), r_tokens, r_latents[0].mT, beta=0, alpha=scale)
    latents = torch.bmm(scores.softmax(1).mT, v_tokens)
    got = torch.bmm(scores.softmax(2), v_latents[0]).transpose(0, 1).flatten(1)
    return latents.unsqueeze(0), F.linear(got, out_weight, out_bias).unsqueeze(0)


def _mixed(operands: tuple[Tensor | None, ...]) -> bool:
    """Whether the operands are not all of one dtype that is accurate, or autocast is about to change it."""
    given = [tensor for tensor in operands if tensor is not None]
    dtypes = {tensor.dtype for tensor in (*given, *in_autocast_dtype(*given))}
    return dtypes not in ({torch.float32}, {torch.float64})


@torch.library.custom_op("attngraft::bidirectional_attention_lean", mutates_args=())
def attend(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Latents, tokens, and log sum over tokens of exp(A) (B, H, M); all of one dtype, float32 or float64."""
    latents, tokens, log_sums = empty_outputs(r_latents, r_tokens, v_latents, v_tokens)
    steps, buffers = _pieces(2, r_tokens, log_sums)
    if not steps:  # sums of nothing
        return latents.zero_(), tokens.zero_(), log_sums.zero_()
    for image in range(len(r_tokens)):
        walk = Forward(of_image(r_latents, image) * scale, of_image(v_latents, image), buffers)
        for step in steps:
            walk.step(r_tokens[image, :, step], v_tokens[image, :, step], out=tokens[image, :, step])
        latents[image], log_sums[image] = walk.latents()
    return latents, tokens, log_sums


def _pieces(tiles: int, r_tokens: Tensor, log_sums: Tensor) -> tuple[list[slice], Buffers]:
    """The pieces of each image, none where there is nothing to attend to, and room for so many tiles of scores."""
    heads, count = log_sums.shape[1:]
    if not (log_sums.numel() and r_tokens.shape[2]):
        return [], Buffers(tiles, (0,), log_sums)
    steps = pieces(r_tokens.shape[2], heads * count, r_tokens.device)
    return steps, Buffers(tiles, (heads, steps[0].stop, count), log_sums)


def of_image(latents: Tensor, image: int) -> Tensor:
    """An image's, or those that all share."""
    return latents[image if len(latents) > 1 else 0]


@torch.library.custom_op("attngraft::bidirectional_attention_lean_backward", mutates_args=())
def attend_backward(
    to_latents: Tensor,
    to_tokens: Tensor,
    r_latents: Tensor,
    r_tokens: Tensor,
    v_latents: Tensor,
    v_tokens: Tensor,
    latents: Tensor,
    log_sums: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of r_latents, r_tokens, v_latents and v_tokens."""
    found = to_r_latents, to_r, to_v_latents, to_v = empty_gradients(r_latents, r_tokens, v_latents, v_tokens)
    to_r_latents.zero_()
    to_v_latents.zero_()
    steps, buffers = _pieces(3, r_tokens, log_sums)
    if not steps:
        to_r.zero_()
        to_v.zero_()
        return found
    with torch.autocast(r_tokens.device.type, enabled=False):
        for image in range(len(r_tokens)):
            walk = Backward(
                of_image(r_latents, image) * scale,
                of_image(v_latents, image),
                to_latents=to_latents[image],
                latents=latents[image],
                log_sums=log_sums[image],
                buffers=buffers,
            )
            for step in steps:
                piece = (tensor[image, :, step] for tensor in (r_tokens, v_tokens, to_tokens))
                walk.step(*piece, to_r=to_r[image, :, step], to_v=to_v[image, :, step])
            of_image(to_r_latents, image).add_(walk.to_r, alpha=scale)
            of_image(to_v_latents, image).add_(walk.to_v)
    return found


register("bidirectional_attention_lean", attend, attend_backward)
