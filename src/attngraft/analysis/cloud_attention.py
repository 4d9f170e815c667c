"""Attention between the points of one cloud and latents, quantized for the explorer page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attngraft.analysis.explorer import QuantizedTensor
from attngraft.errors import HostError, RecordError
from attngraft.hosts import find_host
from attngraft.models.points.neighborhoods import Neighborhoods
from attngraft.recording.record import record
from attngraft.timing.macs import evaluating

WAYS = ("latents_to_tokens", "tokens_to_latents")  #: names of the maps; the rows are those of the first word


@dataclass(frozen=True, kw_only=True)
class CloudLayer:
    """Attention maps of one layer on one cloud of N points."""

    site: str
    points: Tensor | None  #: indices (S,) of the points of the maps, in a hierarchy; None: all, S = N
    maps: dict[str, QuantizedTensor]  #: latents_to_tokens (H, M, S) and tokens_to_latents (H, S, M), or one of them


@dataclass(frozen=True, kw_only=True)
class CloudAttention:
    """Attention of one model on one cloud."""

    layers: list[CloudLayer]
    missing: str  #: why there are no layers; empty if there are some


def cloud_attention(model: nn.Module, inputs: tuple[Any, ...], *, sites: str = "all") -> CloudAttention:
    """Compute the attention between points and latents for one cloud.

    The model is run once in eval mode, and is not modified.

    Args:
        model: the model; networks without attention, such as PointNet, have no layers.
        inputs: its inputs for a batch of one, the points (1, N, channels) first.
        sites: sites to show, as in a graft specification.

    Raises:
        RecordError: no chosen site has a map of points and latents, or values are not finite.
        HostError, GraftSpecError: see `attngraft.record`.
    """
    model = getattr(model, "_orig_mod", model)  # unwrap torch.compile's module
    try:
        host = find_host(model)
    except HostError:
        return CloudAttention(layers=[], missing=f"{type(model).__name__} has no attention that can be recorded")
    levels: dict[int, Tensor] = {}
    groups = getattr(host.core, "groups", ())  # before the layers of a hierarchy, after those of a refinement
    hooks = [group.register_forward_pre_hook(_keep(levels, index)) for index, group in enumerate(groups)]
    try:
        with evaluating(model), torch.no_grad(), record(model, sites=sites) as recording:
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    layers = []
    for site in recording:
        maps = {way: QuantizedTensor.of(recording[site][way][0], site) for way in WAYS if way in recording[site]}
        if maps:
            _, index, *_ = site.removeprefix(host.prefix).split(".")  # blocks.<index>
            layers.append(CloudLayer(site=site, points=levels.get(int(index)), maps=maps))
    if not layers:
        raise RecordError(f"no chosen site has attention between points and latents: {', '.join(recording)}")
    return CloudAttention(layers=layers, missing="")


def _keep(levels: dict[int, Tensor], index: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    """Return a hook of a group that keeps the indices of its anchors among all points, if it has anchors."""

    def keep(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        near: Neighborhoods = arguments[2]
        if near.anchors is not None:
            anchors = near.anchors[0].cpu()
            levels[index] = levels[index - 1][anchors] if index else anchors

    return keep
