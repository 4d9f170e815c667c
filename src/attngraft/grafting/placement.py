"""Assignment of grafts to sites. All refusals are raised here, before the model is changed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from attngraft.attention import CIRCUMSTANCES, Graft, GraftedModule, GraftType, HookPoint
from attngraft.errors import GraftSpecError, HostError, UsageError, check_types
from attngraft.grafting.fit import fit, why_missing
from attngraft.grafting.spec import GraftSpec, Specification, Term, build_options, parse
from attngraft.grafting.where import unmatched_hint
from attngraft.hosts import Host, Site
from attngraft.mechanisms.registry import graft_types
from attngraft.suggest import quoted

#: the hook points within the branch that a graft at `space` replaces
_BRANCH: tuple[HookPoint, ...] = ("mix", "weights", "heads", "tokens", "attn.window", "space")


@dataclass(frozen=True)
class Placement:
    """A graft to be built at a site."""

    site: Site
    hook_point: HookPoint
    term: Term
    instance: str

    @property
    def target(self) -> str:
        """Path of the host's module that receives the graft."""
        return self.site.targets[self.hook_point]

    @property
    def graft_type(self) -> GraftType[Any]:
        return graft_types()[self.term.name]


def with_options(spec: Specification, options: dict[str, Any]) -> GraftSpec:
    """Parse `spec`, and set the options of its graft, if any are passed.

    Raises:
        GraftSpecError: options are passed, but `spec` has several grafts or also sets options.
    """
    check_types(spec=(spec, str, Sequence, GraftSpec, None))
    parsed = parse(spec)
    if not options:
        return parsed
    if len(parsed.terms) != 1 or parsed.terms[0].options != type(parsed.terms[0].options)():
        raise GraftSpecError(
            "options can be passed separately only for a single graft without options; write them in the "
            "specification: name(option=value)@where + ..."
        )
    term = parsed.terms[0]
    try:
        return GraftSpec((replace(term, options=build_options(graft_types()[term.name], options)),))
    except ValueError as error:
        raise GraftSpecError(f"{term.name}: {error}") from None


def place(host: Host, spec: GraftSpec) -> list[Placement]:
    """Assign every graft of `spec` to its sites.

    Raises:
        GraftSpecError: a where-clause matches no site with the hook point.
        HostError: the host has no such hook point, or a site refuses the graft.
    """
    placements: list[Placement] = []
    by_target: dict[str, list[Placement]] = {}
    for term in spec.terms:
        graft_type = graft_types()[term.name]
        for hook_point in graft_type.hook_points(term.options):
            for site in _chosen(host, term, hook_point):
                refusal = graft_type.refusal(site.geometry, hook_point, term.options)
                if refusal:
                    raise _refused(host, term, site, hook_point, refusal)
                near = [other for target in {*site.targets.values()} for other in by_target.get(target, ())]
                if conflict := conflict_at(host, site, hook_point, near):
                    raise HostError(conflict)
                taken = _taken(host, site.targets[hook_point], near)
                numbered = (f"{term.name}_{number}" for number in range(2, len(taken) + 3))
                instance = next(name for name in (term.name, *numbered) if name not in taken)
                placements.append(Placement(site, hook_point, term, instance))
                by_target.setdefault(placements[-1].target, []).append(placements[-1])
    return placements


def conflict_at(host: Host, site: Site, hook_point: HookPoint, placements: list[Placement]) -> str | None:
    """Return why a graft at the site, installed or placed, rules out another at this hook point, or None."""
    # no other site shares the target modules of this site's hook points
    present = {each for each, target in site.targets.items() if each in _taken(host, target, placements).values()}
    exclusive = {"mix"} if hook_point == "mix" else set(_BRANCH) if hook_point == "space" else set()
    if hook_point in _BRANCH:
        exclusive.add("space")
    found = next((each for each in _BRANCH if each in present & exclusive), None)
    if found is None:
        return None
    effect = ", which replaces the whole attention there" if found == "space" else ""
    return f"{site.path} already has a graft at hook point {found}{effect}; ungraft it first, or choose other sites"


