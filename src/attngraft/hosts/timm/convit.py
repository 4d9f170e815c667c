"""timm's ConViT: blocks with gated positional attention, then blocks as in ViT."""

from typing import Any, ClassVar, cast

import torch
from timm.models.convit import GPSA, MHSA, Block, ConVit
from torch import Tensor, nn

from attngraft.attention import CLASS, Projected, plain_class
from attngraft.hosts.adapter import own_parameters
from attngraft.hosts.sites import fused_heads, projected_heads
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import FusedQkv, ScaledProducts, split_heads, split_qkv
from attngraft.hosts.timm.family import CHILDREN, ShapeProbe, Sites, TimmFamily, checked_site

_GATED = (
    "its map is a mixture of the softmax and a map of positions, with one gate per head; choose the later blocks, or "
    "horizontal, vertical or cb"
)


class GraftedMHSA(ScaledProducts, FusedQkv, MHSA):
    """Patched class of `timm.models.convit.MHSA`."""

    fused_attn = False


class GraftedGPSA(ScaledProducts, GPSA):
    """`timm.models.convit.GPSA`: the map at `weights` is the mixture of softmax and positions."""

    fused_attn = False
    rel_indices: Tensor

    def project(self, x: Tensor) -> Projected:
        if self.rel_indices.shape[1] != x.shape[1]:
            self.rel_indices = self.get_rel_indices(x.shape[1])
        q, k = split_qkv(self.qk(x), self.num_heads, parts=2)
        return Projected(q, k, split_heads(self.v(x), self.num_heads), x)

    def normalize(self, scores: Tensor) -> Tensor:
        positions = self.pos_proj(self.rel_indices.expand(scores.shape[0], -1, -1, -1)).permute(0, 3, 1, 2)
        patches, positions = super().normalize(scores), positions.softmax(dim=-1)
        gate = self.gating_param.view(1, -1, 1, 1)  # two sigmoids, as in the host: gradients round differently with one
        weights = (1.0 - torch.sigmoid(gate)) * patches + torch.sigmoid(gate) * positions
        return weights / weights.sum(dim=-1).unsqueeze(-1)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, count, dim = shapes.input_shape(path)
    module, grid = block.attn, tuple(shapes.model.patch_embed.grid_size)
    # the host adds the class token after the gated blocks
    tokens: dict[str, Any] = {"dim": dim, "tokens": count, "prefix": CLASS * (count - grid[0] * grid[1]), "grid": grid}
    if gated := plain_class(module) is GPSA:
        width = module.proj.in_features // module.num_heads
        heads = projected_heads(module, {"q": "qk", "k": ("qk", module.dim), "v": "v"}, width=width)
    else:
        heads = fused_heads(module)
    positions = own_parameters(module, "pos_proj", "gating_param")
    yield checked_site(
        module,
        f"{path}.attn",
        {"mix": _GATED} if gated else {},
        children=(*CHILDREN, "qk", "v", "pos_proj"),
        heads=heads,
        query_key_parameters=positions,
        score_rows=positions,
        **tokens,
    )
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **tokens)


class TimmConVit(TimmFamily):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`."""

    name = "timm.convit"
    summary = "timm ConViT of any size"
    patched: ClassVar = {MHSA: GraftedMHSA, GPSA: GraftedGPSA, **mlp.PATCHED}
    models = (ConVit,)
    blocks: ClassVar = {Block: _sites}

    def forget(self, model: nn.Module) -> None:
        """Clear the cached positions, which have the dtype of the last call."""
        for module in model.modules():
            if isinstance(module, GPSA):
                module.rel_indices = cast(Tensor, module.qk.weight).new_zeros(1, 1, 1, 3)
