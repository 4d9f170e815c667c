"""Whether latents and tokens look at each other (BiXT, Sec. 3.1 and Appendix A): two maps of one layer compared."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attngraft.errors import UsageError


class Symmetry(NamedTuple):
    """Of one layer, by head (H,): mean over images and latents; and of each image (B, H), over latents."""

    correlation: Tensor  #: between where a latent looks and which tokens look at it
    agreement: Tensor  #: the share of its k most looked at tokens that are among the k that look at it most
    chance: float  #: the agreement of unrelated maps, k / N
    correlation_by_image: Tensor
    agreement_by_image: Tensor


def symmetry(latents_to_tokens: Tensor, tokens_to_latents: Tensor, *, k: int | None = None) -> Symmetry:
    """Pearson correlation and top-k agreement of the two directions of a layer.

    Both directions of bi-directional attention come from one matrix of scores; those of the sequential model from two. What
    its maps have in common beyond `chance` they have learned. Agreement is what it is on average when ties are broken at
    random.

    Args:
        latents_to_tokens: (B, H, M, N), rows sum to 1.
        tokens_to_latents: (B, H, N, M), rows sum to 1.
        k: how many tokens; a tenth of them by default.

    Raises:
        UsageError: the shapes do not belong together.
    """
    theirs = tokens_to_latents.transpose(-2, -1)
    if theirs.shape != latents_to_tokens.shape:
        raise UsageError(
            f"maps of {tuple(latents_to_tokens.shape)} and {tuple(tokens_to_latents.shape)} are not both directions of one "
            "layer: (B, H, M, N) and (B, H, N, M)"
        )
    tokens = latents_to_tokens.shape[-1]
    k = max(1, tokens // 10) if k is None else k
    if not 1 <= k <= tokens:
        raise UsageError(f"k = {k} is not between 1 and the {tokens} tokens")
    ours, theirs = latents_to_tokens.double(), theirs.double()
    ours_centred, theirs_centred = (each - each.mean(-1, keepdim=True) for each in (ours, theirs))
    lengths = ours_centred.norm(dim=-1) * theirs_centred.norm(dim=-1)
    correlation = (ours_centred * theirs_centred).sum(-1) / lengths.clamp_min(torch.finfo(torch.float64).tiny)
    agreement = (_among_top(ours, k) * _among_top(theirs, k)).sum(-1) / k
    by_image = correlation.mean(2), agreement.mean(2)
    return Symmetry(by_image[0].mean(0), by_image[1].mean(0), k / tokens, *by_image)


def _among_top(values: Tensor, k: int) -> Tensor:
    """How likely each value (..., N) is among its row's k largest when ties are broken at random."""
    least = values.topk(k).values[..., -1:]
    above, equal = values > least, values == least
    left = k - above.sum(-1, keepdim=True)
    return above + equal * (left.double() / equal.sum(-1, keepdim=True))
