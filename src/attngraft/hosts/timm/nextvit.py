"""timm's NextViT: attention that asks averages of its map, beside convolutions; MLPs of maps in every block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.nextvit import EfficientAttention, NextConvBlock, NextTransformerBlock, NextViT
from torch import Tensor

from attngraft.attention import AttentionGeometry, Projected, plain_class
from attngraft.hosts.adapter import Site, check_known, head_rows
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import global_site
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import SelfAttention, by_heads, mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily


class GraftedEfficientAttention(SelfAttention, EfficientAttention):
    """`timm.models.nextvit.EfficientAttention`: keys and values are projected from averages of neighbours, normed."""

    def project(self, x: Tensor) -> Projected:
        q, keys = self.q(x), x  # the order in which the host makes them is that in which their gradients add up
        if self.sr is not None and self.norm is not None:
            keys = self.norm(self.sr(x.transpose(1, 2))).transpose(1, 2)
        q, k, v = (by_heads(each, self.num_heads) for each in (q, self.k(keys), self.v(keys)))
        return Projected(q, k, v, x, keys=keys)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        """`norm` is the averages', not one of the heads."""
        return self.proj(heads.transpose(1, 2).flatten(2))


class TimmNextViT(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.e_mhsa`, where the block has one, and `.mlp`."""

    name = "timm.nextvit"
    summary = "timm NextViT of any size (blocks of convolutions: MLP sites only), features_only too"
    patched: ClassVar = {EfficientAttention: GraftedEfficientAttention, **timm_mlp.PATCHED}
    models = (NextViT,)
    blocks = (NextConvBlock, NextTransformerBlock)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        _, dim, rows, columns = look.entering(f"{path}.mlp")
        tokens = {"tokens": rows * columns, "grid": (rows, columns)}
        if plain_class(block) is NextTransformerBlock:
            yield _attention_site(block.e_mhsa, f"{path}.e_mhsa", look, **tokens)
        yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, **tokens)


def _attention_site(module: Any, path: str, look: Look, **tokens: Any) -> Site:
    children = ("q", "k", "v", "proj", "attn_drop", "proj_drop", "sr", "norm")
    check_known(module, path, arguments=("x", "args", "kwargs"), children=children)
    width = module.head_dim
    geometry = AttentionGeometry(
        **tokens,
        dim=module.dim,
        key_tokens=None if module.sr is None else look.leaving(f"{path}.sr")[-1],
        heads=module.num_heads,
        key_width=width,
        value_width=width,
        rows={role: head_rows(module, role, start=0, width=width, step=width) for role in ("q", "k", "v")},
    )
    return global_site(path, geometry)


register_host(TimmNextViT())
