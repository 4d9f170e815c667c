"""Which graft goes where: every refusal happens here, before anything is touched."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, cast

from attngraft.attention import CIRCUMSTANCES, Circumstance, Graft, GraftedModule, GraftType, HookPoint
from attngraft.errors import GraftSpecError, HostError
from attngraft.grafting.fit import fit, without
from attngraft.grafting.options import build_options
from attngraft.grafting.spec import GraftSpec, Specification, Term, parse
from attngraft.grafting.where import near_paths
from attngraft.hosts import Host, Site
from attngraft.mechanisms.registry import graft_types


@dataclass(frozen=True)
class Placement:
    """One graft at one site, decided and not yet made."""

    site: Site
    stage: HookPoint
    term: Term
    instance: str

    @property
    def target(self) -> str:
        """Host path of the module that will hold it."""
        return self.site.targets[self.stage]

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
                    raise _refused(host, term, site, stage, refusal)
                if conflict := in_the_way(host, site, stage, placements):
                    raise HostError(conflict)
                taken = _taken(host, site.targets[stage], placements)
                placements.append(Placement(site, stage, term, _free_name(term.name, taken)))
    return placements


#: the stages within the branch that a graft at `space` stands in for
_BRANCH: tuple[HookPoint, ...] = ("mix", "weights", "heads", "tokens", "attn.window", "space")


def in_the_way(host: Host, site: Site, stage: HookPoint, placements: list[Placement]) -> str | None:
    """Which graft, there or placed already, leaves no room for one at this stage of the site; None: none does."""
    here = {
        each for each, target in site.targets.items() if each in _taken(host, target, placements).values()
    }  # the targets of one site's stages carry no other site's
    others = {"mix"} if stage == "mix" else set(_BRANCH) if stage == "space" else set()
    if stage in _BRANCH:
        others.add("space")
    found = next((each for each in _BRANCH if each in here & others), None)
    if found is None:
        return None
    whole = " stands in for the whole attention there" if found == "space" else ""
    which = f"a graft at stage {found} already" + (f", which{whole}" if whole else "")
    return f"{site.path} has {which}; ungraft it first, or choose other sites"


def _refused(host: Host, term: Term, site: Site, stage: HookPoint, refusal: str) -> HostError:
    """The error about `site`; if all sites were meant and none takes `term`, about the first with the reason of most."""
    found, path = fit(host, term), site.path
    if term.where.kind == "all" and not found.taken and found.reason is not None:
        refusal = found.reason
        path = next(each for each, reason in found.refused.items() if reason == refusal)
    return HostError(f"{term} cannot stand at {path} ({stage}): {refusal}; {found.remedy()}")


def _chosen(host: Host, term: Term, stage: HookPoint) -> list[Site]:
    """The sites that `term` names among those with `stage`."""
    able = [site for site in host.sites if stage in site.targets]
    if not able:
        why = without(host, stage)
        raise HostError(f"{term.name} stands at stage {stage}, which {host.adapter.name} does not offer: {why}")
    paths = [site.path for site in able]
    for pattern in term.where.unmatched(paths):
        others = [site for site in host.sites if term.where.select([site.path])]
        lacking = next((site.missing[stage] for site in others if stage in site.missing), None)
        near = f"near are {', '.join(near_paths(pattern, paths))}"
        hint = f"the sites there lack it: {lacking}; {fit(host, term).remedy()}" if lacking else near
        raise GraftSpecError(
            f"{pattern!r} matches no site of {type(host.core).__name__} with stage {stage}; {hint}",
            text=term.text,
            position=term.position,
        )
    return [able[index] for index in term.where.select(paths)]


def _taken(host: Host, target: str, placements: list[Placement]) -> dict[str, HookPoint]:
    """Instance names in use at a module, with their stages: grafts that stand there and those already placed."""
    module = host.module(target)
    planned = {other.instance: other.stage for other in placements if other.target == target}
    if not isinstance(module, GraftedModule):
        return planned
    return {**{name: cast(Graft, graft).stage for name, graft in module.grafts.items()}, **planned}


def _free_name(name: str, taken: dict[str, HookPoint]) -> str:
    if name not in taken:
        return name
    return next(f"{name}_{number}" for number in range(2, len(taken) + 3) if f"{name}_{number}" not in taken)


def build(placement: Placement) -> Graft:
    """A fresh module for a placement."""
    term = placement.term
    graft = placement.graft_type.build(placement.site.geometry, placement.stage, term.options)
    graft.stage, graft.kind = placement.stage, term.name
    graft.options = {name: getattr(term.options, name) for name in vars(term.options)}
    graft.refuses = _refuses(placement)
    return graft


def _refuses(placement: Placement) -> dict[Circumstance, str]:
    """What `Graft.refuses` holds, for a graft that is not refused as things stand."""
    geometry, stage, options = placement.site.geometry, placement.stage, placement.term.options
    known = {field.name for field in fields(geometry)}
    cases = {name: replace(geometry, **cast(Any, {name: True})) for name in CIRCUMSTANCES if name in known}
    reasons = {name: placement.graft_type.refusal(case, stage, options) for name, case in cases.items()}
    return {name: reason for name, reason in reasons.items() if reason}
