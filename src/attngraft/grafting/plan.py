"""The dry run: which graft goes where, what it adds and leaves unused. Surgery starts from the same placements."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from attngraft.anatomy import Geometry, Graft, GraftedModule, GraftType, Stage
from attngraft.errors import GraftSpecError, HostError
from attngraft.grafting.options import build_options
from attngraft.grafting.report import Change, Entry, GraftReport
from attngraft.grafting.spec import GraftSpec, Specification, Term, parse
from attngraft.grafting.where import near_paths
from attngraft.hosts import Host, Site, find_host
from attngraft.mechanisms.registry import graft_types


@dataclass(frozen=True)
class Placement:
    """One graft at one site, decided and not yet made."""

    site: Site
    stage: Stage
    term: Term
    instance: str

    @property
    def carrier(self) -> str:
        """Host path of the module that will hold it."""
        return self.site.carriers[self.stage]

    @property
    def graft_type(self) -> GraftType[Any]:
        return graft_types()[self.term.name]


def with_options(spec: Specification, options: dict[str, Any]) -> GraftSpec:
    """`spec` with options given apart from it, which is possible where it is a single graft without options.

    Raises:
        GraftSpecError: there are several grafts, or options in both places.
    """
    parsed = parse(spec)
    if not options:
        return parsed
    if len(parsed.terms) != 1 or parsed.terms[0].options != type(parsed.terms[0].options)():
        raise GraftSpecError(
            "options can be given apart from the specification for a single graft without options of its own; "
            "otherwise write them inside it: name(option=value)@where + ..."
        )
    term = parsed.terms[0]
    try:
        return GraftSpec((replace(term, options=build_options(graft_types()[term.name], options)),))
    except ValueError as error:
        raise GraftSpecError(f"{term.name}: {error}") from None


def place(host: Host, spec: GraftSpec) -> list[Placement]:
    """Decide where every graft goes.

    Raises:
        GraftSpecError: a where-clause matches no site that has the stage.
        HostError: the host has no such stage, or a site refuses the graft.
    """
    placements: list[Placement] = []
    for term in spec.terms:
        graft_type = graft_types()[term.name]
        for stage in graft_type.stages(term.options):
            for site in _chosen(host, term, stage):
                refusal = graft_type.refusal(site.geometry, stage, term.options)
                if refusal:
                    raise HostError(f"{term} cannot stand at {site.path} ({stage}): {refusal}")
                taken = _taken(host, site.carriers[stage], placements)
                if stage == "mix" and "mix" in taken.values():
                    raise HostError(
                        f"{site.path} has a graft at stage mix already; ungraft it first, or choose other sites"
                    )
                placements.append(Placement(site, stage, term, _free_name(term.name, taken)))
    return placements


def _chosen(host: Host, term: Term, stage: Stage) -> list[Site]:
    """The sites that `term` names among those with `stage`."""
    able = [site for site in host.sites if stage in site.carriers]
    if not able:
        why = next(
            (site.missing[stage] for site in host.sites if stage in site.missing), "no site of it has this stage"
        )
        raise HostError(f"{term.name} stands at stage {stage}, which {host.adapter.name} does not offer: {why}")
    paths = [site.path for site in able]
    for pattern in term.where.unmatched(paths):
        others = [site for site in host.sites if term.where.select([site.path])]
        lacking = next((site.missing[stage] for site in others if stage in site.missing), None)
        hint = f"the sites there lack it: {lacking}" if lacking else f"near are {', '.join(near_paths(pattern, paths))}"
        raise GraftSpecError(
            f"{pattern!r} matches no site of {type(host.core).__name__} with stage {stage}; {hint}",
            text=term.text,
            position=term.position,
        )
    return [able[index] for index in term.where.select(paths)]


def _taken(host: Host, carrier: str, placements: list[Placement]) -> dict[str, Stage]:
    """Instance names in use at a module, with their stages: grafts that stand there and those already placed."""
    module = host.module(carrier)
    planned = {other.instance: other.stage for other in placements if other.carrier == carrier}
    if not isinstance(module, GraftedModule):
        return planned
    return {**{name: cast(Graft, graft).stage for name, graft in module.grafts.items()}, **planned}


def _free_name(name: str, taken: dict[str, Stage]) -> str:
    if name not in taken:
        return name
    return next(f"{name}_{number}" for number in range(2, len(taken) + 3) if f"{name}_{number}" not in taken)


def plan(model: nn.Module, spec: Specification, *, measure: bool = False, **options: Any) -> GraftReport:
    """Say what `graft(model, spec)` would do, without doing it.

    Parameters and MACs come from shapes alone, on the meta device. With `measure=True` a copy of the model is grafted
    and both are run on a random batch of two; neither the global generators nor the model's buffers are touched.

    Raises:
        GraftSpecError, HostError: as `graft` would.
    """
    host = find_host(model)
    parsed = with_options(spec, options)
    placements = place(host, parsed)
    report = describe(host, placements, parsed)
    return replace(report, change=_measure(model, placements)) if measure and placements else report


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
        host_parameters=sum(p.numel() for name, p in host.core.named_parameters() if ".grafts." not in name),
        entries=entries,
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
        notes=tuple(graft_type.notes(placement.site.geometry, placement.stage, term.options)),
    )


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The host's own class of a module, grafted or not."""
    if not isinstance(module, GraftedModule):
        return type(module)
    return next(
        base for base in type(module).__mro__ if not issubclass(base, GraftedModule) and issubclass(base, nn.Module)
    )


