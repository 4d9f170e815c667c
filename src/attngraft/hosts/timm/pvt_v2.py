"""timm's PVT v2: keys are a summary of the map, and a convolution of neighbours stands inside the MLP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

from timm.models.pvt_v2 import Attention, Block, MlpWithDepthwiseConv, PyramidVisionTransformerV2
from torch import Tensor

from attngraft.attention import MlpGeometry
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.linear_ends import LinearEnds
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import mlp_site
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.maps import map_of, tokens_of
from attngraft.hosts.timm.subsampled import SubsampledSite, subsampled_site


class GraftedAttention(SubsampledSite, Attention):
    """`timm.models.pvt_v2.Attention`: the summary is a convolution, or an average of fixed size with an activation."""

    def summary(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        if self.pool is None:
            return super().summary(x, grid)
        host = cast(Any, self)  # timm's attributes are None in the other form
        return cast(Tensor, host.act(host.norm(tokens_of(host.sr(host.pool(map_of(x, grid)))))))


class GraftedMlpWithDepthwiseConv(LinearEnds, MlpWithDepthwiseConv):
    """`timm.models.pvt_v2.MlpWithDepthwiseConv`: neighbours are mixed between fc1 and the activation."""

    def forward(self, x: Tensor, feat_size: tuple[int, int]) -> Tensor:
        x = self.relu(map_of(self.fc1(self.run("mlp.front", x)), feat_size))
        x = self.run("mlp.mid", self.drop(self.act(tokens_of(self.dwconv(x)))))
        return self.run("mlp.end", self.drop(self.fc2(x)))


class TimmPvtV2(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.attn` and `.mlp`."""

    name = "timm.pvt_v2"
    summary = "timm PVT v2 of any size, features_only too"
    patched: ClassVar = {Attention: GraftedAttention, MlpWithDepthwiseConv: GraftedMlpWithDepthwiseConv}
    models = (PyramidVisionTransformerV2,)
    blocks = (Block,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        _, dim, rows, columns = look.leaving(path.partition(".blocks.")[0])
        tokens = {"dim": dim, "tokens": rows * columns, "grid": (rows, columns)}
        yield subsampled_site(block.attn, f"{path}.attn", look, argument="feat_size", **tokens)
        yield _mlp_site(block.mlp, f"{path}.mlp", **tokens)


def _mlp_site(module: Any, path: str, **tokens: Any) -> Site:
    check_known(module, path, arguments=("x", "feat_size"), children=("fc1", "relu", "dwconv", "act", "fc2", "drop"))
    return mlp_site(path, MlpGeometry(hidden=module.fc2.in_features, **tokens))


register_host(TimmPvtV2())
