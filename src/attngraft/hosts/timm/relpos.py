"""timm's ViTs with relative positions: one bias per block, or one shared bias."""

from typing import Any, ClassVar

from timm.models import vision_transformer_relpos as relpos
from torch import Tensor

from attngraft.attention import Projected
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import SelfAttention, split_qkv
from attngraft.hosts.timm.family import CHILDREN, TimmFamily, checked_site, prefixed_grid, rel_pos_fields


class GraftedRelPosAttention(SelfAttention, relpos.RelPosAttention):
    """`timm.models.vision_transformer_relpos.RelPosAttention`: a block's own bias replaces the shared bias."""

    may_hide_all: ClassVar[bool] = False

    def project(self, x: Tensor, shared_rel_pos: Tensor | None = None) -> Projected:
        q, k, v = split_qkv(self.qkv(x), self.num_heads)
        bias = shared_rel_pos if self.rel_pos is None else self.rel_pos.get_bias()
        return Projected(self.q_norm(q), self.k_norm(k), v, x, bias=bias)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    module, tokens = block.attn, prefixed_grid(shapes.model)
    yield checked_site(
        module,
        f"{path}.attn",
        arguments=("x", "shared_rel_pos", "args", "kwargs"),
        children=(*CHILDREN, "q_norm", "k_norm", "rel_pos"),
        **rel_pos_fields(module, "q_norm", "k_norm"),
        **tokens,
    )
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **tokens)


class TimmRelPos(TimmFamily):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`."""

    name = "timm.relpos"
    summary = "timm ViTs with relative positions, of any size"
    patched: ClassVar = {relpos.RelPosAttention: GraftedRelPosAttention, **mlp.PATCHED}
    models = (relpos.VisionTransformerRelPos,)
    blocks: ClassVar = dict.fromkeys((relpos.RelPosBlock, relpos.ResPostRelPosBlock), _sites)
