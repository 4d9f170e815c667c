"""Host adapter of T2T-ViT: timm's blocks in the backbone; no grafts in the tokens-to-token module."""

from typing import Any, ClassVar

from torch import Tensor, nn

from attngraft.attention import CLASS
from attngraft.hosts.adapter import HostAdapter, Site, random_images
from attngraft.hosts.sites import NO_WINDOWS, refused_site
from attngraft.hosts.timm.attention import PATCHED
from attngraft.hosts.timm.family import block_sites, map_fields
from attngraft.models.t2t_vit import T2TViT

NO_SITE = (
    "it is part of the tokens-to-token module, whose attentions have one head and change the width of their tokens (and a "
    "performer's has no attention map); choose blocks of the backbone (blocks.*), as in the papers"
)


class T2T(HostAdapter):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`.

    `tokens_to_token.attention1` and `attention2` are sites without hook points.
    """

    name = "t2t_vit"
    summary = "T2T-ViT of any size (attngraft's own t2t_vit_14, t2t_vit_t_14, ...): the blocks of its backbone"
    patched: ClassVar = PATCHED

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) is T2TViT

    def sites(self, model: Any) -> list[Site]:
        module = model.tokens_to_token
        sites = [
            refused_site(f"tokens_to_token.{name}", NO_SITE, NO_WINDOWS, **map_fields(module.token_width, *grid))
            for name, grid in zip(("attention1", "attention2"), module.grids, strict=False)
        ]
        fields = map_fields(model.embed_dim, *module.grid_size)
        fields |= {"tokens": len(CLASS) + fields["tokens"], "prefix": CLASS}
        for name, block in model.blocks.named_children():
            sites.extend(block_sites(block, f"blocks.{name}", **fields))
        return sites

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        return random_images(model, (model.in_chans, *model.tokens_to_token.img_size), batch=batch)
