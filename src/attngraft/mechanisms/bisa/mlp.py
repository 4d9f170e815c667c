"""Inverse attention with an MLP instead of the hypernetwork (Table 3's ablation), in lean PyTorch.

The first layer splits in a part for queries and one for values, a_i + b_j, and the second is linear, so it leaves the sum:

    isa_i = W2 sum_j L_ij GELU(a_i + b_j) + b2 sum_j L_ij

What remains of N x N x m is streamed: a few (image, head) pairs at a time, or some keys of one, forgotten at once, and made
again in the backward. Where plain operations must be seen (compiled, exported, under a function transform, on "meta") it is
made whole: the activations of all B H N N m are there at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.dispatch.formula import Gradients, accurate, differentiable, formula_wanted, without_autocast
from attngraft.mechanisms.bisa import reference

#: numbers in the hidden activations that exist at a time, per thread; at least one key's
NUMBERS = 2**18
#: the same on other devices than the CPU, where there is no cache to stay in, but a limit to memory
ELSEWHERE = 2**24


def inverse_attention_mlp(
    q: Tensor,
    k: Tensor,
    q_hat: Tensor,
    v_hat: Tensor,
    *,
    expand: Tensor,
    expand_bias: Tensor,
    contract: Tensor,
    contract_bias: Tensor,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """isa (B, H, Nq, dv)."""
    found = reference.scores(q, k, bias=bias, visible=visible, scale=scale).to(accurate(q))
    masked = bias is not None or visible is not None
    share = reference.masked_softmax(found, -2) if masked else torch.softmax(found, -2)
    return of_map(
        share,
        q_hat,
        v_hat,
        expand=expand,
        expand_bias=expand_bias,
        contract=contract,
        contract_bias=contract_bias,
    )


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
    """isa (B, H, Nq, dv) of a map L (B, H, Nq, Nk) that is there already."""
    share, width = share.to(accurate(share)), q_hat.shape[-1]
    a = F.linear(q_hat, expand[:, :width], expand_bias)
    b = F.linear(v_hat, expand[:, width:])
    summed = _shared_hidden(share, a, b)
    received = share.sum(-1, keepdim=True).to(summed.dtype)
    return F.linear(summed, contract) + received * contract_bias.to(summed.dtype)


def _shared_hidden(share: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """sum_j L_ij GELU(a_i + b_j): (B, H, Nq, m) in the dtype of `a`."""
    if formula_wanted(share, a, b) or not a.numel() * b.numel():
        return formula(share, a, b)
    with torch.autocast(a.device.type, enabled=False):
        return _SharedHidden.apply(share, a, b)


def formula(share: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The same, all at once."""
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
            return differentiable(lambda *tensors: (formula(*tensors),), (share, a, b), (gradient,))
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
    """Some pairs (image, head) and some keys, their part of L (pairs, Nq, keys), and a_i + b_j (pairs, Nq, keys, m)."""
    shares, queries, values = (tensor.flatten(0, 1) for tensor in (share, a, b))
    most = NUMBERS * torch.get_num_threads() if a.device.type == "cpu" else ELSEWHERE
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
    """(pairs, Nq, width) as a row each (pairs * Nq, 1, width)."""
    return lines.flatten(0, 1).unsqueeze(1)
