"""timm's MViTv2: queries, keys and values are pooled by convolutions, positions ask the query, queries join the heads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple, cast

import torch
from timm.models.mvitv2 import (
    MultiScaleAttention,
    MultiScaleBlock,
    MultiScaleVit,
    cal_rel_pos_type,
    reshape_post_pool,
    reshape_pre_pool,
)
from torch import Tensor, nn

from attngraft.attention import CLASS, AttentionGeometry, HookPoint, Mixed, MlpGeometry, Projected, plain_class
from attngraft.errors import HostError
from attngraft.hosts.adapter import Site, check_known, own_parameters, random_images
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import fused_heads, global_site, mlp_site
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import by_role, mlp_sites, unread_site
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.still_windows import Undropped

_Grid = tuple[int, int]
_POOLS = ("pool_q", "pool_k", "pool_v", "norm_q", "norm_k", "norm_v")
_BLOCK = ("norm1", "shortcut_proj_attn", "shortcut_pool_attn", "attn", "drop_path1")
_WIDENS = (
    "the MLP at the end of a stage puts out another width than it takes; use position=front or mid, or other blocks"
)


class Maps(NamedTuple):
    """(rows, columns) on both sides of the scores, without the class token."""

    queries: list[int]
    keys: list[int]


class GraftedMultiScaleAttention(Undropped, MultiScaleAttention):
    """`timm.models.mvitv2.MultiScaleAttention`: it returns the size of the map that leaves, too.

    Where queries (or keys) are fewer than tokens, the tokens on their side are those in the middle of each neighbourhood.
    The heads are what is projected: with the queries, where the host adds them.
    """

    ends: tuple[HookPoint, ...] = ("attn.end",)
    fused_attn = False

    def forward(self, x: Tensor, feat_size: list[int]) -> tuple[Tensor, list[int]]:  # type: ignore[override]
        projected = self.project(x, feat_size)
        return self.forward_projected(projected, lambda tokens: self.project(tokens, feat_size)), projected.rest.queries

    def project(self, x: Tensor, feat_size: list[int]) -> Projected:
        q, k, v = by_role(self.qkv(x), self.num_heads)
        q, queries = self.pooled(q, self.pool_q, self.norm_q, feat_size)
        k, keys = self.pooled(k, self.pool_k, self.norm_k, feat_size)
        v, _ = self.pooled(v, self.pool_v, self.norm_v, feat_size)
        asking, answering = self.middles(x, self.pool_q, feat_size), self.middles(x, self.pool_k, feat_size)
        return Projected(q, k, v, asking, keys=answering, rest=Maps(queries, keys))

    def pooled(
        self, x: Tensor, pool: nn.Module | None, norm: nn.Module | None, grid: list[int]
    ) -> tuple[Tensor, list[int]]:
        """q, k or v (B, H, N, d) as the host asks with it, and the size of its map."""
        if pool is not None:
            maps, first = reshape_pre_pool(x, grid, self.has_cls_token)
            x, grid = reshape_post_pool(pool(maps), self.num_heads, first)
        return x if norm is None else norm(x), grid

    def middles(self, x: Tensor, pool: nn.Module | None, grid: list[int]) -> Tensor:
        """The tokens (B, N, C) in the middle of what `pool` sees at each of its places."""
        if pool is None or (stride := _stride(pool)) == (1, 1):
            return x
        prefix = int(self.has_cls_token)
        maps = x[:, prefix:].unflatten(1, (grid[0], grid[1]))[:, :: stride[0], :: stride[1]]
        return torch.cat((x[:, :prefix], maps.flatten(1, 2)), dim=1)

    def scores(self, projected: Projected) -> Tensor:
        return self.positioned(super().scores(projected), projected)

    def shared_bias(self, projected: Projected) -> Tensor | None:
        if self.rel_pos_type != "spatial":
            return None
        q, k = projected.q, projected.k
        return self.positioned(q.new_zeros(*q.shape[:3], k.shape[2]), projected)

    def positioned(self, scores: Tensor, projected: Projected) -> Tensor:
        """The scores (B, H, Nq, Nk), in place, plus what each query makes of its distances."""
        if self.rel_pos_type != "spatial":
            return scores
        sizes = projected.rest
        return cal_rel_pos_type(
            scores, projected.q, self.has_cls_token, sizes.queries, sizes.keys, self.rel_pos_h, self.rel_pos_w
        )

    def mix(self, projected: Projected, again: Any) -> Mixed:
        mixed = super().mix(projected, again)
        return mixed._replace(heads=mixed.heads + projected.q) if self.residual_pooling else mixed

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return self.proj(heads.transpose(1, 2).flatten(2))


def _stride(pool: nn.Module) -> _Grid:
    stride: Any = pool.stride
    return (stride, stride) if isinstance(stride, int) else tuple(stride)


class TimmMViTv2(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.attn` and `.mlp`."""

    name = "timm.mvitv2"
    summary = "timm MViTv2 of any size, with and without a class token, features_only too"
    patched: ClassVar = {MultiScaleAttention: GraftedMultiScaleAttention, **timm_mlp.PATCHED}
    models = (MultiScaleVit,)
    blocks = (MultiScaleBlock,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        children = (*_BLOCK, "norm2", "shortcut_proj_mlp", "mlp", "drop_path2")
        check_known(block, path, arguments=("x", "feat_size"), children=children)
        prefix: dict[str, Any] = {"prefix": CLASS * bool(block.has_cls_token)}
        _, tokens, dim = look.entering(f"{path}.norm1")
        yield _attention_site(block.attn, f"{path}.attn", look, dim=dim, tokens=tokens, **prefix)
        _, tokens, dim = look.entering(f"{path}.mlp")
        for site in mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=tokens, **prefix):
            widens = look.leaving(f"{path}.mlp")[-1] != dim
            yield mlp_site(site.path, cast(MlpGeometry, site.geometry), {"mlp.end": _WIDENS}) if widens else site

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        core: Any = next(module for module in model.modules() if type(module) is MultiScaleVit)
        embed, stage = core.patch_embed.proj, core.stages[0]
        pool = stage.blocks[0].attn.pool_q
        down = (1, 1) if pool is None else _stride(pool)
        sides = (a * b * c for a, b, c in zip(stage.feat_size, down, embed.stride, strict=True))
        return random_images(model, (embed.in_channels, *sides), batch=batch)


