"""Inverse attention with an MLP instead of the hypernetwork (Table 3's ablation), in lean PyTorch.

The first layer splits in a part for queries and one for values, a_i + b_j, and the second is linear, so it leaves the sum:

    isa_i = W2 sum_j L_ij GELU(a_i + b_j) + b2 sum_j L_ij

What remains of N x N x m is streamed: a few keys at a time, forgotten at once, and made again in the backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.dispatch.formula import Gradients, accurate, differentiable, formula_wanted, without_autocast
from attngraft.mechanisms.bisa import reference

#: numbers in the hidden activations that exist at a time, at least one key's
NUMBERS = 2**18


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
    width = q_hat.shape[-1]
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
        for pair, keys, before in _chunks(a, b, share.dtype):
            weights = share[pair][:, keys].unsqueeze(1)
            summed[pair] += torch.bmm(weights, F.gelu(before)).squeeze(1)
        return summed.to(a.dtype)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, gradient: Tensor) -> Gradients:
        share, a, b = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable(lambda *tensors: (formula(*tensors),), (share, a, b), (gradient,))
        to_share = torch.empty_like(share)
        to_a = torch.zeros(a.shape, dtype=share.dtype, device=a.device)
        to_b = torch.empty_like(b)
        for pair, keys, before in _chunks(a, b, share.dtype):
            g = gradient[pair].to(share.dtype).unsqueeze(1)
            to_share[pair][:, keys] = torch.bmm(g, F.gelu(before).transpose(1, 2)).squeeze(1)
            to_hidden = share[pair][:, keys].unsqueeze(2) * g
            to_before = torch.ops.aten.gelu_backward(to_hidden, before)
            to_a[pair] += to_before.sum(1)
            to_b[pair][keys] = to_before.sum(0).to(b.dtype)
        return to_share, to_a.to(a.dtype), to_b


def _chunks(a: Tensor, b: Tensor, dtype: torch.dtype) -> Iterator[tuple[tuple[int, int], slice, Tensor]]:
    """(image, head), some keys, and a_i + b_j for these: (Nq, keys, m)."""
    batch, heads, queries, width = a.shape
    step = max(1, NUMBERS * torch.get_num_threads() // (queries * width))
    for pair in ((image, head) for image in range(batch) for head in range(heads)):
        queries_part = a[pair].to(dtype).unsqueeze(1)
        for start in range(0, b.shape[2], step):
            keys = slice(start, start + step)
            yield pair, keys, queries_part + b[pair][keys].to(dtype)
