"""timm's Visformer: maps all the way, convolutions in its early stages, then attention that projects by convolutions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

from timm.models.visformer import Attention, Block, SpatialMlp, Visformer
from torch import Tensor, nn

from attngraft.anatomy import AttentionGeometry, LinearLayer, MlpGeometry, Projected, Projection, Stage
from attngraft.hosts.adapter import Site, check_known, fused_rows
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm.attention import GLOBAL, NO_WINDOWS, ScaledProducts
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


class GraftedSpatialMlp(MapMlpSite, SpatialMlp):
    """`timm.models.visformer.SpatialMlp`: in some blocks another convolution stands before the last one."""

    def hidden(self, x: Tensor) -> Tensor:
        x = self.drop1(self.act1(self.conv1(x)))
        return x if self.conv2 is None else cast(nn.Module, self.act2)(self.conv2(x))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop3(self.conv3(x)))

    def linear_before(self, stage: Stage) -> LinearLayer | None:
        return self.conv3 if stage == "mlp.end" else None

    def linear_after(self, stage: Stage) -> LinearLayer | None:
        return {"mlp.front": self.conv1, "mlp.mid": self.conv3}.get(stage)


class TimmVisformer(TimmFamily):
    """Sites `stage<i>.<j>.attn`, where a stage has attention, and `stage<i>.<j>.mlp`."""

    name = "timm.visformer"
    summary = "timm Visformer of any size"
    richer: ClassVar = {Attention: GraftedAttention, SpatialMlp: GraftedSpatialMlp}
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
        stages: tuple[Stage, ...] = ("mlp.front", "mlp.mid", "mlp.end")
        yield Site(
            path=f"{path}.mlp",
            kind="mlp",
            geometry=MlpGeometry(**tokens, hidden=mlp.hidden_features),
            carriers=dict.fromkeys(stages, f"{path}.mlp"),
            missing=dict.fromkeys(GLOBAL, _NO_ATTENTION) if block.attn is None else {},
        )

    def _attention_site(self, module: Any, path: str, **tokens: Any) -> Site:
        children = ("qkv", "attn_drop", "proj", "proj_drop")
        check_known(module, path, arguments=("x", "args", "kwargs"), children=children)
        geometry = AttentionGeometry(
            **tokens,
            heads=module.num_heads,
            key_width=module.head_dim,
            value_width=module.head_dim,
            projection=Projection(bias=False),
            rows=fused_rows(module, "qkv", heads=module.num_heads),
        )
        return Site(
            path=path, kind="attention", geometry=geometry, carriers=dict.fromkeys(GLOBAL, path), missing=NO_WINDOWS
        )


register_host(TimmVisformer())
