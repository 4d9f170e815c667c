"""timm's MaxViT, CoAtNet and their relatives: attention over whole maps, in windows and in grids, between convolutions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

from timm.layers import ConvMlp
from timm.models.maxxvit import (
    Attention2d,
    AttentionCl,
    MaxxVit,
    MaxxVitTransformerCfg,
    ParallelPartitionAttention,
    PartitionAttention2d,
    PartitionAttentionCl,
    TransformerBlock2d,
    grid_partition,
    window_partition,
)
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, HeadRows, HookPoint, Projected, plain_class, record_coordinates
from attngraft.hosts.adapter import Site, check_known, fused_rows, head_rows, own_parameters, random_images
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import global_site, window_site, windowed
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import SelfAttention, mlp_sites
from attngraft.hosts.timm.conv_attention import ConvAttention
from attngraft.hosts.timm.family import Look, TimmFamily, image_size
from attngraft.hosts.timm.maps import map_of
from attngraft.hosts.timm.positions import score_columns, score_rows
from attngraft.hosts.timm.windows import WindowEnd

_IN_PARTS = (PartitionAttentionCl, PartitionAttention2d, ParallelPartitionAttention)
_TOGETHER: dict[HookPoint, str] = {"attn.end": "two attentions stand side by side and end together; use scope=window"}


class RelativeAttention(SelfAttention):
    """What both attentions share: relative positions, their own or shared; the same class with windows and without."""

    ends: tuple[HookPoint, ...] = ("attn.window", "attn.end")
    rel_pos: Any

    def bias(self, shared: Tensor | None) -> Tensor | None:
        return shared if self.rel_pos is None else cast(Tensor, self.rel_pos.get_bias())


class GraftedAttentionCl(RelativeAttention, AttentionCl):
    """`timm.models.maxxvit.AttentionCl`: windows (B, rows, columns, C)."""

    def forward(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Tensor:
        return super().forward(x.flatten(1, -2), shared_rel_pos).unflatten(1, x.shape[1:-1])

    def project(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Projected:
        qkv = self.qkv(x)
        if self.head_first:
            q, k, v = qkv.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).chunk(3, dim=3)
        else:
            q, k, v = qkv.unflatten(-1, (3, self.num_heads, self.dim_head)).transpose(1, 3).unbind(2)
        return Projected(q, k, v, x, bias=self.bias(shared_rel_pos))


class GraftedAttention2d(ConvAttention, RelativeAttention, Attention2d):
    """`timm.models.maxxvit.Attention2d`."""

    def project(self, x: Tensor, shared_rel_pos: Tensor | None = None, *, grid: tuple[int, int]) -> Projected:
        qkv = self.qkv(map_of(x, grid)).flatten(2)
        if self.head_first:
            parts = qkv.unflatten(1, (self.num_heads, -1)).chunk(3, dim=2)
        else:
            parts = qkv.unflatten(1, (3, self.num_heads, self.dim_head)).unbind(1)
        q, k, v = (part.transpose(-1, -2) for part in parts)
        if self.fused_attn:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        return Projected(q, k, v, x, bias=self.bias(shared_rel_pos), rest=grid)

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        """The host's own order of factors."""
        dropped = cast(Tensor, self.attn_drop(weights))
        return (projected.v.transpose(-1, -2) @ dropped.transpose(-2, -1)).transpose(-1, -2)


def _parts(block: Any, maps: Tensor) -> Tensor:
    """Maps (B, rows, columns, C) to the block's windows, or to its grids of tokens that lie apart."""
    return cast(Tensor, (window_partition if block.partition_block else grid_partition)(maps, block.partition_size))


class GraftedPartitionAttentionCl(WindowEnd, PartitionAttentionCl):
    """`timm.models.maxxvit.PartitionAttentionCl`, windows or grids of maps (B, rows, columns, C)."""

    def _partition_attn(self, x: Tensor) -> Tensor:
        record_coordinates(self, x, lambda maps: _parts(self, maps))
        return self.run("attn.end", super()._partition_attn(x))


