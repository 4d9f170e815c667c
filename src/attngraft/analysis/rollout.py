"""Attention through all layers: which input tokens reach which output token (rollout)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from attngraft.errors import UsageError

Fuse = Literal["mean", "max", "min"]


def rollout(maps: Iterable[Tensor], *, fuse: Fuse = "mean", residual: float = 0.5, discard: float = 0.0) -> Tensor:
    """Product of the layers' maps, each with its skip connection (Abnar and Zuidema 2020): (B, N, N), rows sum to 1.

        A = rows of ((1 - residual) fuse_h(A_h) + residual I) that sum to 1 again; rollout = A_L ... A_2 A_1

    Args:
        maps: (B, H, N, N) of each layer, first layer first.
        fuse: what becomes of the heads.
        residual: the share of the skip connection.
        discard: the share of each image's smallest entries of the fused map that count as 0; the class token's stay.

    Raises:
        UsageError: there are no maps, or they are of unlike sizes.
    """
    found: Tensor | None = None
    for weights in maps:
        fused = weights.mean(1) if fuse == "mean" else getattr(weights, f"a{fuse}")(1)
        if discard:
            fused = _without_smallest(fused, discard)
        if found is not None and fused.shape != found.shape:
            raise UsageError(f"maps of {tuple(fused.shape)} do not follow on maps of {tuple(found.shape)}")
        mixed = (1 - residual) * fused + residual * torch.eye(fused.shape[-1], dtype=fused.dtype, device=fused.device)
        mixed = mixed / mixed.sum(-1, keepdim=True)
        found = mixed if found is None else mixed @ found
    if found is None:
        raise UsageError("there are no maps to go through")
    return found


def _without_smallest(fused: Tensor, share: float) -> Tensor:
    flat = fused.flatten(1)
    count = int(flat.shape[1] * share)
    smallest = flat.topk(count, dim=1, largest=False).indices
    kept = torch.ones_like(flat).scatter_(1, smallest, 0).view_as(fused)
    kept[:, :, 0] = 1
    return fused * kept
