"""What placements add to a host and leave of it: parameters, MACs, unused parts, from shapes alone."""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import cast

import torch
from torch import Tensor

from attngraft.attention import AttentionGeometry, Geometry, HookPoint, is_graft, plain_class
from attngraft.dispatch.backend import ENVIRONMENT
from attngraft.grafting.cost import branch_macs, parked_parameters
from attngraft.grafting.fit import left_out
from attngraft.grafting.cost import mix_macs
from attngraft.grafting.placement import Placement, build
from attngraft.grafting.report import Entry, GraftReport
from attngraft.grafting.spec import GraftSpec
from attngraft.hosts import Host


def describe(host: Host, placements: list[Placement], spec: GraftSpec) -> GraftReport:
    """The report of `spec`, decided as `placements`, on `host`."""
    entries = [_entry(host, placement, *_known_cost(placement)) for placement in placements]
    return GraftReport(
        spec=str(spec),
        host=host.adapter.name,
        model=type(host.core).__name__,
        host_parameters=sum(p.numel() for name, p in host.core.named_parameters() if not is_graft(name)),
        entries=entries,
        warnings=tuple(left_out(host, spec)),
    )


def _entry(host: Host, placement: Placement, parameters: int, macs: int | None) -> Entry:
    term, graft_type, module = placement.term, placement.graft_type, host.module(placement.target)
    unused = graft_type.unused(placement.site.geometry, placement.hook_point, term.options)
    detached = parked_parameters(host, placement)
    sizes = {
        name: p for name, p in module.named_parameters() if not name.startswith("grafts.") and name not in detached
    }
    if placement.hook_point == "space" and macs is not None:
        macs -= branch_macs(host, placement) or 0
    idle = sum(sizes[name].numel() for name in unused.parameters)
    idle += sum(part.numel() for _, part in unused.parts(module))
    return Entry(
        site=placement.site.path,
        module=plain_class(module).__name__,
        hook_point=placement.hook_point,
        graft=term.name,
        instance=placement.instance,
        options={name: getattr(term.options, name) for name in vars(term.options)},
        parameters=parameters,
        macs=macs,
        identity=graft_type.starts_as_identity(term.options),
        carried=sum(p.numel() for p in sizes.values()) - idle,
        unused=unused,
        detached=detached,
        rounds=placement.site.rounds,
        notes=tuple(graft_type.notes(placement.site.geometry, placement.hook_point, term.options)),
    )


#: what was counted once; grafts of one kind cost the same at all sites of one geometry, in all hosts of a process
_costs: dict[tuple[Hashable, ...], tuple[int, int | None]] = {}


def _known_cost(placement: Placement) -> tuple[int, int | None]:
    options, geometry = repr(placement.term.options), repr(placement.site.geometry)
    # the environment may name a backend, and one that needs fewer multiplications counts fewer
    key = (placement.graft_type, options, placement.hook_point, geometry, os.environ.get(ENVIRONMENT))
    if key not in _costs:
        _costs[key] = _cost(placement)
    return _costs[key]


def _cost(placement: Placement) -> tuple[int, int | None]:
    """Parameters and MACs of one graft, by running it on tensors without storage."""
    from torch.utils.flop_counter import FlopCounterMode

    geometry, hook_point = placement.site.geometry, placement.hook_point
    with torch.device("meta"):
        graft = build(placement)
    parameters = sum(parameter.numel() for parameter in graft.parameters())
    if geometry.shape(hook_point) is None:
        return parameters, None
    if hook_point == "mix":
        return parameters, mix_macs(graft.eval(), cast(AttentionGeometry, geometry))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        graft.eval()(*_meta_inputs(geometry, hook_point))
    return parameters, counter.get_total_flops() // 2


def _meta_inputs(geometry: Geometry, hook_point: HookPoint) -> tuple[Tensor | None, ...]:
    value = torch.empty(cast(tuple[int, ...], geometry.shape(hook_point)), device="meta")
    if isinstance(geometry, AttentionGeometry) and hook_point in ("heads", "tokens"):
        queries = geometry.tokens if geometry.query_tokens is None else geometry.query_tokens
        return value, torch.empty(geometry.sequences, cast(int, queries), geometry.dim, device="meta")
    return (value, None) if hook_point == "weights" else (value,)
