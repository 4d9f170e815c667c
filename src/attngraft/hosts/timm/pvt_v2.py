"""timm's PVT v2: subsampled keys, and a depthwise convolution in the MLP."""

from typing import Any, ClassVar, cast

from timm.models.pvt_v2 import Attention, Block, MlpWithDepthwiseConv, PyramidVisionTransformerV2
from torch import Tensor

from attngraft.attention import MlpGeometry
from attngraft.hosts.adapter import check_known
from attngraft.hosts.patched import TwoLinearEnds
from attngraft.hosts.sites import mlp_site
from attngraft.hosts.timm.attention import SubsampledKeys, map_to_tokens, tokens_to_map
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, map_fields, subsampled_site


class GraftedAttention(SubsampledKeys, Attention):
    """`timm.models.pvt_v2.Attention`: keys are reduced by a convolution, or by pooling to a fixed size and an activation."""

    def reduce(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        if self.pool is None:
            return super().reduce(x, grid)
        host = cast(Any, self)  # attributes of the other kind of reduction are None
        return cast(Tensor, host.act(host.norm(map_to_tokens(host.sr(host.pool(tokens_to_map(x, grid)))))))


class GraftedMlpWithDepthwiseConv(TwoLinearEnds, MlpWithDepthwiseConv):
    """`timm.models.pvt_v2.MlpWithDepthwiseConv`: the convolution is between fc1 and the activation."""

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        x = self.relu(tokens_to_map(self.fc1(self.run("mlp.front", x)), feat_size))
        x = self.run("mlp.mid", self.drop(self.act(map_to_tokens(self.dwconv(x)))))
        return self.run("mlp.end", self.drop(self.fc2(x)))


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, dim, rows, columns = shapes.output_shape(path.partition(".blocks.")[0])
    fields, module = map_fields(dim, rows, columns), block.mlp
    yield subsampled_site(block.attn, f"{path}.attn", shapes, argument="feat_size", **fields)
    children = ("fc1", "relu", "dwconv", "act", "fc2", "drop")
    check_known(module, f"{path}.mlp", arguments=("x", "feat_size"), children=children)
    yield mlp_site(f"{path}.mlp", MlpGeometry(hidden=module.fc2.in_features, **fields))


class TimmPvtV2(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.attn` and `.mlp`."""

    name = "timm.pvt_v2"
    summary = "timm PVT v2 of any size, including features_only"
    any_size: ClassVar = {}
    patched: ClassVar = {Attention: GraftedAttention, MlpWithDepthwiseConv: GraftedMlpWithDepthwiseConv}
    models = (PyramidVisionTransformerV2,)
    blocks: ClassVar = {Block: _sites}
