"""timm's FastViT and MobileCLIP's image encoders: convolutions, and attention in some stages."""

from typing import Any, ClassVar, cast

from timm.models.fastvit import Attention, AttentionBlock, ConvMlp, FastVit
from torch import Tensor

from attngraft.attention import MlpGeometry
from attngraft.hosts.adapter import check_known
from attngraft.hosts.patched import TwoLinearEnds
from attngraft.hosts.sites import global_site, mlp_site
from attngraft.hosts.timm.attention import FusedQkv, map_to_tokens, tokens_to_map
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, attention_geometry, map_fields
from attngraft.hosts.timm.mlp import MapMlpSite


class GraftedAttention(FusedQkv, Attention):
    """`timm.models.fastvit.Attention`: maps outside, tokens inside."""

    def forward(self, x: Tensor) -> Tensor:
        return tokens_to_map(super().forward(map_to_tokens(x)), x.shape[-2:])


class GraftedConvMlp(TwoLinearEnds, MapMlpSite, ConvMlp):
    """`timm.models.fastvit.ConvMlp`: `mlp.front` is after its depthwise convolution."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.conv(x))

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.act(self.fc1(x))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.fc2(x)))


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    mixer, mlp = f"{path}.token_mixer", block.mlp
    _, dim, rows, columns = shapes.input_shape(path)
    fields = map_fields(dim, rows, columns)
    yield global_site(mixer, attention_geometry(block.token_mixer, mixer, arguments=("x",), **fields))
    check_known(mlp, f"{path}.mlp", arguments=("x",), children=("conv", "fc1", "act", "fc2", "drop"))
    yield mlp_site(f"{path}.mlp", MlpGeometry(**fields, hidden=mlp.fc1.out_channels))


class TimmFastVit(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.token_mixer` and `.mlp` of the stages with attention."""

    name = "timm.fastvit"
    summary = "timm FastViT and MobileCLIP image encoders (stages with attention), including features_only"
    patched: ClassVar = {Attention: GraftedAttention, ConvMlp: GraftedConvMlp}
    models = (FastVit,)
    blocks: ClassVar = {AttentionBlock: _sites}
