"""Attention that contains horizontal and vertical attention."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.errors import UsageError


class Attention(nn.Module):
    """Multi-head attention; `horizontal` weights its heads and `vertical` gates the output of its projection (Eqs. 1-8).

    Args:
        dim: C.
        num_heads: H.
        key_dim: dk, width of queries and keys per head; C / H by default.
        value_dim: dv, width of values per head; C / H by default.
        horizontal: a module (heads (B, H, Nq, dv), x) -> heads, or None.
        vertical: a module (tokens (B, Nq, C), x) -> tokens, or None.
        fused: one projection `qkv` (rows q, k, v; self-attention only), else `q`, `k`, `v`.
        memory_slots: number of learned keys and values that every query sees besides the tokens (M2's memory attention):
            sqrt(dk) times `memory_keys` and sqrt(slots) times `memory_values` are appended.

    Raises:
        UsageError: H does not divide C, and `key_dim` or `value_dim` is not given.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        horizontal: nn.Module | None = None,
        vertical: nn.Module | None = None,
        fused: bool = False,
        qkv_bias: bool = True,
        proj_bias: bool = True,
        memory_slots: int = 0,
    ) -> None:
        super().__init__()
        if dim % num_heads and (key_dim is None or value_dim is None):
            raise UsageError(f"the width {dim} is not divisible by {num_heads} heads; pass key_dim and value_dim")
        self.num_heads, self.memory_slots, self.fused = num_heads, memory_slots, fused
        self.key_dim = dim // num_heads if key_dim is None else key_dim
        keys, values = num_heads * self.key_dim, num_heads * (dim // num_heads if value_dim is None else value_dim)
        self.widths = (keys, keys, values)
        if fused:
            self.qkv = nn.Linear(dim, sum(self.widths), bias=qkv_bias)
        else:
            self.q, self.k, self.v = (nn.Linear(dim, width, bias=qkv_bias) for width in self.widths)
        if memory_slots:
            self.memory_keys = nn.Parameter(torch.empty(1, memory_slots, keys).normal_(std=1 / self.key_dim))
            self.memory_values = nn.Parameter(torch.empty(1, memory_slots, values).normal_(std=1 / memory_slots))
        self.horizontal = horizontal
        self.proj = nn.Linear(values, dim, bias=proj_bias)
        self.vertical = vertical

    def forward(
        self, x: Tensor, memory: Tensor | None = None, *, visible: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Attend from tokens (B, Nq, C).

        Args:
            x: the queries' tokens, and the context of both mechanisms.
            memory: the keys' tokens (B, Nk, C); x by default.
            visible: boolean, broadcastable to (B, H, Nq, Nk), True where a query may see a key (see `key_padding`).
            causal: queries see no later keys. Cannot be combined with `memory`; can be combined with `visible`.

        Raises:
            UsageError: `memory` with fused projections or with `causal`.
        """
        if memory is not None and (self.fused or causal):
            raise UsageError("cross-attention (memory) requires separate projections (fused=False) and causal=False")
        q, k, v = self._project(x, memory)
        if causal:
            past = x.new_ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            visible = past if visible is None else visible & past
        if visible is not None and self.memory_slots:
            visible = F.pad(
                visible.expand(*visible.shape[:-1], k.shape[1] - self.memory_slots), (0, self.memory_slots), value=True
            )
        q, k, v = (tokens.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for tokens in (q, k, v))
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        if self.horizontal is not None:
            heads = self.horizontal(heads, x)
        tokens = self.proj(heads.transpose(1, 2).flatten(2))
        if self.vertical is not None:
            tokens = self.vertical(tokens, x)
        return cast(Tensor, tokens)

    def _project(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, Nq, H dk), keys (B, Nk, H dk) and values (B, Nk, H dv), memory slots appended."""
        if self.fused:
            q, k, v = self.qkv(x).split(self.widths, dim=-1)
        else:
            source = x if memory is None else memory
            q, k, v = self.q(x), self.k(source), self.v(source)
        if self.memory_slots:
            slots = (x.shape[0], -1, -1)
            k = torch.cat([k, self.key_dim**0.5 * self.memory_keys.expand(slots)], dim=1)
            v = torch.cat([v, self.memory_slots**0.5 * self.memory_values.expand(slots)], dim=1)
        return q, k, v


def key_padding(lengths: Tensor, tokens: int) -> Tensor:
    """Return the mask of keys that are not padding, (B, 1, 1, Nk): the first `lengths[b]` of entry b."""
    return (torch.arange(tokens, device=lengths.device) < lengths.unsqueeze(-1))[:, None, None, :]
