"""timm's MetaFormer: CAFormer has attention in its last stages; ConvFormer and PoolFormer have MLP sites only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

from timm.models.metaformer import Attention, MetaFormer, MetaFormerBlock
from torch import Tensor

from attngraft.attention import AttentionGeometry, Projected, Projection, plain_class
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import GLOBAL, fused_heads, global_site
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import ScaledProducts, by_role, mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily


class GraftedAttention(ScaledProducts, Attention):
    """`timm.models.metaformer.Attention`."""

    def project(self, x: Tensor) -> Projected:
        return Projected(*by_role(self.qkv(x), self.num_heads), x)


class TimmMetaFormer(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.token_mixer`, where that is an attention, and `.mlp`."""

    name = "timm.metaformer"
    summary = "timm CAFormer of any size, features_only too; ConvFormer and PoolFormer (MLP sites only)"
    patched: ClassVar = {Attention: GraftedAttention, **timm_mlp.PATCHED}
    models = (MetaFormer,)
    blocks = (MetaFormerBlock,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        mixer = block.token_mixer
        attends = plain_class(mixer) is Attention
        _, _, rows, columns = look.leaving(path.rpartition(".blocks.")[0])
        dim = block.mlp.fc1.weight.shape[1]
        tokens: dict[str, Any] = {"dim": dim, "tokens": rows * columns, "grid": (rows, columns)}
        if attends:
            yield self._attention_site(mixer, f"{path}.token_mixer", **tokens)
        why = f"this block mixes its tokens by {type(mixer).__name__}, not by attention; choose other blocks or MLP grafts"
        for site in mlp_sites(block.mlp, f"{path}.mlp", **tokens):
            yield site if attends else replace(site, missing={**site.missing, **dict.fromkeys(GLOBAL, why)})

    def _attention_site(self, module: Any, path: str, **tokens: Any) -> Site:
        children = ("qkv", "attn_drop", "proj", "proj_drop")
        check_known(module, path, arguments=("x", "args", "kwargs"), children=children)
        bias = Projection(bias=module.proj.bias is not None)
        return global_site(path, AttentionGeometry(**tokens, **fused_heads(module), projection=bias))


register_host(TimmMetaFormer())