def repeated_grafts(host: Host, placements: list[Placement]) -> list[str]:
    """Return warnings about grafts of `placements` that the model already has at the same sites."""
    repeated: dict[str, dict[str, None]] = {}
    for placement in placements:
        module, kind = host.module(placement.target), (placement.term.name, placement.hook_point)
        for instance, graft in module.grafts.items() if isinstance(module, GraftedModule) else ():
            if (cast(Graft, graft).kind, cast(Graft, graft).hook_point) == kind:
                repeated.setdefault(placement.term.name, {})[instance] = None
    return [
        f"The model already has {name} at some of these sites; grafts stack, so the new {name} is applied in addition. To "
        f"replace the old one, call attngraft.ungraft(model, {list(instances)}) first."
        for name, instances in repeated.items()
    ]


def _refused(host: Host, term: Term, site: Site, hook_point: HookPoint, refusal: str) -> HostError:
    """Return the error for a site that refuses `term`.

    If no site accepts `term@all`, the error names the first site with the most frequent reason.
    """
    found, path = fit(host, term), site.path
    if term.where.kind == "all" and not found.taken and found.reason is not None:
        refusal = found.reason
        path = next(each for each, reason in found.refused.items() if reason == refusal)
    return HostError(f"{term} cannot be grafted at {path} ({hook_point}): {refusal}; {found.remedy()}")


def _chosen(host: Host, term: Term, hook_point: HookPoint) -> list[Site]:
    """Return the sites with `hook_point` that the where-clause of `term` selects."""
    able = [site for site in host.sites if hook_point in site.targets]
    if not able:
        raise HostError(
            f"{term.name} needs the hook point {hook_point}, which {host.adapter.name} does not have: "
            f"{why_missing(host, hook_point)}"
        )
    for pattern in term.where.unmatched(able):
        others = [host.sites[index] for index in term.where.select(host.sites)]
        lacking = next((site.missing[hook_point] for site in others if hook_point in site.missing), None)
        why = f"the sites there lack it: {lacking}; {fit(host, term).remedy()}" if lacking else None
        raise GraftSpecError(
            f"{quoted(pattern)} matches no site of {type(host.core).__name__} with hook point {hook_point}; "
            f"{why or unmatched_hint(pattern, able)}",
            text=term.text,
            position=term.position,
        )
    return [able[index] for index in term.where.select(able)]


def _taken(host: Host, target: str, placements: list[Placement]) -> dict[str, HookPoint]:
    """Return instance name -> hook point for the grafts installed or placed at a module."""
    module = host.module(target)
    grafts = module.grafts.items() if isinstance(module, GraftedModule) else ()
    planned = {other.instance: other.hook_point for other in placements if other.target == target}
    return {**{name: cast(Graft, graft).hook_point for name, graft in grafts}, **planned}


def build(placement: Placement) -> Graft:
    """Build the module of a placement.

    Raises:
        UsageError: the graft type's `build` does not return a `Graft`.
    """
    term, graft_type, hook_point = placement.term, placement.graft_type, placement.hook_point
    geometry = placement.site.geometry
    graft = graft_type.build(geometry, hook_point, term.options)
    if not isinstance(graft, Graft):
        raise UsageError(f"{term.name}: `build` must return an attngraft.attention.Graft, not {type(graft).__name__}")
    graft.hook_point, graft.kind = hook_point, term.name
    graft.options = {name: getattr(term.options, name) for name in vars(term.options)}
    known = {field.name for field in fields(geometry)}
    cases = {name: replace(geometry, **cast(Any, {name: True})) for name in CIRCUMSTANCES if name in known}
    reasons = {name: graft_type.refusal(case, hook_point, term.options) for name, case in cases.items()}
    graft.refuses = {name: reason for name, reason in reasons.items() if reason}
    return graft
