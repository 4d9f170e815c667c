"""What placements add to a host and leave of it: parameters, MACs, unused parts, from shapes alone."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from attngraft.anatomy import AttentionGeometry, Geometry, Stage, is_graft, plain_class
from attngraft.grafting.fit import left_out
from attngraft.grafting.mixing import mix_macs
from attngraft.grafting.placement import Placement, build
from attngraft.grafting.report import Entry, GraftReport
from attngraft.grafting.spec import GraftSpec
from attngraft.hosts import Host


def describe(host: Host, placements: list[Placement], spec: GraftSpec) -> GraftReport:
    """The report of `spec`, decided as `placements`, on `host`."""
    costs: dict[str, tuple[int, int | None]] = {}  # sites of one geometry cost the same
    entries = []
    for placement in placements:
        key = f"{placement.term.name} {placement.term.options} {placement.stage} {placement.site.geometry}"
        if key not in costs:
            costs[key] = _cost(placement)
        entries.append(_entry(host, placement, *costs[key]))
    return GraftReport(
        spec=str(spec),
        host=host.adapter.name,
        model=type(host.core).__name__,
        host_parameters=sum(p.numel() for name, p in host.core.named_parameters() if not is_graft(name)),
        entries=entries,
        warnings=tuple(left_out(host, spec)),
    )


def _entry(host: Host, placement: Placement, parameters: int, macs: int | None) -> Entry:
    term, graft_type, module = placement.term, placement.graft_type, host.module(placement.carrier)
    unused = graft_type.unused(placement.site.geometry, placement.stage, term.options)
    sizes = {name: p for name, p in module.named_parameters() if not name.startswith("grafts.")}
    idle = sum(sizes[name].numel() for name in unused.parameters)
    idle += sum(part.numel() for _, part in unused.parts(module))
    return Entry(
        site=placement.site.path,
        module=plain_class(module).__name__,
        stage=placement.stage,
        graft=term.name,
        instance=placement.instance,
        options={name: getattr(term.options, name) for name in vars(term.options)},
        parameters=parameters,
        macs=macs,
        identity=graft_type.starts_as_identity(term.options),
        carried=sum(p.numel() for p in sizes.values()) - idle,
        unused=unused,
        rounds=placement.site.rounds,
        notes=tuple(graft_type.notes(placement.site.geometry, placement.stage, term.options)),
    )


def _cost(placement: Placement) -> tuple[int, int | None]:
    """Parameters and MACs of one graft, by running it on tensors without storage."""
    from torch.utils.flop_counter import FlopCounterMode

    geometry, stage = placement.site.geometry, placement.stage
    with torch.device("meta"):
        graft = build(placement)
    parameters = sum(parameter.numel() for parameter in graft.parameters())
    if geometry.shape(stage) is None:
        return parameters, None
    if stage == "mix":
        return parameters, mix_macs(graft.eval(), cast(AttentionGeometry, geometry))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        graft.eval()(*_meta_inputs(geometry, stage))
    return parameters, counter.get_total_flops() // 2


def _meta_inputs(geometry: Geometry, stage: Stage) -> tuple[Tensor | None, ...]:
    value = torch.empty(cast(tuple[int, ...], geometry.shape(stage)), device="meta")
    if isinstance(geometry, AttentionGeometry) and stage in ("heads", "tokens"):
        queries = geometry.tokens if geometry.query_tokens is None else geometry.query_tokens
        return value, torch.empty(geometry.sequences, cast(int, queries), geometry.dim, device="meta")
    return (value, None) if stage == "weights" else (value,)
