"""How many of timm's models take which grafts: counted by name, in one pass over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import timm
import torch

from attngraft.errors import HostError
from attngraft.grafting.fit import Fit, fit
from attngraft.grafting.spec import parse
from attngraft.hosts import find_host
from attngraft.hosts.adapter import random_images
from attngraft.hosts.unread import why_unread
from attngraft.models.attends import attends

#: what is counted: a graft that re-weighs heads, and one that replaces how queries, keys and values mix
COUNTED = ("horizontal", "bisa")


@dataclass(frozen=True)
class Covered:
    """One model name."""

    name: str
    family: str  #: the timm file that makes it
    attention: str | None  #: class of the first module that attends over tokens; None: not counted
    host: str | None = None  #: the adapter that reads it
    refusal: str | None = None  #: why no adapter does
    takes: tuple[str, ...] = ()  #: the grafts that at least one of its sites takes
    reasons: Mapping[str, str] = field(default_factory=dict)  #: graft -> why some site refuses it


@dataclass(frozen=True)
class FamilyCoverage:
    """The names of one timm file that attend over tokens."""

    family: str
    names: tuple[str, ...]
    takes: Mapping[str, tuple[str, ...]]  #: graft -> names of which at least one site takes it
    hosts: tuple[str, ...]  #: the adapters that read them
    why: tuple[str, ...]  #: what was refused, and why, each reason once with its number of names

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def timm_names() -> list[str]:
    """The names of all of timm's own models, without those that other packages register."""
    return [name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith("timm.")]


def cover(name: str, grafts: Sequence[str] = COUNTED) -> Covered:
    """What `name` is to attngraft. The model is made on the meta device, at its own size; nothing is computed."""
    family = timm.model_entrypoint(name).__module__.removeprefix("timm.models.")
    with torch.device("meta"):
        model = timm.create_model(name).eval()
    size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))
    seen = attends(model, random_images(model, tuple(size), batch=1), first=True)
    if not seen or not seen[-1].over_tokens:
        return Covered(name, family, None)
    attention = seen[-1].module
    try:
        host = find_host(model)
        fits: dict[str, Fit] = {graft: fit(host, parse(graft).terms[0]) for graft in grafts}
    except HostError as error:
        known = not str(error).startswith(type(model).__name__)
        unread = why_unread(model) or f"no adapter reads {type(model).__name__}"
        refusal = str(error) if known else unread
        return Covered(name, family, attention, refusal=refusal)
    takes = tuple(graft for graft, found in fits.items() if found.taken)
    reasons = {graft: next(iter(found.refused.values())) for graft, found in fits.items() if found.refused}
    return Covered(name, family, attention, host=host.adapter.name, takes=takes, reasons=reasons)


def coverage(names: Iterable[str] | None = None, grafts: Sequence[str] = COUNTED) -> Iterator[Covered]:
    """`cover` for each of `names` (None: all of timm's), those that do not attend over tokens too. It takes minutes."""
    for name in timm_names() if names is None else names:
        yield cover(name, grafts)


def by_family(found: Iterable[Covered], grafts: Sequence[str] = COUNTED) -> list[FamilyCoverage]:
    """One row per timm file with names that attend over tokens, the largest first."""
    families: dict[str, list[Covered]] = {}
    for each in found:
        if each.attention:
            families.setdefault(each.family, []).append(each)
    rows = [_family(name, members, grafts) for name, members in families.items()]
    return sorted(rows, key=lambda row: (-len(row.names), row.family))


def shares(rows: Iterable[FamilyCoverage], grafts: Sequence[str] = COUNTED) -> dict[str, float]:
    """graft -> names that take it, of all names that attend over tokens.

    Raises:
        ValueError: there are none.
    """
    rows = list(rows)
    total = sum(len(row.names) for row in rows)
    if not total:
        raise ValueError("none of these models attends over tokens")
    return {graft: sum(len(row.takes[graft]) for row in rows) / total for graft in grafts}


def _family(name: str, members: list[Covered], grafts: Sequence[str]) -> FamilyCoverage:
    why: Counter[str] = Counter()
    for each in members:
        if each.refusal:
            why[each.refusal] += 1
        why.update(f"{graft}: {reason}" for graft, reason in each.reasons.items())
    return FamilyCoverage(
        family=name,
        names=tuple(each.name for each in members),
        takes={graft: tuple(each.name for each in members if graft in each.takes) for graft in grafts},
        hosts=tuple(sorted({each.host for each in members if each.host})),
        why=tuple(f"{reason} ({count} of {len(members)})" for reason, count in why.most_common()),
    )
