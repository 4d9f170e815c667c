"""timm's FastViT and the image encoders of MobileCLIP: convolutions, and attention where a stage asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

from timm.models.fastvit import Attention, AttentionBlock, ConvMlp, FastVit
from torch import Tensor

from attngraft.anatomy import AttentionGeometry, LinearLayer, MlpGeometry, Projected, Stage
from attngraft.hosts.adapter import Site, check_known, fused_rows
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm.attention import GLOBAL, NO_WINDOWS, SelfAttention, by_role
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.maps import MapMlpSite, map_of, tokens_of


class GraftedAttention(SelfAttention, Attention):
    """`timm.models.fastvit.Attention`: maps outside, tokens inside."""

    def forward(self, x: Tensor) -> Tensor:
        return map_of(super().forward(tokens_of(x)), x.shape[-2:])

    def project(self, x: Tensor) -> Projected:
        return Projected(*by_role(self.qkv(x), self.num_heads), x)


class GraftedConvMlp(MapMlpSite, ConvMlp):
    """`timm.models.fastvit.ConvMlp`: a convolution of each channel comes first, so its front is behind that."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.conv(x))

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.act(self.fc1(x))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.fc2(x)))

    def linear_before(self, stage: Stage) -> LinearLayer | None:
        return self.fc2 if stage == "mlp.end" else None

    def linear_after(self, stage: Stage) -> LinearLayer | None:
        return {"mlp.front": self.fc1, "mlp.mid": self.fc2}.get(stage)


class TimmFastVit(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.token_mixer` and `.mlp` of the stages with attention."""

    name = "timm.fastvit"
    summary = "timm FastViT and MobileCLIP's image encoders, the stages with attention, features_only too"
    richer: ClassVar = {Attention: GraftedAttention, ConvMlp: GraftedConvMlp}
    models = (FastVit,)
    blocks = (AttentionBlock,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        module, mlp = block.token_mixer, block.mlp
        children = ("qkv", "attn_drop", "proj", "proj_drop")
        check_known(module, f"{path}.token_mixer", arguments=("x",), children=children)
        check_known(mlp, f"{path}.mlp", arguments=("x",), children=("conv", "fc1", "act", "fc2", "drop"))
        _, dim, rows, columns = look.entering(path)
        tokens: dict[str, Any] = {"dim": dim, "tokens": rows * columns, "grid": (rows, columns)}
        geometry = AttentionGeometry(
            **tokens,
            heads=module.num_heads,
            key_width=module.head_dim,
            value_width=module.head_dim,
            rows=fused_rows(module, "qkv", heads=module.num_heads),
        )
        yield Site(
            path=f"{path}.token_mixer",
            kind="attention",
            geometry=geometry,
            carriers=dict.fromkeys(GLOBAL, f"{path}.token_mixer"),
            missing=NO_WINDOWS,
        )
        stages: tuple[Stage, ...] = ("mlp.front", "mlp.mid", "mlp.end")
        yield Site(
            path=f"{path}.mlp",
            kind="mlp",
            geometry=MlpGeometry(**tokens, hidden=mlp.fc1.out_channels),
            carriers=dict.fromkeys(stages, f"{path}.mlp"),
        )


register_host(TimmFastVit())
