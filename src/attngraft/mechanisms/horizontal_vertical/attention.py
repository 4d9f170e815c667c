"""Attention with places for horizontal and vertical attention: self or cross, causal, padded, with memory slots."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.errors import UsageError


class Attention(nn.Module):
    """Multi-head attention; `horizontal` weighs its heads and `vertical` gates what its projection puts out (Eqs. 1-8).

    Args:
        dim: C. num_heads: H, which divides C.
        horizontal: a module (heads (B, H, Nq, dv), x) -> heads, or None.
        vertical: a module (tokens (B, Nq, C), x) -> tokens, or None.
        fused: one projection `qkv` (rows q, k, v; self-attention only), else `q`, `k`, `v`.
        scale: of the scores, 1 / sqrt(dk) where not given.
        memory_slots: learned keys and values that every query sees besides the tokens (M2's memory attention): sqrt(dk)
            times `memory_keys` and sqrt(slots) times `memory_values` are appended.

    Raises:
        UsageError: H does not divide C.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        horizontal: nn.Module | None = None,
        vertical: nn.Module | None = None,
        fused: bool = False,
        qkv_bias: bool = True,
        proj_bias: bool = True,
        scale: float | None = None,
        memory_slots: int = 0,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if dim % num_heads:
            raise UsageError(f"{num_heads} heads do not divide the width {dim}")
        self.num_heads, self.head_dim, self.memory_slots = num_heads, dim // num_heads, memory_slots
        self.scale = self.head_dim**-0.5 if scale is None else scale
        if fused:
            self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias, device=device, dtype=dtype)
        else:
            self.q, self.k, self.v = (nn.Linear(dim, dim, bias=qkv_bias, device=device, dtype=dtype) for _ in range(3))
        self.fused = fused
        if memory_slots:
            slots = torch.empty(1, memory_slots, dim, device=device, dtype=dtype)
            self.memory_keys = nn.Parameter(nn.init.normal_(slots, std=1 / self.head_dim))
            self.memory_values = nn.Parameter(nn.init.normal_(torch.empty_like(slots), std=1 / memory_slots))
        self.attn_drop = nn.Dropout(attn_drop)
        self.horizontal = horizontal
        self.proj = nn.Linear(dim, dim, bias=proj_bias, device=device, dtype=dtype)
        self.vertical = vertical
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, *, visible: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """(B, Nq, C) to (B, Nq, C).

        Args:
            x: the queries' tokens, and the context of both mechanisms.
            memory: the keys' tokens (B, Nk, C); x itself where not given.
            visible: boolean, broadcastable to (B, H, Nq, Nk), True where a query may see a key (see `key_padding`).
            causal: queries see no later key. Excludes `memory`; joins with `visible`.

        Raises:
            UsageError: `memory` with fused projections or with `causal`.
        """
        if memory is not None and (self.fused or causal):
            raise UsageError("cross-attention takes separate projections (fused=False) and is not causal")
        q, k, v = self._project(x, memory)
        if causal:
            past = x.new_ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            visible = past if visible is None else visible & past
        if visible is not None and self.memory_slots:
            visible = F.pad(
                visible.expand(*visible.shape[:-1], k.shape[1] - self.memory_slots), (0, self.memory_slots), value=True
            )
        q, k, v = (tokens.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for tokens in (q, k, v))
        dropout = self.attn_drop.p if self.training else 0.0
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout, scale=self.scale)
        if self.horizontal is not None:
            heads = self.horizontal(heads, x)
        tokens = self.proj(heads.transpose(1, 2).flatten(2))
        if self.vertical is not None:
            tokens = self.vertical(tokens, x)
        return cast(Tensor, self.proj_drop(tokens))

    def _project(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, Nq, C), keys and values (B, Nk, C), memory slots appended."""
        if self.fused:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
        else:
            source = x if memory is None else memory
            q, k, v = self.q(x), self.k(source), self.v(source)
        if self.memory_slots:
            slots = (x.shape[0], -1, -1)
            k = torch.cat([k, self.head_dim**0.5 * self.memory_keys.expand(slots)], dim=1)
            v = torch.cat([v, self.memory_slots**0.5 * self.memory_values.expand(slots)], dim=1)
        return q, k, v


def key_padding(lengths: Tensor, tokens: int) -> Tensor:
    """Which keys are no padding, (B, 1, 1, Nk): entry b has `lengths[b]` of them, in front."""
    return (torch.arange(tokens, device=lengths.device) < lengths.unsqueeze(-1))[:, None, None, :]
