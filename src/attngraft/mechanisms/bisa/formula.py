"""Both directions of one score matrix as plain operations: for compilers, function transforms and second derivatives."""

from __future__ import annotations

import torch
from torch import Tensor

from attngraft.dispatch.formula import accurate
from attngraft.mechanisms.bisa import reference


def formula(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    v_hat: Tensor,
    bias: Tensor | None,
    visible: Tensor | None,
    *,
    scale: float,
    hidden: bool = True,
) -> tuple[Tensor | None, Tensor]:
    """The same as plain operations, softmaxes in float32. `hidden`: some pair may be masked."""
    found = reference.scores(q, k, bias=bias, visible=visible, scale=scale).to(accurate(q))
    masked = hidden and (bias is not None or visible is not None)
    softmax = reference.masked_softmax if masked else torch.softmax
    attended = None if v is None else softmax(found, -1).to(v.dtype) @ v
    return attended, softmax(found, -2).to(v_hat.dtype) @ v_hat
