"""timm's Visformer: maps all the way, convolutions in its early stages, then attention that projects by convolutions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

from timm.models.visformer import Attention, Block, SpatialMlp, Visformer
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, MlpGeometry, Projected, Projection
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.linear_ends import LinearEnds
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import GLOBAL, fused_heads, global_site, mlp_site
from attngraft.hosts.timm.attention import ScaledProducts
from attngraft.hosts.timm.conv_attention import ConvAttention
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.maps import MapMlpSite, map_of

_NO_ATTENTION = "this block has no attention, but a convolution in its MLP; choose later blocks"


class GraftedAttention(ConvAttention, ScaledProducts, Attention):
    """`timm.models.visformer.Attention`."""

    def project(self, x: Tensor, *, grid: tuple[int, int]) -> Projected:
        qkv = self.qkv(map_of(x, grid)).flatten(2).unflatten(1, (3, self.num_heads, self.head_dim))
        q, k, v = qkv.permute(1, 0, 2, 4, 3).unbind(0)
        if self.fused_attn:
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        return Projected(q, k, v, x, rest=grid)


class GraftedSpatialMlp(LinearEnds, MapMlpSite, SpatialMlp):
    """`timm.models.visformer.SpatialMlp`: in some blocks another convolution stands before the last one."""

    linear_names = ("conv1", "conv3")

    def hidden(self, x: Tensor) -> Tensor:
        x = self.drop1(self.act1(self.conv1(x)))
        return x if self.conv2 is None else cast(nn.Module, self.act2)(self.conv2(x))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop3(self.conv3(x)))


class TimmVisformer(TimmFamily):
    """Sites `stage<i>.<j>.attn`, where a stage has attention, and `stage<i>.<j>.mlp`."""

    name = "timm.visformer"
    summary = "timm Visformer of any size"
    patched: ClassVar = {Attention: GraftedAttention, SpatialMlp: GraftedSpatialMlp}
    models = (Visformer,)
    blocks = (Block,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        _, dim, rows, columns = look.entering(path)
        tokens: dict[str, Any] = {"dim": dim, "tokens": rows * columns, "grid": (rows, columns)}
        if block.attn is not None:
            yield self._attention_site(block.attn, f"{path}.attn", **tokens)
        mlp = block.mlp
        children = ("conv1", "act1", "drop1", "conv2", "act2", "conv3", "drop3")
        check_known(mlp, f"{path}.mlp", arguments=("x",), children=children)
        missing = dict.fromkeys(GLOBAL, _NO_ATTENTION) if block.attn is None else {}
        yield mlp_site(f"{path}.mlp", MlpGeometry(**tokens, hidden=mlp.hidden_features), missing)

    def _attention_site(self, module: Any, path: str, **tokens: Any) -> Site:
        children = ("qkv", "attn_drop", "proj", "proj_drop")
        check_known(module, path, arguments=("x", "args", "kwargs"), children=children)
        return global_site(path, AttentionGeometry(**tokens, **fused_heads(module), projection=Projection(bias=False)))


register_host(TimmVisformer())
