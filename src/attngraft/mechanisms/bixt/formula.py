"""Both directions as plain operations: for exporters, function transforms, second derivatives and small calls."""

from __future__ import annotations

import torch
from torch import Tensor

from attngraft.dispatch.formula import accurate
from attngraft.mechanisms.bixt.reference import similarity


def formula(
    r_latents: Tensor, r_tokens: Tensor, v_latents: Tensor, v_tokens: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    """The equation with softmaxes in float32."""
    found = similarity(r_latents, r_tokens, scale=scale).to(accurate(r_tokens))
    latents = torch.softmax(found, -1).to(v_tokens.dtype) @ v_tokens
    # over the last but one axis, then transposed: the other way round the maps would be copied
    return latents, torch.softmax(found, -2).to(v_latents.dtype).transpose(-2, -1) @ v_latents
