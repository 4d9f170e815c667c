"""timm's CaiT: talking-heads attention, then class attention."""

from typing import Any, ClassVar, cast

from timm.models.cait import Cait, ClassAttn, LayerScaleBlock, LayerScaleBlockClassAttn, TalkingHeadAttn
from torch import Tensor, nn

from attngraft.attention import CLASS, Projected, plain_class
from attngraft.hosts.adapter import own_parameters
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.patched import patch_classes
from attngraft.hosts.sites import fused_heads
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import ClassAttention, FusedQkv
from attngraft.hosts.timm.family import (
    CHILDREN,
    TimmFamily,
    checked_site,
    class_attention_site,
    map_fields,
    unread_site,
)

_TALKING = (
    "its heads are mixed before the softmax and again after it (talking heads), so heads have no separate scores; "
    "horizontal, vertical and cb work here"
)


class GraftedTalkingHeadAttn(FusedQkv, TalkingHeadAttn):
    """`timm.models.cait.TalkingHeadAttn`: heads are mixed linearly before and after the softmax.

    The map at `weights` is the output of the softmax, before the second mixing, so its rows sum to one.
    """

    fused_attn = False

    def scores(self, projected: Projected) -> Tensor:
        return _mix_heads(self.proj_l, super().scores(projected))

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        return super().spread(_mix_heads(self.proj_w, weights), projected)


def _mix_heads(mixing: nn.Module, maps: Tensor) -> Tensor:
    """Mix the heads of maps (B, H, Nq, Nk)."""
    return cast(Tensor, mixing(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    module, attn = block.attn, f"{path}.attn"
    fields = map_fields(shapes.model.embed_dim, *shapes.model.patch_embed.grid_size)
    if plain_class(module) is TalkingHeadAttn:
        heads = fused_heads(module)
        heads["rows"] = {"v": heads["rows"]["v"]}  # q and k of each head affect all heads
        mixing = own_parameters(module, "proj_l")
        yield checked_site(
            module,
            attn,
            {"mix": _TALKING},
            children=(*CHILDREN, "proj_l", "proj_w"),
            heads=heads,
            talking=True,
            query_key_parameters=mixing,
            score_rows=mixing,
            **fields,
        )
    else:
        yield unread_site(module, attn, **fields)
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **fields)


def _class_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    fields = map_fields(shapes.model.embed_dim, *shapes.model.patch_embed.grid_size, prefix=CLASS)
    known = plain_class(block.attn) is ClassAttn
    yield (class_attention_site if known else unread_site)(block.attn, f"{path}.attn", **fields)
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", dim=fields["dim"], tokens=1, prefix=CLASS)


class TimmCait(TimmFamily):
    """Sites `blocks.<i>.attn` and `.mlp`; `blocks_token_only.<i>.attn` and `.mlp`, with one output token."""

    name = "timm.cait"
    summary = "timm CaiT of any size, including features_only"
    patched: ClassVar = {
        TalkingHeadAttn: GraftedTalkingHeadAttn,
        **patch_classes(ClassAttention, ClassAttn, module=__name__),
        **mlp.PATCHED,
    }
    models = (Cait,)
    blocks: ClassVar = {LayerScaleBlock: _sites, LayerScaleBlockClassAttn: _class_sites}
