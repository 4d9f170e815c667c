"""Bi-directional cross-attention in optimized PyTorch: no map of all tokens, forward or backward.

The tokens of an image are processed in pieces (pieces.py); the backward recomputes the scores of a piece. Half precision
is computed in float32. Small maps are faster in plain operations or, with enough tokens and without gradients, in PyTorch's
fused attention, once for each direction. With dropout the reference runs, because the dropout masks must be saved for
the backward and are as large as the maps.

`projected_attention` folds the tokens' projections into the latents (folded.py) if that takes less work or if there are very
many tokens: in plain operations if the maps are small, otherwise piece by piece. A single image with few tokens uses a path
with fewer calls.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.dispatch.autograd import (
    accumulation_dtype,
    cast_for_autocast,
    in_dispatch_mode,
    is_exporting,
    needs_aten_ops,
)
from attngraft.mechanisms.bixt import folded, reference
from attngraft.mechanisms.bixt.formula import empty_gradients, empty_outputs, formula, two_way_op
from attngraft.mechanisms.bixt.pieces import Backward, Buffers, Forward, pieces

#: largest number of entries, over all maps of one direction, for which plain operations or fused attention are faster
SMALL = 2**22
#: number of tokens per image from which fused attention, which computes the similarity twice, is faster than maps
FUSED_FROM = 512
#: the same threshold for several images; without AVX-512, fused attention is always faster than maps
FUSED_FROM_OF_SEVERAL = FUSED_FROM if torch.backends.cpu.get_cpu_capability() == "AVX512" else 0
#: number of tokens per image from which their projections are too large to store, even if folding takes more work
MANY_TOKENS = 2**17
#: number of tokens of a single image up to which call overhead is a noticeable part of the time
FEW_TOKENS = 256
#: dtypes that are accurate enough for softmaxes and long sums
ACCURATE = (torch.float32, torch.float64)
#: number of tokens per image from which pieces are faster than the maps of a group of images at once
FEWEST_TOKENS = 1024


def bidirectional_attention(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor, *, scale: float, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return latents (B, H, M, dt) and tokens (B, H, N, dl)."""
    if dropout:
        return reference.bidirectional_attention(r_latents, r_tokens, v_latents, v_tokens, scale=scale, dropout=dropout)
    operands = cast_for_autocast(r_latents, r_tokens, v_latents, v_tokens)
    if is_exporting():  # sizes may be symbolic, and must not be compared
        return formula(*operands, scale)  # type: ignore[call-arg]
    if operands[0].dtype == torch.float16:  # the scores may exceed its range
        with torch.autocast(r_tokens.device.type, enabled=False):
            wide = (tensor.float() for tensor in operands)
            latents, tokens = bidirectional_attention(*wide, scale=scale)
        return latents.half(), tokens.half()
    numbers = r_tokens.shape[0] * r_tokens.shape[1] * r_tokens.shape[2] * r_latents.shape[2]
    if numbers <= SMALL:
        fewest = FUSED_FROM if len(r_tokens) == 1 else FUSED_FROM_OF_SEVERAL
        fused = r_tokens.shape[2] >= fewest and _is_plain_inference(*operands)
        return (_fused if fused else formula)(*operands, scale=scale)
    if needs_aten_ops(*operands):
        return formula(*operands, scale)  # type: ignore[call-arg]
    with torch.autocast(r_tokens.device.type, enabled=False):
        accurate = (tensor.to(accumulation_dtype(tensor)) for tensor in operands)
        latents, tokens, _ = attend_in_pieces(*accurate, float(scale))
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
    """Return latents (B, H, M, d) and tokens (B, N, c')."""
    operands = (r_latents, v_latents, tokens, in_weight, in_bias, out_weight, out_bias)
    if not is_exporting():  # sizes may be symbolic, and must not be compared
        # one image with few tokens, without gradients or casts
        if (
            len(tokens) == 1
            and not torch.is_grad_enabled()
            and tokens.shape[1] <= FEW_TOKENS
            and tokens.dtype in ACCURATE
            and not torch._C._is_any_autocast_enabled()
        ):
            return _of_one_image(*operands, scale=scale)
        pays = tokens.shape[1] >= MANY_TOKENS or folded.pays(r_latents, tokens, out_weight)
        if pays and r_latents.numel() and not needs_aten_ops(*operands) and _has_one_accurate_dtype(operands):
            return _folded(*operands, scale=scale)
    return reference.projected_attention(*operands, attention=bidirectional_attention, scale=scale)


def _folded(r_latents: Tensor, v_latents: Tensor, tokens: Tensor, *weights: Any, scale: float) -> tuple[Tensor, Tensor]:
    """Attend with whole maps if they are small, in groups of images if these have few tokens, or else in pieces."""
    operands = (r_latents, v_latents, tokens, *weights)
    images = SMALL // (tokens.shape[1] * r_latents.shape[1] * r_latents.shape[2])
    if images >= len(tokens) and not in_dispatch_mode():
        return folded.attend(*operands, scale=scale)
    if images and tokens.shape[1] < FEWEST_TOKENS and _is_plain_inference(r_latents, v_latents, tokens):
        return folded.attend_in_groups(*operands, scale=scale, images=images)
    latents, out, *_ = folded.attend_in_pieces(*operands, float(scale))
    return latents, out


