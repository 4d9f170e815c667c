"""timm's MLP-Mixer, ResMLP and gMLP: no attention; the MLPs over channels are as a ViT's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

from timm.models.mlp_mixer import MixerBlock, MlpMixer, ResBlock, SpatialGatingBlock

from attngraft.attention import HOOK_POINTS, MlpGeometry
from attngraft.hosts.adapter import Site
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily

_NO_ATTENTION = "tokens are mixed by weights, not by attention; choose grafts of MLPs (cb, cb_s, se, ...)"


class TimmMixer(TimmFamily):
    """Sites `blocks.<i>.mlp_channels`; the MLPs over tokens are none, as their last axis is no channels."""

    name = "timm.mixer"
    summary = "timm MLP-Mixer, ResMLP and gMLP of any size (MLP sites only)"
    patched: ClassVar = timm_mlp.PATCHED
    models = (MlpMixer,)
    blocks = (MixerBlock, ResBlock, SpatialGatingBlock)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        grid = look.model.stem.grid_size
        tokens = {"dim": look.model.embed_dim, "tokens": grid[0] * grid[1], "grid": tuple(grid)}
        missing = {hook_point: _NO_ATTENTION for hook_point in HOOK_POINTS if not hook_point.startswith("mlp")}
        found = list(mlp_sites(block.mlp_channels, f"{path}.mlp_channels", **tokens))
        if not found:
            why = f"its MLP is {type(block.mlp_channels).__name__}, which mixes tokens too; attngraft does not read it"
            missing = {**dict.fromkeys(HOOK_POINTS, why), **missing}
            geometry = MlpGeometry(hidden=0, **tokens)
            found = [Site(path=f"{path}.mlp_channels", kind="mlp", geometry=geometry, targets={})]
        return [replace(site, missing={**site.missing, **missing}) for site in found]


register_host(TimmMixer())
