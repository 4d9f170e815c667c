"""timm's CaiT: attention whose heads talk to each other around the softmax, then blocks in which the class token asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

from timm.models.cait import Cait, ClassAttn, LayerScaleBlock, LayerScaleBlockClassAttn, TalkingHeadAttn
from torch import Tensor, nn

from attngraft.attention import CLASS, AttentionGeometry, Projected, plain_class
from attngraft.hosts.adapter import Site, check_known, head_rows, own_parameters
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import fused_heads, global_site
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import SelfAttention, by_heads, by_role, mlp_sites, unread_site
from attngraft.hosts.timm.class_attention import ClassSite, class_site
from attngraft.hosts.timm.family import Look, TimmFamily

_TALKING = (
    "its heads are mixed before the softmax and again behind it (talking heads), so no head has scores of its own; "
    "horizontal, vertical and cb stand behind that"
)


class GraftedTalkingHeadAttn(SelfAttention, TalkingHeadAttn):
    """`timm.models.cait.TalkingHeadAttn`: heads are mixed linearly before the softmax, and again between it and the values.

    The map at `weights` is what the softmax gives: its rows sum to one, those behind the second mixing do not.
    """

    fused_attn = False

    def project(self, x: Tensor) -> Projected:
        return Projected(*by_role(self.qkv(x), self.num_heads), x)

    def scores(self, projected: Projected) -> Tensor:
        return _talk(self.proj_l, super().scores(projected))

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        return super().spread(_talk(self.proj_w, weights), projected)


def _talk(mixing: nn.Module, heads: Tensor) -> Tensor:
    """(B, H, Nq, Nk), mixed over H."""
    return cast(Tensor, mixing(heads.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class GraftedClassAttn(ClassSite, ClassAttn):
    """`timm.models.cait.ClassAttn`: three projections."""

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.q(x[:, 0]).unsqueeze(1), self.k(x), self.v(x)
        return by_heads(q, self.num_heads), by_heads(k, self.num_heads), by_heads(v, self.num_heads)


class TimmCait(TimmFamily):
    """Sites `blocks.<i>.attn` and `.mlp`; `blocks_token_only.<i>.attn` and `.mlp`, which the class token alone leaves."""

    name = "timm.cait"
    summary = "timm CaiT of any size, features_only too"
    patched: ClassVar = {
        TalkingHeadAttn: GraftedTalkingHeadAttn,
        ClassAttn: GraftedClassAttn,
        **timm_mlp.PATCHED,
    }
    models = (Cait,)
    blocks = (LayerScaleBlock, LayerScaleBlockClassAttn)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        grid, dim = tuple(look.model.patch_embed.grid_size), look.model.embed_dim
        patches = grid[0] * grid[1]
        if plain_class(block) is LayerScaleBlock:
            yield _talking_site(block.attn, f"{path}.attn", dim=dim, tokens=patches, grid=grid)
            yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=patches, grid=grid)
        else:
            yield class_attn_site(block.attn, f"{path}.attn", dim=dim, tokens=1 + patches, grid=grid)
            yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=1, prefix=CLASS)


def _talking_site(module: Any, path: str, **tokens: Any) -> Site:
    if plain_class(module) is not TalkingHeadAttn:
        return unread_site(module, path, **tokens)
    check_known(
        module,
        path,
        arguments=("x", "args", "kwargs"),
        children=("qkv", "attn_drop", "proj", "proj_l", "proj_w", "proj_drop"),
    )
    fused = fused_heads(module)
    fused["rows"] = {"v": fused["rows"]["v"]}  # q and k of each head serve all heads
    geometry = AttentionGeometry(
        **tokens,
        **fused,
        talking=True,
        query_key_parameters=own_parameters(module, "proj_l"),
        score_rows=own_parameters(module, "proj_l"),
    )
    return global_site(path, geometry, {"mix": _TALKING})


def class_attn_site(module: Any, path: str, **tokens: Any) -> Site:
    """The site that CaiT's class attention is, here and where others of timm's families use it."""
    if plain_class(module) is not ClassAttn:
        return unread_site(module, path, **tokens)
    width = module.proj.in_features // module.num_heads
    rows = {role: head_rows(module, role, start=0, width=width, step=width) for role in ("q", "k", "v")}
    return class_site(module, path, children=("q", "k", "v"), rows=rows, **tokens)


register_host(TimmCait())
