"""timm's MobileViT: transformers between convolutions, of the pixels that stand at one place of their patches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models._features import FeatureDictNet, FeatureListNet
from timm.models.byobnet import ByobNet
from timm.models.mobilevit import LinearTransformerBlock, MobileVitBlock, MobileVitV2Block
from timm.models.vision_transformer import Block
from torch import nn

from attngraft.attention import plain_class
from attngraft.hosts.adapter import Site
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm.attention import PATCHED, block_sites, mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.refused import linear_site


class TimmMobileVit(TimmFamily):
    """Sites `stages.<i>.<j>.transformer.<k>.attn` and `.mlp`.

    In MobileViT a graft that averages over tokens does so over those that attend to each other: one pixel of each patch.
    MobileViT V2 has MLP sites only, and they see the whole map.
    """

    name = "timm.mobilevit"
    summary = "timm MobileViT of any size, features_only too; MobileViT V2 (MLP sites only)"
    patched: ClassVar = PATCHED
    models = (ByobNet,)
    blocks = (Block, LinearTransformerBlock)

    def recognizes(self, model: nn.Module) -> bool:
        """Many networks of convolutions are of this class too."""
        return type(model) in (ByobNet, FeatureListNet, FeatureDictNet) and any(
            plain_class(module) in (MobileVitBlock, MobileVitV2Block) for module in model.modules()
        )

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        if plain_class(block) is LinearTransformerBlock:
            yield from self._linear(block, path, look)
            return
        sequences, tokens, dim = look.entering(path)
        parent = path.rpartition(".transformer.")[0]
        patch = look.model.get_submodule(parent).patch_size
        rows, columns = (
            -(-side // each) for side, each in zip(look.leaving(f"{parent}.conv_1x1")[2:], patch, strict=True)
        )
        yield from block_sites(
            block, path, dim=dim, tokens=tokens, sequences=sequences, grid=(rows, columns), apart=tuple(patch)
        )

    def _linear(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        _, dim, pixels, patches = look.entering(path)
        yield linear_site(f"{path}.attn", dim=dim, tokens=pixels * patches)
        yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=pixels * patches)


register_host(TimmMobileVit())
