"""timm's CSATv2: convolutions on frequencies, gated by an attention of one channel, and transformer blocks at the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.csatv2 import CSATv2, SpatialTransformerBlock, TransformerBlock
from torch import Tensor

from attngraft.attention import plain_class
from attngraft.hosts.adapter import Site, random_images
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm.attention import PATCHED, attention_site, mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily, image_size
from attngraft.hosts.timm.refused import refused_site

_GATE = (
    "it attends between the places of a single channel, and what comes of it gates the map; name transformer blocks at the "
    "ends of stages, or choose grafts of MLPs"
)


class TimmCsatV2(TimmFamily):
    """Sites `stages.<i>.<j>.attn` and `.mlp` of transformer blocks; the attention of one channel, which no graft takes."""

    name = "timm.csatv2"
    summary = "timm CSATv2 (its transformer blocks, not its attention of one channel), features_only too"
    patched: ClassVar = PATCHED
    models = (CSATv2,)
    blocks = (SpatialTransformerBlock, TransformerBlock)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        if plain_class(block) is SpatialTransformerBlock:
            rows, columns = look.entering(path)[-2:]
            yield refused_site(path, _GATE, dim=1, tokens=rows * columns, grid=(rows, columns))
            return
        _, tokens, dim = look.entering(f"{path}.attn")
        _, tokens, out = look.entering(f"{path}.mlp")
        yield attention_site(block.attn, f"{path}.attn", dim=dim, tokens=tokens, out_dim=None if out == dim else out)
        yield from mlp_sites(block.mlp, f"{path}.mlp", dim=out, tokens=tokens)

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        """The first convolution sees frequencies, not colours."""
        return random_images(model, (3, *image_size(model)[1:]), batch=batch)


register_host(TimmCsatV2())
