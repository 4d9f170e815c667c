"""Where a graft fits a host, site by site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attngraft.anatomy import Stage
from attngraft.grafting.spec import Term
from attngraft.hosts import Host, Site
from attngraft.mechanisms.registry import graft_types


@dataclass(frozen=True)
class Fit:
    """Which sites of a host take a graft, and why the others do not."""

    taken: tuple[str, ...]  #: paths of sites
    refused: dict[str, str]  #: path -> reason

    def __str__(self) -> str:
        return f"{len(self.taken)} of {len(self.taken) + len(self.refused)}"


def fit(host: Host, term: Term) -> Fit:
    """Where `term` could stand: all sites of the kind of its stages, whatever its where-clause says.

    Raises:
        HostError: the adapter does not know the form of a module in the host.
    """
    graft_type = graft_types()[term.name]
    taken: list[str] = []
    refused: dict[str, str] = {}
    stages = graft_type.stages(term.options)
    for site in host.sites:
        asked = [stage for stage in stages if kind_of(stage) == site.kind]
        if not asked:
            continue
        reasons = [_refusal(site, stage, term) for stage in asked]
        reason = next((each for each in reasons if each), None)
        if reason is None:
            taken.append(site.path)
        else:
            refused[site.path] = reason
    return Fit(tuple(taken), refused)


def kind_of(stage: Stage) -> Literal["attention", "mlp"]:
    """The kind of site that has `stage`."""
    return "mlp" if stage.startswith("mlp.") else "attention"


def _refusal(site: Site, stage: Stage, term: Term) -> str | None:
    if stage not in site.carriers:
        return site.missing.get(stage, f"it has no stage {stage}")
    return graft_types()[term.name].refusal(site.geometry, stage, term.options)
