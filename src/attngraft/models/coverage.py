"""Coverage: how many of timm's models, counted by name, accept each graft."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import timm

from attngraft.errors import HostError
from attngraft.grafting.fit import Fit, fit
from attngraft.grafting.spec import parse
from attngraft.hosts import find_host
from attngraft.hosts.unread import why_unread
from attngraft.models.attends import attends, example_image
from attngraft.tensors import meta_device

#: the counted grafts: one reweights heads, the other replaces the mix of queries, keys and values
COUNTED = ("horizontal", "bisa")


@dataclass(frozen=True)
class Covered:
    """Coverage of one model name."""

    name: str
    family: str  #: timm file that defines the model
    attention: str | None  #: class of the first module that attends over tokens; None: no such module
    host: str | None = None  #: name of the adapter that supports the model
    refusal: str | None = None  #: why no adapter supports the model
    takes: tuple[str, ...] = ()  #: grafts that at least one site accepts
    reasons: Mapping[str, str] = field(default_factory=dict)  #: graft -> why the first of the refusing sites refuses it


@dataclass(frozen=True)
class FamilyCoverage:
    """Models of one timm file that attend over tokens."""

    family: str
    names: tuple[str, ...]
    takes: Mapping[str, tuple[str, ...]]  #: graft -> names of models with at least one site that accepts it
    hosts: tuple[str, ...]  #: names of the adapters that support these models
    why: tuple[str, ...]  #: reasons for refusals, each with the number of model names

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def timm_names() -> list[str]:
    """Return the names of timm's own models, without models that other packages register."""
    return [name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith("timm.")]


def cover(name: str) -> Covered:
    """Return the coverage of one model, created on the meta device at its default image size."""
    family = timm.model_entrypoint(name).__module__.removeprefix("timm.models.")
    with meta_device():
        model = timm.create_model(name).eval()
    seen = attends(model, example_image(model), first=True)
    if not seen or not seen[-1].over_tokens:
        return Covered(name, family, None)
    attention = seen[-1].module
    try:
        host = find_host(model)
        fits: dict[str, Fit] = {graft: fit(host, parse(graft).terms[0]) for graft in COUNTED}
    except HostError as error:
        known = not str(error).startswith(type(model).__name__)
        unread = why_unread(model) or f"no adapter reads {type(model).__name__}"
        refusal = str(error) if known else unread
        return Covered(name, family, attention, refusal=refusal)
    takes = tuple(graft for graft, found in fits.items() if found.taken)
    reasons = {graft: next(iter(found.refused.values())) for graft, found in fits.items() if found.refused}
    return Covered(name, family, attention, host=host.adapter.name, takes=takes, reasons=reasons)


def by_family(found: Iterable[Covered]) -> list[FamilyCoverage]:
    """Return one row per timm file with models that attend over tokens, the largest first."""
    families: dict[str, list[Covered]] = {}
    for each in found:
        if each.attention:
            families.setdefault(each.family, []).append(each)
    rows = []
    for family, members in families.items():
        why = Counter(each.refusal for each in members if each.refusal)
        why.update(f"{graft}: {reason}" for each in members for graft, reason in each.reasons.items())
        rows.append(
            FamilyCoverage(
                family=family,
                names=tuple(each.name for each in members),
                takes={graft: tuple(each.name for each in members if graft in each.takes) for graft in COUNTED},
                hosts=tuple(sorted({each.host for each in members if each.host})),
                why=tuple(f"{reason} ({count} of {len(members)})" for reason, count in why.most_common()),
            )
        )
    return sorted(rows, key=lambda row: (-len(row.names), row.family))


def shares(rows: Iterable[FamilyCoverage]) -> dict[str, float]:
    """Return, for each graft, the share of attention models, counted by name, that accept it.

    Raises:
        ValueError: no model attends over tokens.
    """
    rows = list(rows)
    total = sum(len(row.names) for row in rows)
    if not total:
        raise ValueError("rows contain no model that attends over tokens")
    return {graft: sum(len(row.takes[graft]) for row in rows) / total for graft in COUNTED}
