"""Compatibility of grafts with the sites of a host."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from attngraft.attention import HookPoint
from attngraft.grafting.spec import GraftSpec, Term
from attngraft.grafting.where import covering
from attngraft.hosts import Host, Site
from attngraft.mechanisms.registry import graft_types

_MAX_PATTERNS = 5  #: in an error message
#: why a host lacks a hook point, if its adapter gives no reason
_DEFAULT_REASONS: Mapping[HookPoint, str] = {
    "space": "its blocks keep no map (rows, columns, channels) around their attention, as Swin's and VOLO's do"
}


@dataclass(frozen=True)
class Fit:
    """Sites of a host that accept a graft, and sites that refuse it, with the reasons."""

    taken: tuple[str, ...]  #: paths of accepting sites
    refused: dict[str, str]  #: path of a refusing site -> reason
    nowhere: str | None = None  #: why the host has no suitable site; set if `taken` and `refused` are empty

    def __str__(self) -> str:
        return f"{len(self.taken)} of {len(self.taken) + len(self.refused)}"

    @property
    def reason(self) -> str | None:
        """The most frequent reason for refusal; None if no site refuses the graft."""
        return next((reason for reason, _ in Counter(self.refused.values()).most_common(1)), None)

    def remedy(self) -> str:
        """Return the accepting sites as text for messages: a where-clause if it is short enough."""
        if not self.taken:
            return "no site of this model accepts it"
        patterns = covering(self.taken, tuple(self.refused)) if self.refused else ("all",)
        if len(patterns) > _MAX_PATTERNS:
            return f"{self} sites accept it: {', '.join(patterns[: _MAX_PATTERNS - 1])}, ..., {patterns[-1]}"
        return f"{self} sites accept it: @{','.join(patterns)}"


def fit(host: Host, term: Term) -> Fit:
    """Return the sites that accept `term`, ignoring its where-clause.

    Raises:
        HostError: the adapter does not support the form of a module in the host.
    """
    taken: list[str] = []
    refused: dict[str, str] = {}
    hook_points = graft_types()[term.name].hook_points(term.options)
    for site in host.sites:
        relevant = [hook_point for hook_point in hook_points if kind_of(hook_point) == site.kind]
        if not relevant:
            continue
        reason = next(filter(None, (_refusal(site, hook_point, term) for hook_point in relevant)), None)
        if reason is None:
            taken.append(site.path)
        else:
            refused[site.path] = reason
    return Fit(tuple(taken), refused, None if taken or refused else why_missing(host, hook_points[0]))


def why_missing(host: Host, hook_point: HookPoint) -> str:
    """Return why no site of `host` has `hook_point`."""
    reasons = (site.missing[hook_point] for site in host.sites if hook_point in site.missing)
    return next(reasons, _DEFAULT_REASONS.get(hook_point, "none of its sites has this hook point"))


def skipped_sites(host: Host, spec: GraftSpec) -> list[str]:
    """Return warnings about sites that match a where-clause but lack the hook point.

    `first` and `last` count only sites with the hook point, so they skip none.
    """
    found = []
    for term in spec.terms:
        for hook_point in graft_types()[term.name].hook_points(term.options):
            covered = [site for site in host.sites if kind_of(hook_point) == site.kind]
            if term.where.kind == "patterns":
                covered = [covered[index] for index in term.where.select(covered)]
            lacking = [site for site in covered if hook_point not in site.targets]
            if lacking and term.where.kind in ("all", "patterns"):
                kind = "MLPs" if covered[0].kind == "mlp" else "attention sites"
                reasons = dict.fromkeys(_refusal(site, hook_point, term) or "" for site in lacking)
                why = "; ".join(reason.partition(";")[0] for reason in reasons)
                found.append(f"{term.name} skips {len(lacking)} of {len(covered)} {kind}: {why}.")
    return list(dict.fromkeys(found))


def kind_of(hook_point: HookPoint) -> Literal["attention", "mlp"]:
    """Return the kind of the sites that may have `hook_point`."""
    return "mlp" if hook_point.startswith("mlp.") else "attention"


def _refusal(site: Site, hook_point: HookPoint, term: Term) -> str | None:
    if hook_point not in site.targets:
        return site.missing.get(hook_point, _DEFAULT_REASONS.get(hook_point, f"there is no hook point {hook_point}"))
    return graft_types()[term.name].refusal(site.geometry, hook_point, term.options)
