"""timm's NaFlexVit: a ViT of images of any size, which it takes as images or as dictionaries of patches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.eva import EvaBlock
from timm.models.naflexvit import NaFlexVit
from timm.models.vision_transformer import Block
from torch import Tensor

from attngraft.attention import plain_class, prefix_names
from attngraft.hosts.adapter import Site, random_images
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm import attention, rope
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.padding import PaddedBlock, with_mask


class GraftedBlock(PaddedBlock, Block):
    """`timm.models.vision_transformer.Block`."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        self.check_padding(attn_mask)
        return super().forward(x, attn_mask=attn_mask)


class GraftedEvaBlock(PaddedBlock, EvaBlock):
    """`timm.models.eva.EvaBlock`."""

    def forward(self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        self.check_padding(attn_mask)
        return super().forward(x, rope=rope, attn_mask=attn_mask)


class TimmNaFlex(TimmFamily):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`.

    Dictionaries of patches come with a mask. Grafts that mix no tokens, or only those that a mask shows, take them; the
    others refuse the call.
    """

    name = "timm.naflex"
    summary = "timm NaFlexVit of any size, with rotary positions too"
    patched: ClassVar = {
        **attention.PATCHED,
        **rope.PATCHED,
        Block: GraftedBlock,
        EvaBlock: GraftedEvaBlock,
    }
    models = (NaFlexVit,)
    blocks = (Block, EvaBlock)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        model = look.model
        grid = model.embeds.dynamic_feat_size(_size(model))
        prefix = prefix_names(class_token=model.has_class_token, registers=model.num_reg_tokens)
        tokens: dict[str, Any] = {
            "dim": model.embed_dim,
            "tokens": len(prefix) + grid[0] * grid[1],
            "prefix": prefix,
            "grid": tuple(grid),
        }
        rotates = plain_class(block) is EvaBlock
        sites = (rope.rotary_block_sites if rotates else attention.block_sites)(block, path, **tokens)
        return (with_mask(site, path) for site in sites)

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        return random_images(model, (model.in_chans, *_size(model)), batch=batch)


def _size(model: Any) -> tuple[int, int]:
    """Rows and columns of the images that the model was made for, as far as it says so."""
    embeds, recommended = model.embeds, getattr(model, "pretrained_cfg", {}).get("input_size")
    cells = embeds.pos_embed_grid_size
    if embeds.default_img_size is None and recommended is None and cells is not None:
        return cells[0] * embeds.patch_size[0], cells[1] * embeds.patch_size[1]
    rows, columns = embeds.default_img_size or (recommended or (3, 224, 224))[-2:]
    return rows, columns


register_host(TimmNaFlex())
