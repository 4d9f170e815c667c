"""timm's MViTv2: pooled q, k and v, relative positions multiplied by the queries, and residual pooling."""

from typing import Any, ClassVar, NamedTuple, cast

import torch
from timm.models import mvitv2
from torch import Tensor, nn

from attngraft.attention import CLASS, HookPoint, Mixed, MlpGeometry, Projected, plain_class
from attngraft.errors import HostError
from attngraft.hosts.adapter import Site, check_known, own_parameters, random_images
from attngraft.hosts.sites import fused_heads, mlp_site
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import NoDropout, PlainMerge, split_qkv
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, checked_site, unread_site

_POOLS = ("pool_q", "pool_k", "pool_v", "norm_q", "norm_k", "norm_v")
_BLOCK = (
    *("norm1", "shortcut_proj_attn", "shortcut_pool_attn", "attn", "drop_path1"),
    *("norm2", "shortcut_proj_mlp", "mlp", "drop_path2"),
)
_WIDENS = "the MLP at the end of a stage changes the width; use position=front or mid, or other blocks"


class Grids(NamedTuple):
    """(rows, columns) of queries and keys, without the class token."""

    queries: list[int]
    keys: list[int]


class GraftedMultiScaleAttention(NoDropout, PlainMerge, mvitv2.MultiScaleAttention):
    """`timm.models.mvitv2.MultiScaleAttention`, which also returns the size of the output map.

    If queries (or keys) are pooled, the tokens on that side are the tokens at the centers of the pooling windows.
    The heads include the queries if the host adds them (residual pooling).
    """

    ends: tuple[HookPoint, ...] = ("attn.end",)
    fused_attn = False

    def forward(self, x: Tensor, feat_size: list[int]) -> tuple[Tensor, list[int]]:  # type: ignore[override]
        projected = self.project(x, feat_size)
        return self.forward_projected(projected, lambda tokens: self.project(tokens, feat_size)), projected.rest.queries

    def project(self, x: Tensor, feat_size: list[int]) -> Projected:
        q, k, v = split_qkv(self.qkv(x), self.num_heads)
        q, queries = self.pool(q, self.pool_q, self.norm_q, feat_size)
        k, keys = self.pool(k, self.pool_k, self.norm_k, feat_size)
        v, _ = self.pool(v, self.pool_v, self.norm_v, feat_size)
        q_tokens, k_tokens = self.centers(x, self.pool_q, feat_size), self.centers(x, self.pool_k, feat_size)
        return Projected(q, k, v, q_tokens, keys=k_tokens, rest=Grids(queries, keys))

    def pool(
        self, x: Tensor, pool: nn.Module | None, norm: nn.Module | None, grid: list[int]
    ) -> tuple[Tensor, list[int]]:
        """Return pooled and normalized q, k or v (B, H, N, d), and the size of its map."""
        if pool is not None:
            maps, first = mvitv2.reshape_pre_pool(x, grid, self.has_cls_token)
            x, grid = mvitv2.reshape_post_pool(pool(maps), self.num_heads, first)
        return x if norm is None else norm(x), grid

    def centers(self, x: Tensor, pool: nn.Module | None, grid: list[int]) -> Tensor:
        """Return the tokens (B, N, C) at the centers of the windows of `pool`."""
        if pool is None or (stride := _stride(pool)) == (1, 1):
            return x
        prefix = int(self.has_cls_token)
        maps = x[:, prefix:].unflatten(1, (grid[0], grid[1]))[:, :: stride[0], :: stride[1]]
        return torch.cat((x[:, :prefix], maps.flatten(1, 2)), dim=1)

    def scores(self, projected: Projected) -> Tensor:
        return self.add_positions(super().scores(projected), projected)

    def shared_bias(self, projected: Projected) -> Tensor | None:
        if self.rel_pos_type != "spatial":
            return None
        q, k = projected.q, projected.k
        return self.add_positions(q.new_zeros(*q.shape[:3], k.shape[2]), projected)

    def add_positions(self, scores: Tensor, projected: Projected) -> Tensor:
        """Add the relative positions of each query to the scores (B, H, Nq, Nk) in place."""
        if self.rel_pos_type != "spatial":
            return scores
        sizes = projected.rest
        return mvitv2.cal_rel_pos_type(
            scores, projected.q, self.has_cls_token, sizes.queries, sizes.keys, self.rel_pos_h, self.rel_pos_w
        )

    def mix(self, projected: Projected, again: Any) -> Mixed:
        mixed = super().mix(projected, again)
        return Mixed(mixed.heads + projected.q, mixed.after) if self.residual_pooling else mixed


