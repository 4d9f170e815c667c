"""timm's FastViT and MobileCLIP's image encoders: convolutions, and attention in some stages."""

from typing import Any, ClassVar

from timm.models.fastvit import Attention, AttentionBlock, ConvMlp, FastVit
from torch import Tensor

from attngraft.hosts.patched import TwoLinearEnds
from attngraft.hosts.timm.attention import FusedQkv, map_to_tokens, tokens_to_map
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, checked_site, map_fields
from attngraft.hosts.timm.mlp import MapMlpSite, step_mlp_site


class GraftedAttention(FusedQkv, Attention):
    """`timm.models.fastvit.Attention`: inputs and outputs are maps, and grafts get tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return tokens_to_map(super().forward(map_to_tokens(x)), x.shape[-2:])


class GraftedConvMlp(TwoLinearEnds, MapMlpSite, ConvMlp):
    """`timm.models.fastvit.ConvMlp`: `mlp.front` is after its depthwise convolution."""

    before_mid, after_mid = ("fc1", "act", "drop"), ("fc2", "drop")

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.conv(x))


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, dim, rows, columns = shapes.input_shape(path)
    fields = map_fields(dim, rows, columns)
    yield checked_site(block.token_mixer, f"{path}.token_mixer", arguments=("x",), **fields)
    yield step_mlp_site(block.mlp, f"{path}.mlp", GraftedConvMlp, children=("conv",), **fields)


class TimmFastVit(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.token_mixer` and `.mlp` of the stages with attention."""

    name = "timm.fastvit"
    summary = "timm FastViT and MobileCLIP image encoders (stages with attention), including features_only"
    patched: ClassVar = {Attention: GraftedAttention, ConvMlp: GraftedConvMlp}
    models = (FastVit,)
    blocks: ClassVar = {AttentionBlock: _sites}
