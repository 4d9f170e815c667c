"""timm's VisionTransformer and DeiT, with class, distillation and register tokens, hybrids, and ViTamin."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from timm.layers import Attention
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, LayerScale, ResPostBlock, VisionTransformer
from torch import Tensor, nn

from attngraft.attention import GraftedModule, HookPoint, plain_class
from attngraft.errors import HostError
from attngraft.hosts.adapter import HostAdapter, HostFold, Site, norm_state, own_parameters, random_images
from attngraft.hosts.patched import patch_classes
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import PATCHED
from attngraft.hosts.timm.family import PairMaskVitBlock, block_sites, image_size, prefixed_grid, with_pair_mask
from attngraft.hosts.unread import why_unread

_BLOCKS = patch_classes(PairMaskVitBlock, Block, ResPostBlock, module=__name__)


class TimmViT(HostAdapter):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`."""

    name = "timm.vit"
    summary = "timm VisionTransformer, DeiT, distilled DeiT, hybrids and ViTamin of any size"
    any_size: ClassVar = {"dynamic_img_size": True, "dynamic_img_pad": True}
    patched: ClassVar = {**PATCHED, **_BLOCKS}

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) in (VisionTransformer, VisionTransformerDistilled)

    def sites(self, model: Any) -> list[Site]:
        tokens = prefixed_grid(model)
        sites = [
            with_pair_mask(site, f"blocks.{name}")
            for name, block in model.blocks.named_children()
            if plain_class(block) in _BLOCKS
            for site in block_sites(block, f"blocks.{name}", **tokens)
        ]
        if not sites:
            blocks = {type(block).__name__ for block in model.blocks}
            why = why_unread(model.blocks)
            raise HostError(
                f"the blocks of this VisionTransformer are {', '.join(sorted(blocks)) or 'none'}; supported are Block and "
                "ResPostBlock with timm's Attention and MLPs" + (f" ({why})" if why else "")
            )
        return sites

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        return random_images(model, image_size(model), batch=batch)

    def fold(self, model: Any) -> HostFold:
        """Fold LayerScale into the linear layers before it: diag(gamma) (W x + b) = (diag(gamma) W) x + diag(gamma) b."""
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
            folded="LayerScale of every block is folded into the linear layers before it",
            arguments={"init_values": None},
        )

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": own_parameters(model, "head", "head_dist", "fc_norm"), "norms": norm_state(model)}


def _last_linear(module: Any) -> nn.Linear | str:
    """Return the last linear layer of an attention or an MLP, or the reason why there is none."""
    ends: tuple[HookPoint, ...] = ("attn.end", "mlp.end")
    if isinstance(module, GraftedModule):
        if any(module.grafts_at(hook_point) for hook_point in ("tokens", *ends)):
            return "a graft lies between it and the linear layer before"
        for hook_point in ends:
            if reason := module.between(hook_point):
                return reason
    name = {Attention: "proj", **dict.fromkeys(mlp.PATCHED, "fc2")}.get(plain_class(module))
    layer = getattr(module, name, None) if name else None
    return layer if isinstance(layer, nn.Linear) else "there is no linear layer before it"
