"""timm's MetaFormer: CAFormer has attention in its last stages; ConvFormer and PoolFormer have MLP sites only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from timm.models.metaformer import Attention, MetaFormer, MetaFormerBlock

from attngraft.attention import Projection, plain_class
from attngraft.hosts.adapter import Site
from attngraft.hosts.shape_probe import ShapeProbe
from attngraft.hosts.sites import GLOBAL, global_site
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import FusedQkv, ScaledProducts
from attngraft.hosts.timm.family import TimmFamily
from attngraft.hosts.timm.sites import attention_geometry, map_fields


class GraftedAttention(ScaledProducts, FusedQkv, Attention):
    """`timm.models.metaformer.Attention`."""


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Iterator[Site]:
    mixer, token_mixer = block.token_mixer, f"{path}.token_mixer"
    _, _, rows, columns = shapes.output_shape(path.rpartition(".blocks.")[0])
    fields = map_fields(block.mlp.fc1.weight.shape[1], rows, columns)
    missing = {}
    if plain_class(mixer) is Attention:
        projection = Projection(bias=mixer.proj.bias is not None)
        yield global_site(token_mixer, attention_geometry(mixer, token_mixer, projection=projection, **fields))
    else:
        why = f"this block mixes tokens by {type(mixer).__name__}, not by attention; choose other blocks or MLP grafts"
        missing = dict.fromkeys(GLOBAL, why)
    for site in mlp.mlp_sites(block.mlp, f"{path}.mlp", **fields):
        yield replace(site, missing={**site.missing, **missing})


class TimmMetaFormer(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.token_mixer`, if that is attention, and `.mlp`."""

    name = "timm.metaformer"
    summary = "timm CAFormer of any size, features_only too; ConvFormer and PoolFormer (MLP sites only)"
    patched: ClassVar = {Attention: GraftedAttention, **mlp.PATCHED}
    models = (MetaFormer,)
    blocks: ClassVar = {MetaFormerBlock: _sites}
