"""Tensor layouts and attention templates of timm's hosts, and timm's shared `Attention`."""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from timm.layers import Attention
from torch import Tensor, nn

from attngraft.attention import AttentionSite, GraftedModule, HookPoint, LinearLayer, Projected, visible_in
from attngraft.hosts.patched import as_linear, check_call, is_one_directional, present_in
from attngraft.hosts.timm import mlp


def split_qkv(qkv: Tensor, heads: int, parts: int = 3) -> tuple[Tensor, ...]:
    """Split the output of a fused projection (B, N, parts H d) into q, k and v (or fewer), (B, H, N, d) each."""
    return qkv.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape (B, N, H d) to (B, H, N, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def map_to_tokens(x: Tensor) -> Tensor:
    """View a map (B, C, rows, columns) as tokens (B, N, C)."""
    return x.flatten(2).transpose(1, 2)


def tokens_to_map(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    """View tokens (B, N, C) as a map (B, C, rows, columns); the inverse of `map_to_tokens`."""
    return x.transpose(1, 2).unflatten(2, grid)


def match_memory_format(x: Tensor, like: Tensor) -> Tensor:
    """Return the map `x` in the memory format of the map `like`.

    After a graft, tokens are contiguous, so their map is channels-last. Convolutions choose another algorithm for this
    format, which rounds differently.
    """
    channels_last = like.is_contiguous(memory_format=torch.channels_last) and not like.is_contiguous()
    return x.contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


class SelfAttention(AttentionSite):
    """Attention that ends with an optional norm and gate, a projection and dropout, as usual in timm.

    `project` stores the output gate, if any, in `rest`.
    """

    num_heads: int
    qkv: nn.Module
    proj: nn.Module
    proj_drop: nn.Module

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        x = heads.transpose(1, 2).flatten(2)
        norm = getattr(self, "norm", None)
        x = x if norm is None else norm(x)
        if projected.rest is not None:
            x = x * projected.rest
        return cast(Tensor, self.proj(x))

    def drop(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.proj_drop(tokens))

    def output_layer(self) -> LinearLayer | None:
        return as_linear(self.proj)


class FusedQkv(SelfAttention):
    """Attention with one fused projection of q, k and v, without qk-norm or position biases."""

    def project(self, x: Tensor) -> Projected:
        q, k, v = split_qkv(self.qkv(x), self.num_heads)
        return Projected(q, k, v, x)


class ScaledProducts(SelfAttention):
    """Attention that scales the products q k^T instead of the queries, which rounds differently."""

    def scores(self, projected: Projected) -> Tensor:
        scores = (projected.q @ projected.k.transpose(-2, -1)) * self.scale
        return scores if projected.bias is None else scores + projected.bias


class PlainMerge(SelfAttention):
    """Attention without output norm and gate; a child named `norm` has another role."""

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return cast(Tensor, self.proj(heads.transpose(1, 2).flatten(2)))


class NoDropout(SelfAttention):
    """Attention without dropout of weights and outputs, in windows unless `ends` is overridden."""

    ends: tuple[HookPoint, ...] = ("attn.window",)

    def dropped(self) -> float:
        return 0.0

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        return weights @ projected.v

    def drop(self, tokens: Tensor) -> Tensor:
        return tokens


class HeadwiseQkv(NoDropout):
    """Attention with a fused projection, interleaved by head (q, k, v of head 0, ...), and one bias per distance."""

    may_hide_all: ClassVar[bool] = False
    key_dim: int
    val_dim: int
    attention_biases: Tensor
    attention_bias_idxs: Tensor

    def get_attention_biases(self, device: torch.device) -> Tensor:
        """Return the biases (H, Nq, Nk) without the host's evaluation cache, which may contain stale values and graphs."""
        return self.attention_biases[:, self.attention_bias_idxs]

    def split(self, projection: nn.Module, x: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Project tokens (B, N, C) and split the output of each head into parts, (B, H, N, width) each."""
        parts = projection(x).unflatten(-1, (self.num_heads, -1)).split(widths, dim=3)
        return tuple(part.permute(0, 2, 1, 3) for part in parts)

    def project(self, x: Tensor, present: Tensor | None = None) -> Projected:
        q, k, v = self.split(self.qkv, x, (self.key_dim, self.key_dim, self.val_dim))
        return Projected(q, k, v, x, bias=self.get_attention_biases(x.device), present=present)


class ClassAttention(SelfAttention):
    """Attention with token 0 as the only query: (B, N, C) to (B, 1, C).

    The default `split` applies three projections, as in `timm.models.cait.ClassAttn`.
    """

    q: nn.Module
    k: nn.Module
    v: nn.Module

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (B, H, 1, d), k and v (B, H, N, d)."""
        q, k, v = self.q(x[:, 0]).unsqueeze(1), self.k(x), self.v(x)
        return split_heads(q, self.num_heads), split_heads(k, self.num_heads), split_heads(v, self.num_heads)

    def project(self, x: Tensor) -> Projected:
        q, k, v = self.split(x)
        return Projected(q, k, v, x[:, :1], keys=x)


class SubsampledKeys(PlainMerge):
    """Attention with one projection of q, and one of k and v from a map reduced by a convolution."""

    q: nn.Module
    kv: nn.Module
    sr: nn.Module | None
    norm: nn.Module | None

    def reduce(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Return the reduced tokens (B, Nk, C), from which keys and values are projected."""
        if self.sr is None:
            return x
        return cast(Tensor, cast(nn.Module, self.norm)(map_to_tokens(self.sr(tokens_to_map(x, grid)))))

    def project(self, x: Tensor, grid: tuple[int, int]) -> Projected:
        keys = self.reduce(x, grid)
        k, v = split_qkv(self.kv(keys), self.num_heads, parts=2)
        return Projected(split_heads(self.q(x), self.num_heads), k, v, x, keys=keys)


class ConvAttention(SelfAttention):
    """Attention on maps (B, C, rows, columns) with convolutions as projections; grafts get tokens.

    `project` takes the map's size as `grid` and stores it in `rest`.
    """

    def split(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """Split the output of the fused projection (B, 3 H d, N) into q, k and v, (B, H, d, N) each."""
        return qkv.unflatten(1, (3, self.num_heads, -1)).unbind(1)

    def project(self, x: Tensor, *, grid: tuple[int, int]) -> Projected:
        q, k, v = (part.transpose(-1, -2) for part in self.split(self.qkv(tokens_to_map(x, grid)).flatten(2)))
        if self.fused_attn:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        return Projected(q, k, v, x, rest=grid)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        grid = (x.shape[-2], x.shape[-1])
        return tokens_to_map(super().forward(map_to_tokens(x), *args, grid=grid, **kwargs), grid)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        maps = tokens_to_map(heads.transpose(-1, -2).flatten(1, 2).transpose(1, 2), projected.rest)
        return map_to_tokens(self.proj(maps))

    def output_layer(self) -> LinearLayer | None:
        return self.proj if isinstance(self.proj, nn.Conv2d) else None


def checked_mask(module: Any, attn_mask: Tensor | None, is_causal: bool) -> dict[str, Any]:
    """Check that the module's grafts support a call's mask, and return the fields of `Projected` for it.

    With `is_causal`, explicit attention ignores `attn_mask`.

    Raises:
        ValueError: both `attn_mask` and `is_causal` are passed to fused attention.
        UsageError: a graft does not support masks; mix grafts support all except causal masks.
    """
    check_call(module, causal=attn_mask is not None or is_causal, exempt=("mix",))
    present = None
    if attn_mask is not None and module.grafts_at("mix"):
        check_call(module, causal=is_one_directional(visible_in(attn_mask)))
        present = present_in(visible_in(attn_mask))
    if is_causal and module.fused_attn and attn_mask is not None:
        raise ValueError("attn_mask and is_causal are mutually exclusive")
    return {"causal": True} if is_causal else {"bias": attn_mask, "present": present}


def output_gate(module: Any, x: Tensor) -> Tensor | None:
    """Return the gate that multiplies the merged heads in gated attention (timm >= 1.0.28); None without a gate."""
    layer = getattr(module, "gate", None)
    return None if layer is None else layer(x).sigmoid()


class GraftedAttention(SelfAttention, Attention):
    """`timm.layers.Attention`: fused qkv, optional qk-norm, output norm and gate."""

    def project(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Projected:
        q, k, v = split_qkv(self.qkv(x), self.num_heads)
        mask = checked_mask(self, attn_mask, is_causal)
        return Projected(self.q_norm(q), self.k_norm(k), v, x, rest=output_gate(self, x), **mask)


PATCHED: Mapping[type[nn.Module], type[GraftedModule]] = {Attention: GraftedAttention, **mlp.PATCHED}