def _stride(pool: nn.Module) -> tuple[int, int]:
    stride: Any = pool.stride
    return (stride, stride) if isinstance(stride, int) else tuple(stride)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    check_known(block, path, arguments=("x", "feat_size"), children=_BLOCK)
    prefix: dict[str, Any] = {"prefix": CLASS * bool(block.has_cls_token)}
    _, tokens, dim = shapes.input_shape(f"{path}.norm1")
    yield _attention_site(block.attn, f"{path}.attn", shapes, dim=dim, tokens=tokens, **prefix)
    _, tokens, dim = shapes.input_shape(f"{path}.mlp")
    for site in mlp.mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=tokens, **prefix):
        widens = shapes.output_shape(f"{path}.mlp")[-1] != dim
        yield mlp_site(site.path, cast(MlpGeometry, site.geometry), {"mlp.end": _WIDENS}) if widens else site


def _attention_site(module: Any, path: str, shapes: ShapeProbe, **tokens: Any) -> Site:
    if plain_class(module) is not mvitv2.MultiScaleAttention:
        return unread_site(module, path, **tokens)
    heads = fused_heads(module)
    scored = ["pool_k", "norm_k", "rel_pos_h", "rel_pos_w"]
    if module.residual_pooling:  # queries are added to the heads, so grafts never make them unused
        del heads["rows"]["q"]
    else:
        scored += ["pool_q", "norm_q"]
    return checked_site(
        module,
        path,
        arguments=("x", "feat_size"),
        children=("qkv", "proj", *_POOLS),
        heads=heads,
        query_tokens=_pooled_tokens(module.pool_q, f"{path}.pool_q", shapes, len(tokens["prefix"])),
        key_tokens=_pooled_tokens(module.pool_k, f"{path}.pool_k", shapes, len(tokens["prefix"])),
        out_dim=None if module.dim_out == tokens["dim"] else module.dim_out,
        query_key_parameters=own_parameters(module, *scored),
        **tokens,
    )


def _pooled_tokens(pool: nn.Module | None, path: str, shapes: ShapeProbe, prefix: int) -> int | None:
    """Return the number of tokens after `pool`; None if `pool` does not change it."""
    if pool is None or _stride(pool) == (1, 1):
        return None
    before, after = shapes.input_shape(path)[-2:], shapes.output_shape(path)[-2:]
    if after != tuple(-(-side // each) for side, each in zip(before, _stride(pool), strict=True)):
        raise HostError(
            f"{path} pools {before} to {after}, which does not follow from its stride; this variant is not supported"
        )
    return prefix + after[0] * after[1]


class TimmMViTv2(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.attn` and `.mlp`."""

    name = "timm.mvitv2"
    summary = "timm MViTv2 of any size, with and without a class token, including features_only"
    patched: ClassVar = {mvitv2.MultiScaleAttention: GraftedMultiScaleAttention, **mlp.PATCHED}
    models = (mvitv2.MultiScaleVit,)
    blocks: ClassVar = {mvitv2.MultiScaleBlock: _sites}

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        core: Any = next(module for module in model.modules() if type(module) is mvitv2.MultiScaleVit)
        embed, stage = core.patch_embed.proj, core.stages[0]
        pool = stage.blocks[0].attn.pool_q
        down = (1, 1) if pool is None else _stride(pool)
        sides = (a * b * c for a, b, c in zip(stage.feat_size, down, embed.stride, strict=True))
        return random_images(model, (embed.in_channels, *sides), batch=batch)
