"""What a graft that stands in for a branch of the host detaches, and what it saves: the branch's own MACs."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch.utils.flop_counter import FlopCounterMode

from attngraft.attention import SpaceSite, plain_class
from attngraft.grafting.placement import Placement
from attngraft.hosts import Host, patched_class
from attngraft.tensors import on_meta

_counted: dict[Hashable, int] = {}  #: what was counted once


def parked_parameters(host: Host, placement: Placement) -> dict[str, int]:
    """Parameters of the host's module that `placement` will detach, relative to the module, and their sizes."""
    if placement.hook_point != "space":
        return {}
    module, kind = host.module(placement.target), _site(host, placement)
    return {
        f"{child}.{name}": parameter.numel()
        for child in kind.detaches
        for name, parameter in module.get_submodule(child).named_parameters()
    }


def branch_macs(host: Host, placement: Placement) -> int | None:
    """Multiply-adds of the branch that `placement` stands in for, for one input; None where the map is not known."""
    geometry, module = placement.site.geometry, host.module(placement.target)
    shape = geometry.shape("space")
    if shape is None:
        return None
    key = (plain_class(module), repr(geometry))
    if key not in _counted:
        kind, branch = _site(host, placement), on_meta(module).eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            kind.branch_of(branch, torch.empty(shape, device="meta"))
        _counted[key] = counter.get_total_flops() // 2
    return _counted[key]


def _site(host: Host, placement: Placement) -> type[SpaceSite]:
    found = patched_class(host.module(placement.target), host.adapter)
    if found is None or not issubclass(found, SpaceSite):
        raise TypeError(f"{placement.target} carries hook point space, and its patched class is no SpaceSite")
    return found
