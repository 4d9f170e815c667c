"""timm's FastViT and the image encoders of MobileCLIP: convolutions, and attention where a stage asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

from timm.models.fastvit import Attention, AttentionBlock, ConvMlp, FastVit
from torch import Tensor

from attngraft.attention import AttentionGeometry, MlpGeometry, Projected
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.linear_ends import LinearEnds
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import fused_heads, global_site, mlp_site
from attngraft.hosts.timm.attention import SelfAttention, by_role
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.maps import MapMlpSite, map_of, tokens_of


class GraftedAttention(SelfAttention, Attention):
    """`timm.models.fastvit.Attention`: maps outside, tokens inside."""

    def forward(self, x: Tensor) -> Tensor:
        return map_of(super().forward(tokens_of(x)), x.shape[-2:])

    def project(self, x: Tensor) -> Projected:
        return Projected(*by_role(self.qkv(x), self.num_heads), x)


class GraftedConvMlp(LinearEnds, MapMlpSite, ConvMlp):
    """`timm.models.fastvit.ConvMlp`: a convolution of each channel comes first, so its front is behind that."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.conv(x))

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.act(self.fc1(x))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.fc2(x)))


class TimmFastVit(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.token_mixer` and `.mlp` of the stages with attention."""

    name = "timm.fastvit"
    summary = "timm FastViT and MobileCLIP's image encoders, the stages with attention, features_only too"
    patched: ClassVar = {Attention: GraftedAttention, ConvMlp: GraftedConvMlp}
    models = (FastVit,)
    blocks = (AttentionBlock,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        module, mlp = block.token_mixer, block.mlp
        children = ("qkv", "attn_drop", "proj", "proj_drop")
        check_known(module, f"{path}.token_mixer", arguments=("x",), children=children)
        check_known(mlp, f"{path}.mlp", arguments=("x",), children=("conv", "fc1", "act", "fc2", "drop"))
        _, dim, rows, columns = look.entering(path)
        tokens: dict[str, Any] = {"dim": dim, "tokens": rows * columns, "grid": (rows, columns)}
        yield global_site(f"{path}.token_mixer", AttentionGeometry(**tokens, **fused_heads(module)))
        yield mlp_site(f"{path}.mlp", MlpGeometry(**tokens, hidden=mlp.fc1.out_channels))


register_host(TimmFastVit())
