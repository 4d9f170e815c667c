"""timm's VisionTransformer and DeiT: class token or none, registers, distillation token, qk-norm, fused or not.

Hybrids and ViTamin are VisionTransformers too, whose patches come from a convolutional network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from timm.layers import Attention
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, LayerScale, ResPostBlock, VisionTransformer
from torch import Tensor, nn

from attngraft.attention import GraftedModule, HookPoint, plain_class
from attngraft.errors import HostError
from attngraft.hosts.adapter import HostAdapter, HostFold, Site, norm_state, own_parameters, random_images
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import BLOCKS, PATCHED, GraftedAttention, block_sites, prefixed_grid
from attngraft.hosts.timm.family import image_size
from attngraft.hosts.timm.masked import GraftedBlock, GraftedResPostBlock, with_pair_mask
from attngraft.hosts.unread import why_unread


class TimmViT(HostAdapter):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`."""

    name = "timm.vit"
    summary = "timm VisionTransformer, DeiT, distilled DeiT, hybrids and ViTamin of any size"
    patched: ClassVar = {**PATCHED, Block: GraftedBlock, ResPostBlock: GraftedResPostBlock}

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) in (VisionTransformer, VisionTransformerDistilled)

    def sites(self, model: Any) -> list[Site]:
        found = list(self._sites(model))
        if not found:
            blocks = {type(block).__name__ for block in model.blocks}
            why = why_unread(model.blocks)
            raise HostError(
                f"the blocks of this VisionTransformer are {', '.join(sorted(blocks)) or 'none'}; attngraft knows Block and "
                "ResPostBlock with timm's Attention and MLPs" + (f" ({why})" if why else "")
            )
        return found

    def _sites(self, model: Any) -> Iterator[Site]:
        tokens = prefixed_grid(model, dim=model.embed_dim)
        for name, block in model.blocks.named_children():
            if plain_class(block) in BLOCKS:
                for site in block_sites(block, f"blocks.{name}", **tokens):
                    yield with_pair_mask(site, f"blocks.{name}")

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        return random_images(model, image_size(model), batch=batch)

    def fold(self, model: Any) -> HostFold:
        """LayerScale of all blocks into the layers before: diag(gamma) (W x + b) = (diag(gamma) W) x + diag(gamma) b."""
        blocks = [(path, block) for path, block in model.blocks.named_children() if plain_class(block) is Block]
        pairs: list[tuple[LayerScale, nn.Linear]] = []
        for path, block in blocks:
            for name, scale in (("attn", block.ls1), ("mlp", block.ls2)):
                if not isinstance(scale, LayerScale):
                    continue
                layer = _last_linear(getattr(block, name))
                if isinstance(layer, str):
                    return HostFold(stayed=f"LayerScale: at blocks.{path}.{name} {layer}")
                pairs.append((scale, layer))
        if not pairs or len(blocks) != len(model.blocks):
            return HostFold()
        with torch.no_grad():
            for scale, layer in pairs:
                layer.weight.mul_(scale.gamma[:, None])
                if layer.bias is not None:
                    layer.bias.mul_(scale.gamma)
        for _, block in blocks:
            block.ls1 = block.ls2 = nn.Identity()
        return HostFold(
            folded="LayerScale of every block stands in the linear layers before it", arguments={"init_values": None}
        )

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": own_parameters(model, "head", "head_dist", "fc_norm"), "norms": norm_state(model)}


def _last_linear(module: Any) -> nn.Linear | str:
    """The layer whose output is what leaves an attention or an MLP, or why there is none."""
    ends: tuple[HookPoint, ...] = ("attn.end", "mlp.end")
    if isinstance(module, GraftedModule):
        if any(module.grafts_at(hook_point) for hook_point in ("tokens", *ends)):
            return "a graft stands between it and the linear layer before"
        for hook_point in ends:
            if reason := module.between(hook_point):
                return reason
    known = {Attention: "proj", GraftedAttention: "proj", **dict.fromkeys(timm_mlp.KNOWN, "fc2")}
    layer = getattr(module, known[type(module)], None) if type(module) in known else None
    return layer if isinstance(layer, nn.Linear) else "no linear layer stands before it"


register_host(TimmViT())
