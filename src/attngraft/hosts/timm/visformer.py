"""timm's Visformer: maps throughout, convolutions in the early stages, then attention with convolutions as projections."""

from typing import Any, ClassVar, cast

from timm.models.visformer import Attention, Block, SpatialMlp, Visformer
from torch import Tensor, nn

from attngraft.attention import Projection
from attngraft.hosts.patched import TwoLinearEnds
from attngraft.hosts.sites import GLOBAL
from attngraft.hosts.timm.attention import ConvAttention, ScaledProducts
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, checked_site, map_fields
from attngraft.hosts.timm.mlp import MapMlpSite, step_mlp_site

_NO_ATTENTION = "this block has a convolution in its MLP instead of attention; choose later blocks"


class GraftedAttention(ConvAttention, ScaledProducts, Attention):
    """Patched class of `timm.models.visformer.Attention`."""


class GraftedSpatialMlp(TwoLinearEnds, MapMlpSite, SpatialMlp):
    """`timm.models.visformer.SpatialMlp`: some blocks have another convolution before the last one."""

    linear_names = ("conv1", "conv3")
    before_mid, after_mid = ("conv1", "act1", "drop1"), ("conv3", "drop3")

    def hidden(self, x: Tensor) -> Tensor:
        x = super().hidden(x)
        return x if self.conv2 is None else cast(nn.Module, self.act2)(self.conv2(x))


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, dim, rows, columns = shapes.input_shape(path)
    fields, missing = map_fields(dim, rows, columns), dict.fromkeys(GLOBAL, _NO_ATTENTION)
    if block.attn is not None:
        yield checked_site(block.attn, f"{path}.attn", projection=Projection(bias=False), **fields)
        missing = {}
    yield step_mlp_site(block.mlp, f"{path}.mlp", GraftedSpatialMlp, missing, children=("conv2", "act2"), **fields)


class TimmVisformer(TimmFamily):
    """Sites `stage<i>.<j>.attn`, if a stage has attention, and `stage<i>.<j>.mlp`."""

    name = "timm.visformer"
    summary = "timm Visformer of any size"
    patched: ClassVar = {Attention: GraftedAttention, SpatialMlp: GraftedSpatialMlp}
    models = (Visformer,)
    blocks: ClassVar = {Block: _sites}
