"""Host adapter of BiXT for point clouds."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from attngraft.hosts.adapter import HostAdapter, Site
from attngraft.hosts.family import Sites
from attngraft.hosts.timm.family import block_sites
from attngraft.models.bixt.host import BixtHost, cross_sites, latent_fields
from attngraft.models.points.bixt import BiXTPointParts, BiXTPoints, PointsAttend

_POINTS = 64  #: of an example, which leaves enough for hierarchies


class PointsHost(HostAdapter):
    """Sites of the layers as those of `BixtHost`: `blocks.<i>.cross_attention_latents_token` and `.self_attention_latents`.

    In the last layer of a part model, points attend to latents: `blocks.<i>.attn` and `.mlp_lat`. The networks on
    neighborhoods have no sites.
    """

    name = "points"
    summary = "BiXT for point clouds of any size (attngraft's own bixt_points_naive, bixt_parts_hier, ...)"
    head_names = ("classifier", "head", "decoder")
    patched: ClassVar = BixtHost.patched

    def recognizes(self, model: Any) -> bool:
        return type(model) in (BiXTPoints, BiXTPointParts)

    def sites(self, model: Any) -> list[Site]:
        return list(self._sites(model))

    def _sites(self, model: Any) -> Sites:
        latents = latent_fields(model)
        points = latents | {"tokens": None}  # their number is free
        for name, block in model.blocks.named_children():
            if isinstance(block, PointsAttend):
                yield from cross_sites(block, f"blocks.{name}", points, points)
                continue
            cross, inner = "cross_attention_latents_token", "self_attention_latents"
            yield from cross_sites(getattr(block, cross), f"blocks.{name}.{cross}", latents, points)
            yield from block_sites(getattr(block, inner), f"blocks.{name}.{inner}", **latents)

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        device = model.latents.device
        points = torch.rand(batch, _POINTS, model.in_chans, device=device) * 2 - 1
        if isinstance(model, BiXTPointParts):
            return points, torch.arange(batch, device=device) % model.categories
        return (points,)
