"""The tokens' projections folded into the latents, which are few.

Tokens x_n become references and values by W_r, W_v, and what they get leaves by W_out. All of that is linear. So the latents
are projected in the tokens' place, and tokens are used as they are; of head h and latent m:

    A        x_n . key_hm                                key_hm     scale r_latent_hm W_r,h
    latents  (softmax over tokens(A) x)_hm W_v,h^T
    tokens   sum_hm softmax over m(A)_nhm answer_hm      answer_hm  v_latent_hm W_out,h^T

What is left per token are three products, each with all heads at once: less than before where d > M c / (M + c), d a head's
width and c the tokens' (three quarters of it for heads of 64, 64 latents, c = 192). References, values and what the tokens
get before it is projected are never made. The references' bias shifts a latent's scores of all tokens alike, which tells in
the tokens' softmax over latents; the other two are added to what has been weighed, because weights add up to 1, that of the
output in equal shares to the heads' answers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

#: part of the unfolded products that the folded ones may take, where the time to fold is to be won back
WORTH = 0.9


def pays(r_latents: Tensor, tokens: Tensor, out_weight: Tensor) -> bool:
    """Whether folded projections take clearly fewer multiply-adds.

    Of a head, with channels of the tokens counted twice in and once out: M (N + d) times these folded; unfolded N d times
    these, and N M d for each of three products.
    """
    rows, width, count = *r_latents.shape[2:], tokens.shape[1]
    channels = 2 * tokens.shape[2] + out_weight.shape[0]
    return rows * channels * (count + width) < WORTH * count * width * (channels + 3 * rows)


class Weights(NamedTuple):
    """The projections of the tokens by head."""

    to_r: Tensor  #: (H, d, c)
    to_v: Tensor  #: (H, d, c)
    out: Tensor  #: (H, d, c')
    r_bias: Tensor | None  #: (H, 1, d)
    v_bias: Tensor | None  #: (H, 1, d)


class Latents(NamedTuple):
    """The latents as the tokens meet them."""

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
    """Tokens that each latent gathered (B, H M, c), to their values (B, H, M, d)."""
    found = gathered.unflatten(1, (len(weights.to_v), -1)) @ weights.to_v.mT
    return found if weights.v_bias is None else found + weights.v_bias


def attend(
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
    """Latents (B, H, M, d) and tokens (B, N, c') in plain operations, with the maps of all images at once."""
    batch, heads = len(tokens), r_latents.shape[1]
    weights = by_head(in_weight, in_bias, out_weight, heads)
    latents = fold(r_latents, v_latents, weights, out_bias, scale)
    keys, shifts, answers = (tensor.expand(batch, -1, -1) for tensor in latents)
    scores = torch.baddbmm(shifts, tokens, keys.mT)
    found = unfold(torch.bmm(scores.softmax(1).mT, tokens), weights)
    return found, torch.bmm(scores.unflatten(2, (heads, -1)).softmax(-1).flatten(2), answers)


def attend_by_groups(
    r_latents: Tensor, v_latents: Tensor, tokens: Tensor, *weights: Any, scale: float, images: int
) -> tuple[Tensor, Tensor]:
    """`attend` with the maps of so many images at once."""
    some = tokens.split(images)
    groups = (
        latents.split(images) if len(latents) > 1 else [latents] * len(some) for latents in (r_latents, v_latents)
    )
    found = [attend(*group, *weights, scale=scale) for group in zip(*groups, some, strict=True)]
    latents, out = zip(*found, strict=True)
    return torch.cat(latents), torch.cat(out)
