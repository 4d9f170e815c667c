"""timm's EfficientFormer: pooling blocks, then attention over the last map with one bias per distance."""

from typing import Any, ClassVar

from timm.models.efficientformer import Attention, ConvMlpWithNorm, EfficientFormer, MetaBlock1d, MetaBlock2d

from attngraft.attention import HookPoint
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import HeadwiseQkv, ScaledProducts
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, headwise_site, map_fields
from attngraft.hosts.timm.mlp import MapMlpSite, mlp_sites, step_mlp_site


class GraftedAttention(ScaledProducts, HeadwiseQkv, Attention):
    """`timm.models.efficientformer.Attention`; values are wider than keys."""

    ends: tuple[HookPoint, ...] = ("attn.end",)
    fused_attn = False


class GraftedConvMlpWithNorm(MapMlpSite, ConvMlpWithNorm):
    """`timm.models.efficientformer.ConvMlpWithNorm`: 1x1 convolutions, each with a batch norm."""

    before_mid, after_mid = ("fc1", "norm1", "act", "drop"), ("fc2", "norm2", "drop")


def _attention_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, tokens, dim = shapes.input_shape(path)
    mixer = f"{path}.token_mixer"
    yield headwise_site(block.token_mixer, mixer, children=("qkv", "proj"), dim=dim, tokens=tokens)
    yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=tokens)


def _pooling_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, dim, rows, columns = shapes.input_shape(path)
    yield step_mlp_site(block.mlp, f"{path}.mlp", GraftedConvMlpWithNorm, **map_fields(dim, rows, columns))


class TimmEfficientFormer(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.mlp`, and in the last blocks `.token_mixer`."""

    name = "timm.efficientformer"
    summary = (
        "timm EfficientFormer of any size (attention in its last blocks; MLPs everywhere), including features_only"
    )
    patched: ClassVar = {Attention: GraftedAttention, ConvMlpWithNorm: GraftedConvMlpWithNorm, **mlp.PATCHED}
    models = (EfficientFormer,)
    blocks: ClassVar = {MetaBlock1d: _attention_sites, MetaBlock2d: _pooling_sites}
