"""timm's image encoder of SAM: windows, global attention in some blocks, decomposed relative positions."""

from typing import Any, ClassVar, cast

from timm.layers import apply_rot_embed_cat
from timm.models import vision_transformer_sam as sam
from torch import Tensor, nn

from attngraft.attention import HookPoint, Projected, record_coordinates
from attngraft.hosts.adapter import own_parameters
from attngraft.hosts.sites import windowed
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import SelfAttention
from attngraft.hosts.timm.family import CHILDREN, ShapeProbe, Sites, TimmFamily, checked_site, map_fields
from attngraft.hosts.timm.windows import PaddedWindows


class GraftedAttention(SelfAttention, sam.Attention):
    """`timm.models.vision_transformer_sam.Attention`: maps or windows (B, rows, columns, C)."""

    ends: tuple[HookPoint, ...] = ("attn.window", "attn.end")
    may_hide_all: ClassVar[bool] = False

    def forward(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        grid = (x.shape[1], x.shape[2])
        return super().forward(x.flatten(1, 2), grid, present).unflatten(1, grid)

    def project(self, x: Tensor, grid: tuple[int, int], present: Tensor | None) -> Projected:
        split = (x.shape[0], self.num_heads)
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, split[0] * split[1], x.shape[1], -1).unbind(0)
        q, k, bias = self.q_norm(q), self.k_norm(k), None
        if self.use_rel_pos:
            bias = sam.get_decomposed_rel_pos_bias(q, self.rel_pos_h, self.rel_pos_w, grid, grid).unflatten(0, split)
        elif self.rope is not None:
            rotation = cast(Any, self.rope).get_embed()
            q, k = (apply_rot_embed_cat(each, rotation).type_as(v) for each in (q, k))
        q, k, v = (each.unflatten(0, split) for each in (q, k, v))
        return Projected(q, k, v, x, bias=bias, present=present)

    def kernel(self, projected: Projected) -> Tensor:
        """Run the kernel with merged batch and heads, as the host does; other layouts round differently."""
        bias = None if projected.bias is None else projected.bias.flatten(0, 1)
        q, k, v = (each.flatten(0, 1) for each in projected[:3])
        heads = super().kernel(projected.replace(q=q, k=k, v=v, bias=bias))
        return heads.unflatten(0, projected.q.shape[:2])


class GraftedBlock(PaddedWindows, sam.Block):
    """`timm.models.vision_transformer_sam.Block`: LayerScale and drop path come before the windows are merged."""

    def forward(self, x: Tensor) -> Tensor:
        grid = (x.shape[1], x.shape[2])
        if self.window_size:
            record_coordinates(self, x, lambda maps: sam.window_partition(maps, self.window_size)[0])
        windows, padded = sam.window_partition(self.norm1(x), self.window_size)
        if padded != grid and self.mixes:
            # one mask per image: each has its own bias, and a shared mask would fix the batch size of exported programs
            ones = sam.window_partition(x.new_ones(x.shape[0], *grid, 1), self.window_size)[0]
            branch = self.attn(windows, ones.flatten(1) > 0)
        else:
            branch = self.attn(windows)
        branch = sam.window_unpartition(self.drop_path1(self.ls1(branch)), self.window_size, grid, padded)
        tokens = (x + self.run("attn.end", branch)).flatten(1, 2)
        tokens = tokens + self.drop_path2(self.ls2(self.mlp(self.norm2(tokens))))
        return tokens.unflatten(1, grid)

    def between(self, hook_point: HookPoint) -> str | None:
        if hook_point == "attn.end" and not isinstance(self.ls1, nn.Identity):
            return "LayerScale lies between it and the host's output projection"
        return super().between(hook_point)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, rows, columns, dim = shapes.input_shape(path)
    module, side = block.attn, block.window_size
    yield checked_site(
        module,
        f"{path}.attn",
        block=path,
        fills=True,
        arguments=("x", "present"),
        children=(*CHILDREN, "q_norm", "k_norm", "rope"),
        dim=module.qkv.in_features,
        **windowed((rows, columns), (side, side) if side else None),
        query_key_parameters=own_parameters(module, "q_norm", "k_norm", "rel_pos_h", "rel_pos_w"),
    )
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **map_fields(dim, rows, columns))


class TimmSam(TimmFamily):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`."""

    name = "timm.sam"
    summary = "timm SAM image encoders (windows, decomposed relative positions) of any size"
    patched: ClassVar = {sam.Attention: GraftedAttention, sam.Block: GraftedBlock, **mlp.PATCHED}
    models = (sam.VisionTransformerSAM,)
    blocks: ClassVar = {sam.Block: _sites}