def _is_plain_inference(*operands: Tensor) -> bool:
    """Return whether this is plain inference on the CPU, in which the similarity may be computed twice.

    Autograd, compilers, autocast, function transforms and dispatch modes are then inactive. A whole call may take less than
    a millisecond, so these checks must be few and cheap.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled():
        return False
    if in_dispatch_mode() or torch._C._are_functorch_transforms_active():
        return False
    dtype = operands[0].dtype
    for tensor in operands:
        if not (type(tensor) is Tensor and tensor.is_cpu and tensor.dtype == dtype and tensor.numel()):
            return False
    return dtype in ACCURATE


def _has_one_accurate_dtype(operands: tuple[Tensor | None, ...]) -> bool:
    """Return whether all operands are float32, or all float64, and stay so under autocast."""
    tensors = [tensor for tensor in operands if tensor is not None]
    dtypes = {tensor.dtype for tensor in (*tensors, *cast_for_autocast(*tensors))}
    return dtypes in ({torch.float32}, {torch.float64})


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
    r_latents: Tensor, v_latents: Tensor, tokens: Tensor, *weights: Any, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend within a single image, projected head by head and without an image axis.

    The whole call takes about half a millisecond, so the copies and calls that this avoids are noticeable.
    """
    in_weight, in_bias, out_weight, out_bias = weights
    heads, width = r_latents.shape[1], r_latents.shape[3]
    inputs, weight = tokens.expand(2 * heads, -1, -1), in_weight.reshape(2 * heads, width, -1).mT
    if in_bias is None:
        parts = torch.bmm(inputs, weight)
    else:
        parts = torch.baddbmm(in_bias.reshape(2 * heads, 1, width), inputs, weight)
    r_tokens, v_tokens = parts.split(heads)
    scores = torch.baddbmm(tokens.new_empty(1), r_tokens, r_latents[0].mT, beta=0, alpha=scale)
    latents = torch.bmm(scores.softmax(1).mT, v_tokens)
    merged = torch.bmm(scores.softmax(2), v_latents[0]).transpose(0, 1).flatten(1)
    return latents.unsqueeze(0), F.linear(merged, out_weight, out_bias).unsqueeze(0)


def _pieces(tiles: int, r_tokens: Tensor, log_sums: Tensor) -> tuple[list[slice], Buffers]:
    """Return the pieces of an image (none if there is nothing to attend to), and buffers for `tiles` score tiles."""
    heads, count = log_sums.shape[1:]
    if not (log_sums.numel() and r_tokens.shape[2]):
        return [], Buffers(tiles, (0,), log_sums)
    steps = pieces(r_tokens.shape[2], heads * count, r_tokens.device)
    return steps, Buffers(tiles, (heads, steps[0].stop, count), log_sums)


def _of_image(latents: Tensor, image: int) -> Tensor:
    """Return the latents of an image, or the latents that all images share."""
    return latents[image if len(latents) > 1 else 0]


def _attend_backward(to_outputs: Any, operands: Any, saved: Any, scale: float) -> tuple[Tensor, ...]:
    (to_latents, to_tokens), (r_latents, r_tokens, v_latents, v_tokens), (latents, log_sums) = (
        to_outputs,
        operands,
        saved,
    )
    gradients = to_r_latents, to_r, to_v_latents, to_v = empty_gradients(*operands)
    to_r_latents.zero_()
    to_v_latents.zero_()
    steps, buffers = _pieces(3, r_tokens, log_sums)
    if not steps:
        to_r.zero_()
        to_v.zero_()
        return gradients
    with torch.autocast(r_tokens.device.type, enabled=False):
        for image in range(len(r_tokens)):
            backward = Backward(
                _of_image(r_latents, image) * scale,
                _of_image(v_latents, image),
                to_latents=to_latents[image],
                latents=latents[image],
                log_sums=log_sums[image],
                buffers=buffers,
            )
            for step in steps:
                piece = (tensor[image, :, step] for tensor in (r_tokens, v_tokens, to_tokens))
                backward.step(*piece, to_r=to_r[image, :, step], to_v=to_v[image, :, step])
            _of_image(to_r_latents, image).add_(backward.to_r, alpha=scale)
            _of_image(to_v_latents, image).add_(backward.to_v)
    return gradients


@two_way_op("bidirectional_attention_lean", backward=_attend_backward)
def attend_in_pieces(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return latents, tokens, and log sum over tokens of exp(A) (B, H, M); all of one dtype, float32 or float64."""
    latents, tokens, log_sums = empty_outputs(r_latents, r_tokens, v_latents, v_tokens)
    steps, buffers = _pieces(2, r_tokens, log_sums)
    if not steps:  # empty sums
        return latents.zero_(), tokens.zero_(), log_sums.zero_()
    for image in range(len(r_tokens)):
        forward = Forward(_of_image(r_latents, image) * scale, _of_image(v_latents, image), buffers)
        for step in steps:
            forward.step(r_tokens[image, :, step], v_tokens[image, :, step], out=tokens[image, :, step])
        latents[image], log_sums[image] = forward.latents()
    return latents, tokens, log_sums
