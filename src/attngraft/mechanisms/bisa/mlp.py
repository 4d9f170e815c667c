"""Inverse attention with an MLP instead of the hypernetwork (Table 3's ablation), in optimized PyTorch.

The first layer splits into a part for queries and a part for values, a_i + b_j. The second is linear and can be moved out of
the sum:

    isa_i = W2 sum_j L_ij GELU(a_i + b_j) + b2 sum_j L_ij

The remaining N x N x m activations are computed in chunks of (image, head) pairs or keys, and recomputed in the backward. If
plain operations are required (compilers, exporters, function transforms, "meta" tensors), all B H N N m activations exist
at once.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.dispatch.autograd import (
    Gradients,
    accumulation_dtype,
    differentiable_gradients,
    is_traced,
    without_autocast,
)
from attngraft.mechanisms.bisa import reference

#: number of hidden activations at a time, per thread; one key is always processed whole
NUMBERS = 2**18
#: number of hidden activations at a time on devices other than the CPU, where the limit only saves memory
NUMBERS_OFF_CPU = 2**24


def inverse_attention_mlp(
    q: Tensor,
    k: Tensor,
    q_hat: Tensor,
    v_hat: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    scale: float | None = None,
    **layers: Tensor,
) -> Tensor:
    """Return isa (B, H, Nq, dv)."""
    scores = reference.scores(q, k, bias=bias, visible=visible, scale=scale).to(accumulation_dtype(q))
    masked = bias is not None or visible is not None
    share = reference.masked_softmax(scores, -2) if masked else torch.softmax(scores, -2)
    return of_map(share, q_hat, v_hat, **layers)


def of_map(
    share: Tensor,
    q_hat: Tensor,
    v_hat: Tensor,
    *,
    expand: Tensor,
    expand_bias: Tensor,
    contract: Tensor,
    contract_bias: Tensor,
) -> Tensor:
    """Return isa (B, H, Nq, dv) for a given map L (B, H, Nq, Nk)."""
    share, width = share.to(accumulation_dtype(share)), q_hat.shape[-1]
    a = F.linear(q_hat, expand[:, :width], expand_bias)
    b = F.linear(v_hat, expand[:, width:])
    summed = _shared_hidden(share, a, b)
    received = share.sum(-1, keepdim=True).to(summed.dtype)
    return F.linear(summed, contract) + received * contract_bias.to(summed.dtype)


def _shared_hidden(share: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return sum_j L_ij GELU(a_i + b_j): (B, H, Nq, m) in the dtype of `a`."""
    if is_traced(share, a, b) or not a.numel() * b.numel():
        return formula(share, a, b)
    with torch.autocast(a.device.type, enabled=False):
        return _SharedHidden.apply(share, a, b)


def formula(share: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Compute `_shared_hidden` with all activations at once."""
    hidden = F.gelu(a.unsqueeze(3) + b.unsqueeze(2))
    return (share.to(a.dtype).unsqueeze(3) @ hidden).squeeze(3)


class _SharedHidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(share, a, b)
        summed = torch.zeros(a.shape, dtype=share.dtype, device=a.device)
        to_sum = summed.flatten(0, 1)
        for pairs, _, weights, before in _chunks(share, a, b):
            to_sum[pairs] += torch.bmm(_rows(weights), F.gelu(before).flatten(0, 1)).view_as(to_sum[pairs])
        return summed.to(a.dtype)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        share, a, b = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_gradients(lambda *tensors: (formula(*tensors),), (share, a, b), (gradient,))
        to_share = torch.empty(share.shape, dtype=share.dtype, device=share.device)
        to_a = torch.zeros(a.shape, dtype=share.dtype, device=a.device)
        to_b = torch.empty(b.shape, dtype=b.dtype, device=b.device)
        shares, queries, values = (tensor.flatten(0, 1) for tensor in (to_share, to_a, to_b))
        gradients = gradient.flatten(0, 1)
        for pairs, keys, weights, before in _chunks(share, a, b):
            g = gradients[pairs].to(share.dtype)
            shares[pairs, :, keys] = torch.bmm(_rows(g), F.gelu(before).flatten(0, 1).mT).view_as(weights)
            to_before = torch.ops.aten.gelu_backward(weights.unsqueeze(3) * g.unsqueeze(2), before)
            queries[pairs] += to_before.sum(2)
            values[pairs, keys] = to_before.sum(1).to(b.dtype)
        return to_share, to_a.to(a.dtype), to_b


def _chunks(share: Tensor, a: Tensor, b: Tensor) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Yield pairs (image, head), keys, their part of L (pairs, Nq, keys), and a_i + b_j (pairs, Nq, keys, m)."""
    shares, queries, values = (tensor.flatten(0, 1) for tensor in (share, a, b))
    most = NUMBERS * torch.get_num_threads() if a.device.type == "cpu" else NUMBERS_OFF_CPU
    of_a_key = queries.shape[1] * queries.shape[2]
    step = min(max(1, most // of_a_key), values.shape[1])
    at_once = max(1, most // (of_a_key * values.shape[1]))
    for first in range(0, len(queries), at_once):
        pairs = slice(first, first + at_once)
        of_queries = queries[pairs].to(share.dtype).unsqueeze(2)
        for start in range(0, values.shape[1], step):
            keys = slice(start, start + step)
            before = of_queries + values[pairs, keys].to(share.dtype).unsqueeze(1)
            yield pairs, keys, shares[pairs, :, keys], before


def _rows(lines: Tensor) -> Tensor:
    """Return (pairs, Nq, width) as single rows (pairs * Nq, 1, width)."""
    return lines.flatten(0, 1).unsqueeze(1)