class GraftedPartitionAttention2d(WindowEnd, PartitionAttention2d):
    """`timm.models.maxxvit.PartitionAttention2d`, on maps (B, C, rows, columns)."""

    def _partition_attn(self, x: Tensor) -> Tensor:
        record_coordinates(self, x.permute(0, 2, 3, 1), lambda maps: _parts(self, maps))
        return self.run("attn.end", super()._partition_attn(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class TimmMaxxVit(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.attn` (CoAtNet), `.attn_block.attn` and `.attn_grid.attn` (MaxViT), `.mlp` beside."""

    name = "timm.maxxvit"
    summary = "timm MaxViT, CoAtNet, CoAtNeXt, MaxxViT of any size, features_only too"
    patched: ClassVar = {
        Attention2d: GraftedAttention2d,
        AttentionCl: GraftedAttentionCl,
        PartitionAttentionCl: GraftedPartitionAttentionCl,
        PartitionAttention2d: GraftedPartitionAttention2d,
        **timm_mlp.PATCHED,
    }
    models = (MaxxVit,)
    blocks = (TransformerBlock2d, *_IN_PARTS)

    def example_inputs(self, model: nn.Module, *, batch: int) -> tuple[Tensor, ...]:
        """Where the model does not say what size it was made for (timm 1.0.26), positions of whole maps or windows do."""
        channels, rows, columns = image_size(model)
        if not hasattr(model, "img_size"):
            rows, columns = self._made_for(model) or (rows, columns)
        return random_images(model, (channels, rows, columns), batch=batch)

    def _made_for(self, model: nn.Module) -> tuple[int, int] | None:
        infos = getattr(getattr(model, "feature_info", []), "info", getattr(model, "feature_info", []))
        for path, block in model.named_modules():
            kind = plain_class(block)
            if kind is TransformerBlock2d and cast(Any, block).attn.rel_pos is not None:
                stage = ".".join(self.canonical(path).split(".")[:2])
                scale = next((info["reduction"] for info in infos if info["module"] == stage), None)
                side = cast(Any, block).attn.rel_pos.window_size
            elif kind in _IN_PARTS:
                scale, side = MaxxVitTransformerCfg.partition_ratio, cast(Any, block).partition_size
            else:
                continue
            return None if scale is None else (side[0] * scale, side[1] * scale)
        return None

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        names = ("attn_block", "attn_grid") if plain_class(block) is ParallelPartitionAttention else ("attn",)
        for name in names:
            yield self._attention_site(block, name, path, look)
        entering = look.entering(f"{path}.mlp")
        grid = entering[-2:] if isinstance(block.mlp, ConvMlp) else entering[1:3]
        dim = block.mlp.fc1.weight.shape[1]
        yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=grid[0] * grid[1], grid=grid)

    def _attention_site(self, block: Any, name: str, path: str, look: Look) -> Site:
        module, attn = getattr(block, name), f"{path}.{name}"
        check_known(
            module,
            attn,
            arguments=("x", "shared_rel_pos", "args", "kwargs"),
            children=("qkv", "rel_pos", "attn_drop", "proj", "proj_drop"),
        )
        shape = look.entering(attn)
        rows, columns = shape[-2:] if isinstance(module, Attention2d) else shape[1:3]
        size = (rows, columns)
        partitioned = plain_class(block) is not TransformerBlock2d
        width, (out, _) = module.dim_head, module.proj.weight.shape[:2]
        dim = module.qkv.weight.shape[1]
        geometry = AttentionGeometry(
            dim=dim,
            out_dim=None if out == dim else out,
            **(windowed(_grid(look, path, block), size) if partitioned else windowed(size, None)),
            heads=module.num_heads,
            key_width=width,
            value_width=width,
            rows=_rows(module),
            query_key_parameters=own_parameters(module, "rel_pos"),
            score_rows=score_rows(module),
            score_columns=score_columns(module),
        )
        if not partitioned:
            return global_site(attn, geometry)
        return window_site(
            attn, geometry, block=path, missing=_TOGETHER if plain_class(block) is ParallelPartitionAttention else {}
        )


def _grid(look: Look, path: str, block: Any) -> tuple[int, int]:
    """The whole map of a block that cuts it."""
    shape = look.entering(path)
    rows, columns = shape[-2:] if plain_class(block) is PartitionAttention2d else shape[1:3]
    return rows, columns


def _rows(module: Any) -> dict[str, tuple[HeadRows, ...]]:
    """Rows of q, k, v: three blocks, or together head by head."""
    if not module.head_first:
        return fused_rows(module, "qkv", heads=module.num_heads)
    width = module.dim_head
    return {
        role: head_rows(module, "qkv", start=i * width, width=width, step=3 * width)
        for i, role in enumerate(("q", "k", "v"))
    }


register_host(TimmMaxxVit())
