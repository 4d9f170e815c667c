"""Self-attention in which some heads are uniform by construction: no scores, no q and k rows (Table 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.mechanisms.context_broadcast.eager import uniform_share


class UniformHeadAttention(nn.Module):
    """Multi-head self-attention whose last `uniform_heads` heads average their values over all visible tokens.

    Takes the place of `timm.layers.Attention` (the same arguments and forward), so that the paper's models come from
    configuration: `VisionTransformer(attn_layer=UniformHeadAttention)` is Table 1's "replaced", with
    `mlp_ratio=1600 / 384` its "compensated", with `embed_dim=448, num_heads=7` its "appended".

    The rows of `qkv` are q of the attending heads, k of the attending heads, v of all heads, heads contiguous.

    Args:
        dim: C. num_heads: H, uniform ones included.
        attn_head_dim: D, C / H where not given. dim_out: width of the output, C where not given.
        uniform_heads: how many heads are uniform, 1..H.
        uniform_value: what they put out: the average of their values, or CB of them, (v_i + mean v) / 2.

    Raises:
        UsageError: H does not divide C, or `uniform_heads` is not within 1..H.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        attn_head_dim: int | None = None,
        dim_out: int | None = None,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Callable[..., nn.Module] | None = None,
        uniform_heads: int = 1,
        uniform_value: Literal["average", "cb"] = "average",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if attn_head_dim is None and dim % num_heads:
            raise UsageError(f"{num_heads} heads do not divide the width {dim}; give attn_head_dim")
        if not 1 <= uniform_heads <= num_heads:
            raise UsageError(f"uniform_heads is {uniform_heads}, and there are {num_heads} heads")
        self.num_heads, self.uniform_heads, self.uniform_value = num_heads, uniform_heads, uniform_value
        self.head_dim = attn_head_dim or dim // num_heads
        self.attending = num_heads - uniform_heads
        self.scale = self.head_dim**-0.5
        norm_layer = norm_layer or nn.LayerNorm
        width = num_heads * self.head_dim
        rows = 2 * self.attending * self.head_dim + width
        self.qkv = nn.Linear(dim, rows, bias=qkv_bias, device=device, dtype=dtype)
        self.q_norm = norm_layer(self.head_dim, device=device, dtype=dtype) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim, device=device, dtype=dtype) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(attn_drop)
        self.norm = norm_layer(width, device=device, dtype=dtype) if scale_norm else nn.Identity()
        self.proj = nn.Linear(width, dim_out or dim, bias=proj_bias, device=device, dtype=dtype)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """(B, N, C) to (B, N, dim_out); masks as in `scaled_dot_product_attention`."""
        if is_causal:
            attn_mask = None
        width = self.attending * self.head_dim
        q, k, v, uniform = self.qkv(x).split((width, width, width, self.uniform_heads * self.head_dim), dim=-1)
        parts = [self._uniform(uniform, _visible(x, attn_mask, is_causal))]
        if self.attending:
            parts.insert(0, self._attended(q, k, v, attn_mask, is_causal))
        return self.proj_drop(self.proj(self.norm(torch.cat(parts, dim=-1))))

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        q, k, v = (tokens.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for tokens in (q, k, v))
        if attn_mask is not None and attn_mask.ndim >= 3 and attn_mask.shape[-3] == self.num_heads > 1:
            attn_mask = attn_mask[..., : self.attending, :, :]
        heads = F.scaled_dot_product_attention(
            self.q_norm(q),
            self.k_norm(k),
            v,
            attn_mask=attn_mask,
            dropout_p=self.attn_drop.p if self.training else 0.0,
            is_causal=is_causal,
            scale=self.scale,
        )
        return heads.transpose(1, 2).flatten(2)

    def _uniform(self, values: Tensor, visible: Tensor | None) -> Tensor:
        """Average the values (B, N, heads * D) over the tokens that each token may see."""
        if visible is None:
            average = values.mean(dim=1, keepdim=True).expand_as(values)
        else:
            heads = values.unflatten(-1, (self.uniform_heads, self.head_dim)).transpose(1, 2)
            own_masks = visible.ndim >= 3 and visible.shape[-3] > 1
            share = uniform_share(visible[..., -self.uniform_heads :, :, :] if own_masks else visible, values.dtype)
            average = (share @ heads).transpose(1, 2).flatten(2)
        return torch.lerp(values, average, 0.5) if self.uniform_value == "cb" else average


def _visible(x: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """Which tokens each token may see, boolean; None for all."""
    if is_causal:
        return x.new_ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return attn_mask
    return attn_mask != float("-inf")
