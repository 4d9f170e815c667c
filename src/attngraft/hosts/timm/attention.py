"""timm's shared `Attention` and the blocks that hold it: what most of its families are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from timm.layers import Attention
from timm.models.vision_transformer import Block, ResPostBlock
from torch import Tensor, nn

from attngraft.attention import (
    HOOK_POINTS,
    AttentionGeometry,
    AttentionSite,
    GraftedModule,
    LinearLayer,
    MlpGeometry,
    Projected,
    prefix_names,
)
from attngraft.errors import HostError
from attngraft.hosts.adapter import Site, check_known, own_parameters
from attngraft.hosts.calls import check_call, one_sided
from attngraft.hosts.linear_ends import linear
from attngraft.hosts.sites import fused_heads, global_site
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.unread import reason_of


class SelfAttention(AttentionSite):
    """What timm's attentions over tokens share from the heads on: output norm, gate, projection, dropout.

    `project` puts the gate, where there is one, into `rest`.
    """

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
        return linear(self.proj)


class ScaledProducts(SelfAttention):
    """Scales the products, where most hosts scale the queries: it rounds otherwise."""

    def scores(self, projected: Projected) -> Tensor:
        return (projected.q @ projected.k.transpose(-2, -1)) * self.scale


def masked(module: Any, attn_mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """The mask that timm's attentions use: causal goes first where the map is spelled out; fused kernels refuse both.

    Raises:
        ValueError: both are given to a fused attention.
        UsageError: a graft here cannot stand a mask; mix grafts are told of it, and refuse one that is causal.
    """
    check_call(module, causal=attn_mask is not None or is_causal, told=("mix",))
    if attn_mask is not None and module.grafts_at("mix") and one_sided(shown(attn_mask)):
        check_call(module, causal=True)
    if is_causal and module.fused_attn and attn_mask is not None:
        raise ValueError("attn_mask and is_causal exclude each other")
    return None if is_causal else attn_mask


def shown(mask: Tensor) -> Tensor:
    """What may be seen under a mask of timm: boolean, or added, with the least number of its type or less as a wall."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min


def by_role(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """What a fused projection gives, (B, N, 3 H d), as q, k and v, (B, H, N, d) each."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def by_heads(x: Tensor, heads: int) -> Tensor:
    """(B, N, H d) to (B, H, N, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def gate(module: Any, x: Tensor) -> Tensor | None:
    """The factor of the merged heads in gated attentions (timm >= 1.0.28)."""
    layer = getattr(module, "gate", None)
    return None if layer is None else layer(x).sigmoid()


class GraftedAttention(SelfAttention, Attention):
    """`timm.layers.Attention`: fused qkv (rows q, k, v), optional qk-norm, output norm and gate."""

    def project(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Projected:
        q, k, v = by_role(self.qkv(x), self.num_heads)
        bias = masked(self, attn_mask, is_causal)
        return Projected(self.q_norm(q), self.k_norm(k), v, x, bias=bias, causal=is_causal, rest=gate(self, x))


PATCHED: Mapping[type[nn.Module], type[GraftedModule]] = {Attention: GraftedAttention, **timm_mlp.PATCHED}
BLOCKS = (Block, ResPostBlock)


def attention_site(module: Any, path: str, **tokens: Any) -> Site:
    """The site that timm's `Attention` is; `tokens` are the fields of `Geometry` that the model knows."""
    if type(module) not in (Attention, GraftedAttention):
        return unread_site(module, path, **tokens)
    check_known(
        module,
        path,
        arguments=("x", "attn_mask", "is_causal", "args", "kwargs"),
        children=("qkv", "q_norm", "k_norm", "attn_drop", "norm", "gate", "proj", "proj_drop"),
    )
    geometry = AttentionGeometry(
        **tokens, **fused_heads(module), query_key_parameters=own_parameters(module, "q_norm", "k_norm")
    )
    return global_site(path, geometry)


def unread_site(module: Any, path: str, **tokens: Any) -> Site:
    """A place where some attention stands that no adapter reads: every hook point says so."""
    reason = reason_of(module)
    why = f"its attention is {type(module).__name__}" + (
        f": {reason}" if reason else ", which this adapter does not read"
    )
    heads = getattr(module, "num_heads", 1)
    geometry = AttentionGeometry(**tokens, heads=heads, key_width=0, value_width=0)
    return Site(path=path, kind="attention", geometry=geometry, targets={}, missing=dict.fromkeys(HOOK_POINTS, why))


def mlp_sites(module: Any, path: str, **tokens: Any) -> Iterator[Site]:
    """The site that one of timm's MLPs is; none for an MLP of a class that we do not know."""
    last = getattr(module, "fc2", None)
    width = last.weight.shape[1] if isinstance(last, nn.Linear | nn.Conv2d) else 0
    site = timm_mlp.mlp_site(module, path, MlpGeometry(hidden=width, **tokens))
    if site is not None:
        yield site


def block_sites(block: Any, path: str, **tokens: Any) -> Iterator[Site]:
    """The two sites of timm's `Block` and `ResPostBlock`."""
    yield attention_site(block.attn, f"{path}.attn", **tokens)
    yield from mlp_sites(block.mlp, f"{path}.mlp", **tokens)


def _prefix(model: Any) -> tuple[str, ...]:
    registers = getattr(model, "reg_token", None)
    names = prefix_names(
        class_token=getattr(model, "cls_token", None) is not None,
        distillation=getattr(model, "dist_token", None) is not None,
        registers=0 if registers is None else registers.shape[1],
    )
    if len(names) != model.num_prefix_tokens:
        raise HostError(
            f"{type(model).__name__} has {model.num_prefix_tokens} leading tokens, and this version of attngraft knows "
            f"{len(names)} of them ({', '.join(names)})"
        )
    return names


def prefixed_grid(model: Any, *, dim: int) -> dict[str, Any]:
    """The part of the geometry that all sites of a model, or of the encoder in it, with one sequence of tokens share."""
    model = getattr(model, "encoder", model)
    prefix, cells = model.num_prefix_tokens, model.patch_embed.grid_size
    return {
        "dim": dim,
        "tokens": None if cells is None else prefix + cells[0] * cells[1],
        "prefix": _prefix(model),
        "grid": None if cells is None else tuple(cells),
    }
