"""timm's NaFlexVit: a ViT for images of any size, given as images or as dictionaries of patches."""

from typing import Any, ClassVar

from timm.models.eva import EvaBlock
from timm.models.naflexvit import NaFlexVit
from timm.models.vision_transformer import Block
from torch import Tensor

from attngraft.attention import plain_class, prefix_names
from attngraft.hosts.adapter import random_images
from attngraft.hosts.timm import attention, rotary
from attngraft.hosts.timm.family import (
    PaddingMaskBlock,
    ShapeProbe,
    Sites,
    TimmFamily,
    block_sites,
    map_fields,
    with_padding_mask,
)


class GraftedBlock(PaddingMaskBlock, Block):
    """Patched class of `timm.models.vision_transformer.Block`."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        self.check_parts(padded=attn_mask is not None)
        return super().forward(x, attn_mask=attn_mask)


class GraftedEvaBlock(PaddingMaskBlock, EvaBlock):
    """Patched class of `timm.models.eva.EvaBlock`."""

    def forward(self, x: Tensor, rope: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        self.check_parts(padded=attn_mask is not None)
        return super().forward(x, rope=rope, attn_mask=attn_mask)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    model = shapes.model
    grid = model.embeds.dynamic_feat_size(_image_size(model))
    prefix = prefix_names(class_token=model.has_class_token, registers=model.num_reg_tokens)
    tokens = map_fields(model.embed_dim, *grid, prefix=prefix)
    read = rotary.rotary_block_sites if plain_class(block) is EvaBlock else block_sites
    return (with_padding_mask(site, path) for site in read(block, path, **tokens))


def _image_size(model: Any) -> tuple[int, int]:
    """Return (rows, columns) of the images that the model was created for; 224 x 224 if it does not store them."""
    embeds, recommended = model.embeds, getattr(model, "pretrained_cfg", {}).get("input_size")
    cells = embeds.pos_embed_grid_size
    if embeds.default_img_size is None and recommended is None and cells is not None:
        return cells[0] * embeds.patch_size[0], cells[1] * embeds.patch_size[1]
    rows, columns = embeds.default_img_size or (recommended or (3, 224, 224))[-2:]
    return rows, columns


class TimmNaFlex(TimmFamily):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`.

    Dictionaries of patches have a mask; grafts that would mix hidden tokens raise an error.
    """

    name = "timm.naflex"
    summary = "timm NaFlexVit of any size, including rotary positions"
    patched: ClassVar = {
        **attention.PATCHED,
        **rotary.PATCHED,
        Block: GraftedBlock,
        EvaBlock: GraftedEvaBlock,
    }
    models = (NaFlexVit,)
    blocks: ClassVar = {Block: _sites, EvaBlock: _sites}

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        return random_images(model, (model.embeds.in_chans, *_image_size(model)), batch=batch)
