"""timm's MaxViT, CoAtNet and relatives: attention over whole maps, in windows and in grids, between convolutions."""

from typing import Any, ClassVar, cast

from timm.layers import ConvMlp
from timm.models import maxxvit
from torch import Tensor, nn

from attngraft.attention import HookPoint, Projected, plain_class, record_coordinates
from attngraft.hosts.adapter import Site, random_images
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.sites import fused_heads, projected_heads, windowed
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import ConvAttention, SelfAttention
from attngraft.hosts.timm.family import CHILDREN, TimmFamily, checked_site, image_size, map_fields, rel_pos_fields
from attngraft.hosts.timm.windows import WindowMerger

_PARTITIONED = (maxxvit.PartitionAttentionCl, maxxvit.PartitionAttention2d, maxxvit.ParallelPartitionAttention)
_TOGETHER: dict[HookPoint, str] = {"attn.end": "two parallel attentions share one end; use scope=window"}


class RelativeAttention(SelfAttention):
    """Attention with its own or shared relative positions, in blocks with and without windows."""

    ends: tuple[HookPoint, ...] = ("attn.window", "attn.end")
    may_hide_all: ClassVar[bool] = False
    rel_pos: Any

    def bias(self, shared: Tensor | None) -> Tensor | None:
        return shared if self.rel_pos is None else cast(Tensor, self.rel_pos.get_bias())


class GraftedAttentionCl(RelativeAttention, maxxvit.AttentionCl):
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


class GraftedAttention2d(ConvAttention, RelativeAttention, maxxvit.Attention2d):
    """Patched class of `timm.models.maxxvit.Attention2d`."""

    def split(self, qkv: Tensor) -> tuple[Tensor, ...]:
        return qkv.unflatten(1, (self.num_heads, -1)).chunk(3, dim=2) if self.head_first else super().split(qkv)

    def project(self, x: Tensor, shared_rel_pos: Tensor | None = None, *, grid: tuple[int, int]) -> Projected:
        return super().project(x, grid=grid).replace(bias=self.bias(shared_rel_pos))

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        """Multiply in the order of the host, for identical rounding."""
        dropped = cast(Tensor, self.attn_drop(weights))
        return (projected.v.transpose(-1, -2) @ dropped.transpose(-2, -1)).transpose(-1, -2)


def _partition(block: Any, maps: Tensor) -> Tensor:
    """Partition maps (B, rows, columns, C) into the block's windows or grids."""
    function = maxxvit.window_partition if block.partition_block else maxxvit.grid_partition
    return cast(Tensor, function(maps, block.partition_size))


class GraftedPartitionAttentionCl(WindowMerger, maxxvit.PartitionAttentionCl):
    """`timm.models.maxxvit.PartitionAttentionCl`, on windows or grids of maps (B, rows, columns, C)."""

    def _partition_attn(self, x: Tensor) -> Tensor:
        record_coordinates(self, x, lambda maps: _partition(self, maps))
        return self.run("attn.end", super()._partition_attn(x))


class GraftedPartitionAttention2d(WindowMerger, maxxvit.PartitionAttention2d):
    """`timm.models.maxxvit.PartitionAttention2d`, on maps (B, C, rows, columns)."""

    def _partition_attn(self, x: Tensor) -> Tensor:
        record_coordinates(self, x.permute(0, 2, 3, 1), lambda maps: _partition(self, maps))
        return self.run("attn.end", super()._partition_attn(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    kind = plain_class(block)
    for name in ("attn_block", "attn_grid") if kind is maxxvit.ParallelPartitionAttention else ("attn",):
        yield _attention_site(block, name, path, shapes)
    shape = shapes.input_shape(f"{path}.mlp")
    rows, columns = shape[-2:] if isinstance(block.mlp, ConvMlp) else shape[1:3]
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **map_fields(block.mlp.fc1.weight.shape[1], rows, columns))


def _attention_site(block: Any, name: str, path: str, shapes: ShapeProbe) -> Site:
    module, attn, kind = getattr(block, name), f"{path}.{name}", plain_class(block)
    shape = shapes.input_shape(attn)
    rows, columns = shape[-2:] if isinstance(module, maxxvit.Attention2d) else shape[1:3]
    if kind is maxxvit.TransformerBlock2d:
        fields = windowed((rows, columns), None)
    else:
        whole = shapes.input_shape(path)
        whole = whole[-2:] if kind is maxxvit.PartitionAttention2d else whole[1:3]
        fields = windowed((whole[0], whole[1]), (rows, columns))
    width, (out, _) = module.dim_head, module.proj.weight.shape[:2]
    dim = module.qkv.weight.shape[1]
    if module.head_first:  # the rows are q, k, v of head 0, then of head 1, and so on
        starts = {"q": ("qkv", 0), "k": ("qkv", width), "v": ("qkv", 2 * width)}
        heads = projected_heads(module, starts, width=width, step=3 * width)
    else:
        heads = fused_heads(module)
    return checked_site(
        module,
        attn,
        _TOGETHER if kind is maxxvit.ParallelPartitionAttention else {},
        block=path,
        arguments=("x", "shared_rel_pos", "args", "kwargs"),
        children=(*CHILDREN, "rel_pos"),
        heads=heads,
        dim=dim,
        out_dim=None if out == dim else out,
        **fields,
        **rel_pos_fields(module),
    )


class TimmMaxxVit(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.attn` (CoAtNet), `.attn_block.attn` and `.attn_grid.attn` (MaxViT), each with `.mlp`."""

    name = "timm.maxxvit"
    summary = "timm MaxViT, CoAtNet, CoAtNeXt, MaxxViT of any size, including features_only"
    patched: ClassVar = {
        maxxvit.Attention2d: GraftedAttention2d,
        maxxvit.AttentionCl: GraftedAttentionCl,
        maxxvit.PartitionAttentionCl: GraftedPartitionAttentionCl,
        maxxvit.PartitionAttention2d: GraftedPartitionAttention2d,
        **mlp.PATCHED,
    }
    models = (maxxvit.MaxxVit,)
    blocks: ClassVar = dict.fromkeys((maxxvit.TransformerBlock2d, *_PARTITIONED), _sites)

    def example_inputs(self, model: nn.Module, *, batch: int) -> tuple[Tensor, ...]:
        """Return random images; their size is derived from position tables if the model does not store it (timm 1.0.26)."""
        channels, rows, columns = image_size(model)
        if not hasattr(model, "img_size"):
            rows, columns = self._size_of_positions(model) or (rows, columns)
        return random_images(model, (channels, rows, columns), batch=batch)

    def _size_of_positions(self, model: nn.Module) -> tuple[int, int] | None:
        infos = getattr(getattr(model, "feature_info", []), "info", getattr(model, "feature_info", []))
        for path, block in model.named_modules():
            kind = plain_class(block)
            if kind is maxxvit.TransformerBlock2d and cast(Any, block).attn.rel_pos is not None:
                stage = ".".join(self.canonical(path).split(".")[:2])
                scale = next((info["reduction"] for info in infos if info["module"] == stage), None)
                side = cast(Any, block).attn.rel_pos.window_size
            elif kind in _PARTITIONED:
                scale, side = maxxvit.MaxxVitTransformerCfg.partition_ratio, cast(Any, block).partition_size
            else:
                continue
            return None if scale is None else (side[0] * scale, side[1] * scale)
        return None
