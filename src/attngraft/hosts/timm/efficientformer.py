"""timm's EfficientFormer: pooling blocks, then attention over the last map with one bias per distance."""

from typing import Any, ClassVar, cast

from timm.models.efficientformer import Attention, ConvMlpWithNorm, EfficientFormer, MetaBlock1d, MetaBlock2d
from torch import Tensor

from attngraft.attention import HookPoint, MlpGeometry, Projected
from attngraft.hosts.adapter import check_known
from attngraft.hosts.sites import global_site, mlp_site
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import HeadwiseQkv
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, headwise_geometry, map_fields
from attngraft.hosts.timm.mlp import MapMlpSite, mlp_sites


class GraftedAttention(HeadwiseQkv, Attention):
    """`timm.models.efficientformer.Attention`; values are wider than keys."""

    ends: tuple[HookPoint, ...] = ("attn.end",)
    fused_attn = False

    def scores(self, projected: Projected) -> Tensor:
        """Scale after the product, as the host does, for identical rounding."""
        return projected.q @ projected.k.transpose(-2, -1) * self.scale + cast(Tensor, projected.bias)


class GraftedConvMlpWithNorm(MapMlpSite, ConvMlpWithNorm):
    """`timm.models.efficientformer.ConvMlpWithNorm`: 1x1 convolutions, each with a batch norm."""

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.act(self.norm1(self.fc1(x)))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.norm2(self.fc2(x))))


def _attention_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, tokens, dim = shapes.input_shape(path)
    mixer = f"{path}.token_mixer"
    geometry = headwise_geometry(block.token_mixer, mixer, children=("qkv", "proj"), dim=dim, tokens=tokens)
    yield global_site(mixer, geometry)
    yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=tokens)


def _pooling_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, dim, rows, columns = shapes.input_shape(path)
    children = ("fc1", "norm1", "act", "fc2", "norm2", "drop")
    check_known(block.mlp, f"{path}.mlp", arguments=("x",), children=children)
    geometry = MlpGeometry(hidden=block.mlp.fc1.out_channels, **map_fields(dim, rows, columns))
    yield mlp_site(f"{path}.mlp", geometry)


class TimmEfficientFormer(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.mlp`, and in the last blocks `.token_mixer`."""

    name = "timm.efficientformer"
    summary = (
        "timm EfficientFormer of any size (attention in its last blocks; MLPs everywhere), including features_only"
    )
    patched: ClassVar = {Attention: GraftedAttention, ConvMlpWithNorm: GraftedConvMlpWithNorm, **mlp.PATCHED}
    models = (EfficientFormer,)
    blocks: ClassVar = {MetaBlock1d: _attention_sites, MetaBlock2d: _pooling_sites}