def _attention_site(module: Any, path: str, look: Look, **tokens: Any) -> Site:
    if plain_class(module) is not MultiScaleAttention:
        return unread_site(module, path, **tokens)
    check_known(module, path, arguments=("x", "feat_size"), children=("qkv", "proj", *_POOLS))
    heads = fused_heads(module)
    scored = ["pool_k", "norm_k", "rel_pos_h", "rel_pos_w"]
    if module.residual_pooling:  # queries stand in the heads too, so nothing leaves them without use
        del heads["rows"]["q"]
    else:
        scored += ["pool_q", "norm_q"]
    geometry = AttentionGeometry(
        **tokens,
        query_tokens=_fewer(module.pool_q, f"{path}.pool_q", look, len(tokens["prefix"])),
        key_tokens=_fewer(module.pool_k, f"{path}.pool_k", look, len(tokens["prefix"])),
        out_dim=None if module.dim_out == tokens["dim"] else module.dim_out,
        **heads,
        query_key_parameters=own_parameters(module, *scored),
    )
    return global_site(path, geometry)


def _fewer(pool: nn.Module | None, path: str, look: Look, prefix: int) -> int | None:
    """How many tokens `pool` leaves; None: as many as there were."""
    if pool is None or _stride(pool) == (1, 1):
        return None
    before, after = look.entering(path)[-2:], look.leaving(path)[-2:]
    if after != tuple(-(-side // each) for side, each in zip(before, _stride(pool), strict=True)):
        raise HostError(f"{path} makes {after} of {before}: which tokens its places stand for is not known")
    return prefix + after[0] * after[1]


register_host(TimmMViTv2())
