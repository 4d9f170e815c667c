"""Costs of grafts, computed from shapes: added parameters and MACs, unused and detached parameters."""

import os
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attngraft.attention import AttentionGeometry, AttentionSite, Graft, Projected, SpaceSite, is_graft, plain_class
from attngraft.dispatch.op import ENVIRONMENT
from attngraft.grafting.fit import skipped_sites
from attngraft.grafting.placement import Placement, build, repeated_grafts
from attngraft.grafting.report import Entry, GraftReport
from attngraft.grafting.spec import GraftSpec
from attngraft.hosts import Host, patched_class
from attngraft.tensors import meta_device, on_meta

#: cached counts: grafts of the same type and options cost the same at all sites of the same class and geometry
_costs: dict[Hashable, tuple[int, int | None]] = {}


def describe(host: Host, placements: list[Placement], spec: GraftSpec) -> GraftReport:
    """Return the report on the grafts of `spec`, placed in `host` at `placements`."""
    return GraftReport(
        spec=str(spec),
        host=host.adapter.name,
        model=type(host.core).__name__,
        host_parameters=sum(p.numel() for name, p in host.core.named_parameters() if not is_graft(name)),
        entries=[_entry(host, placement) for placement in placements],
        warnings=(*skipped_sites(host, spec), *repeated_grafts(host, placements), *_saving(host, placements)),
    )


def _saving(host: Host, placements: list[Placement]) -> list[str]:
    """Return a note if the model's own `save_pretrained` would lose the grafts."""
    if not placements or not hasattr(host.model, "save_pretrained"):
        return []
    return [
        "To save this model, call attngraft.save_pretrained(model, folder): a folder saved by the model's own "
        "save_pretrained loads without the grafts."
    ]


def _entry(host: Host, placement: Placement) -> Entry:
    term, graft_type, module = placement.term, placement.graft_type, host.module(placement.target)
    geometry, hook_point = placement.site.geometry, placement.hook_point
    # an environment variable may select the backend, and the number of multiplications depends on the backend
    backend = os.environ.get(ENVIRONMENT)
    key = (graft_type, repr(term.options), hook_point, plain_class(module), repr(geometry), backend)
    if key not in _costs:
        _costs[key] = _added_cost(host, placement)
    parameters, macs = _costs[key]
    detached = {
        f"{child}.{name}": parameter.numel()
        for child in (space_site(host, placement).detaches if hook_point == "space" else ())
        for name, parameter in module.get_submodule(child).named_parameters()
    }
    unused = graft_type.unused(geometry, hook_point, term.options)
    sizes = {
        name: parameter.numel()
        for name, parameter in module.named_parameters()
        if not name.startswith("grafts.") and name not in detached
    }
    unused_count = sum(sizes[name] for name in unused.parameters)
    unused_count += sum(part.numel() for _, part in unused.parts(module))
    return Entry(
        site=placement.site.path,
        module=plain_class(module).__name__,
        hook_point=hook_point,
        graft=term.name,
        instance=placement.instance,
        options={name: getattr(term.options, name) for name in vars(term.options)},
        parameters=parameters,
        macs=macs,
        identity=graft_type.starts_as_identity(term.options),
        carried=sum(sizes.values()) - unused_count,
        unused=unused,
        detached=detached,
        rounds=placement.site.rounds,
        notes=tuple(graft_type.notes(geometry, hook_point, term.options)),
    )


def _added_cost(host: Host, placement: Placement) -> tuple[int, int | None]:
    """Return the parameters and MACs that one graft adds; MACs are None if the number of tokens is unknown."""
    geometry, hook_point = placement.site.geometry, placement.hook_point
    with meta_device():
        graft = build(placement).eval()
    parameters = sum(parameter.numel() for parameter in graft.parameters())
    shape = geometry.shape(hook_point)
    if shape is None:
        return parameters, None
    if hook_point == "mix":
        return parameters, mix_macs(graft, cast(AttentionGeometry, geometry))
    inputs: list[Tensor | None] = [torch.empty(shape, device="meta")]
    if isinstance(geometry, AttentionGeometry) and hook_point in ("heads", "tokens"):
        queries = geometry.tokens if geometry.query_tokens is None else geometry.query_tokens
        inputs.append(torch.empty(geometry.sequences, cast(int, queries), geometry.dim, device="meta"))
    elif hook_point == "weights":
        inputs.append(None)
    macs = _count(graft, *inputs)
    if hook_point == "space":  # the host's branch is replaced
        branch = partial(space_site(host, placement).branch_of, on_meta(host.module(placement.target)).eval())
        macs -= _count(branch, *inputs)
    return parameters, macs


def _count(run: Callable[..., Any], *inputs: Tensor | None) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run(*inputs)
    return counter.get_total_flops() // 2


def space_site(host: Host, placement: Placement) -> type[SpaceSite]:
    """Return the patched class of a placement at `space`."""
    patched = patched_class(host.module(placement.target), host.adapter)
    if patched is None or not issubclass(patched, SpaceSite):
        raise TypeError(
            f"{placement.target} has the hook point space, but its patched class does not derive from SpaceSite"
        )
    return patched


class _MetaSite(AttentionSite, nn.Module):
    """Attention on meta tensors, with the widths of a geometry and an optional mix graft."""

    fused_attn = False

    def __init__(self, geometry: AttentionGeometry, mixer: Graft | None) -> None:
        super().__init__()
        self._geometry = geometry
        self.scale, self.attn_drop = 1.0, nn.Dropout(0.0)
        width, merged = 2 * geometry.key_width + geometry.value_width, geometry.heads * geometry.value_width
        self.qkv = nn.Linear(geometry.dim, geometry.heads * width, bias=False, device="meta")
        self.proj = nn.Linear(merged, geometry.width("tokens"), bias=False, device="meta")
        self.grafts = nn.ModuleDict({} if mixer is None else {"mixer": mixer})

    def project(self, x: Tensor, *args: Any, **kwargs: Any) -> Projected:
        site = self._geometry
        heads = self.qkv(x).unflatten(-1, (site.heads, -1)).transpose(1, 2)
        q, k, v = heads.split((site.key_width, site.key_width, site.value_width), dim=-1)
        return Projected(q, k, v, x)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return cast(Tensor, self.proj(heads.transpose(1, 2).flatten(2)))

    def drop(self, tokens: Tensor) -> Tensor:
        return tokens


def mix_macs(mixer: Graft, geometry: AttentionGeometry) -> int:
    """Return the MACs that a mix graft adds for one input; negative if it saves more than it adds.

    Projections that the graft applies a second time (sequential forms) count twice.
    """
    x = torch.empty(geometry.sequences, cast(int, geometry.tokens), geometry.dim, device="meta")
    with_graft, without = (_count(_MetaSite(geometry, each).eval(), x) for each in (mixer, None))
    return with_graft - without
