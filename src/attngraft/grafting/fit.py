"""Where a graft fits a host, site by site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from attngraft.attention import HookPoint
from attngraft.grafting.spec import GraftSpec, Term
from attngraft.grafting.where import covering
from attngraft.hosts import Host, Site
from attngraft.mechanisms.registry import graft_types

_MANY = 5  #: patterns in an error message
#: why most hosts lack a hook point, where their adapters have nothing to say of it
_NOT_THERE: Mapping[HookPoint, str] = {
    "space": "its blocks keep no map (rows, columns, channels) around their attention, as Swin's and VOLO's do"
}


@dataclass(frozen=True)
class Fit:
    """Which sites of a host take a graft, and why the others do not."""

    taken: tuple[str, ...]  #: paths of sites
    refused: dict[str, str]  #: path -> reason
    nowhere: str | None = None  #: why there is neither: the host has no site of the kind

    def __str__(self) -> str:
        return f"{len(self.taken)} of {len(self.taken) + len(self.refused)}"

    @property
    def reason(self) -> str | None:
        """Why most of the others do not; None: all take it."""
        return next((reason for reason, _ in Counter(self.refused.values()).most_common(1)), None)

    def remedy(self) -> str:
        """What an error about one of the others can add: the sites that do take it, as a where-clause if it is short."""
        if not self.taken:
            return "no site of this model takes it"
        patterns = covering(self.taken, tuple(self.refused)) if self.refused else ("all",)
        if len(patterns) > _MANY:
            return f"{self} sites take it: {', '.join(patterns[: _MANY - 1])}, ..., {patterns[-1]}"
        return f"{self} sites take it: @{','.join(patterns)}"


def fit(host: Host, term: Term) -> Fit:
    """Where `term` could stand: all sites of the kind of its hook points, whatever its where-clause says.

    Raises:
        HostError: the adapter does not know the form of a module in the host.
    """
    graft_type = graft_types()[term.name]
    taken: list[str] = []
    refused: dict[str, str] = {}
    hook_points = graft_type.hook_points(term.options)
    for site in host.sites:
        asked = [hook_point for hook_point in hook_points if kind_of(hook_point) == site.kind]
        if not asked:
            continue
        reasons = [_refusal(site, hook_point, term) for hook_point in asked]
        reason = next((each for each in reasons if each), None)
        if reason is None:
            taken.append(site.path)
        else:
            refused[site.path] = reason
    return Fit(tuple(taken), refused, None if taken or refused else without(host, hook_points[0]))


def without(host: Host, hook_point: HookPoint) -> str:
    """Why no site of `host` has `hook_point`."""
    reasons = (site.missing[hook_point] for site in host.sites if hook_point in site.missing)
    return next(reasons, _NOT_THERE.get(hook_point, "no site of it has this hook point"))


def left_out(host: Host, spec: GraftSpec) -> list[str]:
    """Sentences about sites that a graft passes over, because they have no such hook point, where its where-clause covers them.

    `first` and `last` count the sites that have the hook point, so they pass over none.
    """
    found = []
    for term in spec.terms:
        for hook_point in graft_types()[term.name].hook_points(term.options):
            asked = [site for site in host.sites if kind_of(hook_point) == site.kind]
            if term.where.kind == "patterns":
                asked = [asked[index] for index in term.where.select([site.path for site in asked])]
            lacking = [site for site in asked if hook_point not in site.targets]
            if lacking and term.where.kind in ("all", "patterns"):
                kind = "MLPs" if asked[0].kind == "mlp" else "attention sites"
                reasons = dict.fromkeys(_refusal(site, hook_point, term) or "" for site in lacking)
                why = "; ".join(reason.partition(";")[0] for reason in reasons)
                found.append(f"{term.name} leaves out {len(lacking)} of {len(asked)} {kind}: {why}.")
    return list(dict.fromkeys(found))


def kind_of(hook_point: HookPoint) -> Literal["attention", "mlp"]:
    """The kind of site that has `hook_point`."""
    return "mlp" if hook_point.startswith("mlp.") else "attention"


def _refusal(site: Site, hook_point: HookPoint, term: Term) -> str | None:
    if hook_point not in site.targets:
        return site.missing.get(hook_point, _NOT_THERE.get(hook_point, f"it has no hook point {hook_point}"))
    return graft_types()[term.name].refusal(site.geometry, hook_point, term.options)