def build(placement: Placement) -> Graft:
    """A fresh module for a placement."""
    term = placement.term
    graft = placement.graft_type.build(placement.site.geometry, placement.stage, term.options)
    graft.stage, graft.kind = placement.stage, term.name
    graft.options = {name: getattr(term.options, name) for name in vars(term.options)}
    return graft


def _cost(placement: Placement) -> tuple[int, int | None]:
    """Parameters and MACs of one graft, by running it on tensors without storage."""
    from torch.utils.flop_counter import FlopCounterMode

    geometry, stage = placement.site.geometry, placement.stage
    with torch.device("meta"):
        graft = build(placement)
    parameters = sum(parameter.numel() for parameter in graft.parameters())
    shape = geometry.shape(stage)
    if shape is None:
        return parameters, None
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        graft.eval()(*_meta_inputs(geometry, stage, shape))
    return parameters, counter.get_total_flops() // 2


def _meta_inputs(geometry: Geometry, stage: Stage, shape: tuple[int, ...]) -> tuple[Tensor | None, ...]:
    value = torch.empty(shape, device="meta")
    if stage in ("heads", "tokens"):
        return value, torch.empty(geometry.sequences, cast(int, geometry.tokens), geometry.dim, device="meta")
    return (value, None) if stage == "weights" else (value,)


def _measure(model: nn.Module, placements: list[Placement]) -> Change:
    from attngraft.grafting.apply import install

    with _untouched_generators(), torch.no_grad():
        host = find_host(plain := copy.deepcopy(model).eval())
        inputs = host.adapter.example_inputs(host.core, batch=2)
        before = _tensors(plain(*inputs))
        install(find_host(plain), placements)
        after = _tensors(plain.eval()(*inputs))
    difference = torch.cat([(b - a).flatten().double() for a, b in zip(before, after, strict=True)])
    norm = torch.cat([a.flatten().double() for a in before]).norm()
    return Change(
        mean_absolute=difference.abs().mean().item(),
        max_absolute=difference.abs().max().item(),
        relative=(difference.norm() / norm.clamp_min(1e-30)).item(),
    )


@contextmanager
def _untouched_generators() -> Iterator[None]:
    """Put torch's generators (CPU, and CUDA where it is in use) back as they were."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield


def _tensors(outputs: Any) -> list[Tensor]:
    """All tensors of a nested output."""
    if isinstance(outputs, Tensor):
        return [outputs]
    parts = outputs.values() if isinstance(outputs, dict) else outputs if isinstance(outputs, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]
