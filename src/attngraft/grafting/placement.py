"""Which graft goes where: every refusal happens here, before anything is touched."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, cast

from attngraft.attention import CIRCUMSTANCES, Circumstance, Graft, GraftedModule, GraftType, HookPoint
from attngraft.errors import GraftSpecError, HostError
from attngraft.grafting.fit import fit, without
from attngraft.grafting.spec import build_options
from attngraft.grafting.spec import GraftSpec, Specification, Term, parse
from attngraft.grafting.where import near_paths
from attngraft.hosts import Host, Site
from attngraft.mechanisms.registry import graft_types


@dataclass(frozen=True)
class Placement:
    """One graft at one site, decided and not yet made."""

    site: Site
    hook_point: HookPoint
    term: Term
    instance: str

    @property
    def target(self) -> str:
        """Host path of the module that will hold it."""
        return self.site.targets[self.hook_point]

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
        GraftSpecError: a where-clause matches no site that has the hook point.
        HostError: the host has no such hook point, or a site refuses the graft.
    """
    placements: list[Placement] = []
    for term in spec.terms:
        graft_type = graft_types()[term.name]
        for hook_point in graft_type.hook_points(term.options):
            for site in _chosen(host, term, hook_point):
                refusal = graft_type.refusal(site.geometry, hook_point, term.options)
                if refusal:
                    raise _refused(host, term, site, hook_point, refusal)
                if conflict := in_the_way(host, site, hook_point, placements):
                    raise HostError(conflict)
                taken = _taken(host, site.targets[hook_point], placements)
                placements.append(Placement(site, hook_point, term, _free_name(term.name, taken)))
    return placements


#: the hook points within the branch that a graft at `space` stands in for
_BRANCH: tuple[HookPoint, ...] = ("mix", "weights", "heads", "tokens", "attn.window", "space")


def in_the_way(host: Host, site: Site, hook_point: HookPoint, placements: list[Placement]) -> str | None:
    """Which graft, there or placed already, leaves no room for one at this hook point of the site; None: none does."""
    here = {
        each for each, target in site.targets.items() if each in _taken(host, target, placements).values()
    }  # the targets of one site's hook points carry no other site's
    others = {"mix"} if hook_point == "mix" else set(_BRANCH) if hook_point == "space" else set()
    if hook_point in _BRANCH:
        others.add("space")
    found = next((each for each in _BRANCH if each in here & others), None)
    if found is None:
        return None
    whole = " stands in for the whole attention there" if found == "space" else ""
    which = f"a graft at hook point {found} already" + (f", which{whole}" if whole else "")
    return f"{site.path} has {which}; ungraft it first, or choose other sites"


def _refused(host: Host, term: Term, site: Site, hook_point: HookPoint, refusal: str) -> HostError:
    """The error about `site`; if all sites were meant and none takes `term`, about the first with the reason of most."""
    found, path = fit(host, term), site.path
    if term.where.kind == "all" and not found.taken and found.reason is not None:
        refusal = found.reason
        path = next(each for each, reason in found.refused.items() if reason == refusal)
    return HostError(f"{term} cannot stand at {path} ({hook_point}): {refusal}; {found.remedy()}")


def _chosen(host: Host, term: Term, hook_point: HookPoint) -> list[Site]:
    """The sites that `term` names among those with `hook_point`."""
    able = [site for site in host.sites if hook_point in site.targets]
    if not able:
        why = without(host, hook_point)
        raise HostError(
            f"{term.name} stands at hook point {hook_point}, which {host.adapter.name} does not offer: {why}"
        )
    paths = [site.path for site in able]
    for pattern in term.where.unmatched(paths):
        others = [site for site in host.sites if term.where.select([site.path])]
        lacking = next((site.missing[hook_point] for site in others if hook_point in site.missing), None)
        near = f"near are {', '.join(near_paths(pattern, paths))}"
        hint = f"the sites there lack it: {lacking}; {fit(host, term).remedy()}" if lacking else near
        raise GraftSpecError(
            f"{pattern!r} matches no site of {type(host.core).__name__} with hook point {hook_point}; {hint}",
            text=term.text,
            position=term.position,
        )
    return [able[index] for index in term.where.select(paths)]


def _taken(host: Host, target: str, placements: list[Placement]) -> dict[str, HookPoint]:
    """Instance names in use at a module, with their hook points: grafts that stand there and those already placed."""
    module = host.module(target)
    planned = {other.instance: other.hook_point for other in placements if other.target == target}
    if not isinstance(module, GraftedModule):
        return planned
    return {**{name: cast(Graft, graft).hook_point for name, graft in module.grafts.items()}, **planned}


def _free_name(name: str, taken: dict[str, HookPoint]) -> str:
    if name not in taken:
        return name
    return next(f"{name}_{number}" for number in range(2, len(taken) + 3) if f"{name}_{number}" not in taken)


def build(placement: Placement) -> Graft:
    """A fresh module for a placement."""
    term = placement.term
    graft = placement.graft_type.build(placement.site.geometry, placement.hook_point, term.options)
    graft.hook_point, graft.kind = placement.hook_point, term.name
    graft.options = {name: getattr(term.options, name) for name in vars(term.options)}
    graft.refuses = _refuses(placement)
    return graft


def _refuses(placement: Placement) -> dict[Circumstance, str]:
    """What `Graft.refuses` holds, for a graft that is not refused as things stand."""
    geometry, hook_point, options = placement.site.geometry, placement.hook_point, placement.term.options
    known = {field.name for field in fields(geometry)}
    cases = {name: replace(geometry, **cast(Any, {name: True})) for name in CIRCUMSTANCES if name in known}
    reasons = {name: placement.graft_type.refusal(case, hook_point, options) for name, case in cases.items()}
    return {name: reason for name, reason in reasons.items() if reason}
