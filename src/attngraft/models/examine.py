"""What attngraft finds in a model: its sites and stages, which grafts fit where, and what attends besides."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from attngraft.anatomy import STAGES, plain_class
from attngraft.errors import HostError
from attngraft.grafting.fit import Fit, fit, kind_of
from attngraft.grafting.spec import parse
from attngraft.hosts import Host, Site, find_host
from attngraft.hosts.adapter import random_images
from attngraft.mechanisms.registry import graft_types
from attngraft.models.attends import Attends, attends


@dataclass(frozen=True)
class FoundSite:
    """A site, as a person reads it."""

    path: str
    kind: str
    module: str  #: class of the module there, the host's own
    shape: str  #: tokens, width, heads
    stages: tuple[str, ...]
    missing: Mapping[str, str]  #: stage of this kind -> why the site has none


@dataclass(frozen=True)
class Unread:
    """A module that attends, and is no site with stages: what an adapter would have to know about it."""

    path: str
    module: str
    how: str  #: "fused" or "softmax", and what over where not over tokens
    arguments: tuple[str, ...]  #: of its forward
    children: tuple[str, ...]


@dataclass(frozen=True)
class Examination:
    """All that `attngraft doctor --host` says."""

    model: str  #: class
    adapter: str | None
    refusal: str | None  #: why no adapter reads it
    sites: tuple[FoundSite, ...] = ()
    grafts: Mapping[str, Fit] | None = None  #: graft with its default options -> where it fits
    unread: tuple[Unread, ...] = ()


def examine(model: nn.Module) -> Examination:
    """Look into `model` without changing it; on the meta device nothing is computed.

    Raises:
        HostError: it is wrapped (compiled, DDP, ...), so that nothing can be seen.
    """
    name = plain_class(model).__name__
    try:
        host = find_host(model)
        sites = host.sites
    except HostError as error:
        size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))
        seen = attends(model, random_images(model, tuple(size), batch=1))
        return Examination(name, None, str(error), unread=tuple(_unread(model, each) for each in seen))
    prefix = host.prefix
    seen = _seen(host)
    held = {path for site in sites for path in site.carriers.values()}
    rest = [each for each in seen if not any(_same_branch(each.path, path) for path in held)]
    return Examination(
        name,
        host.adapter.name,
        None,
        sites=tuple(_found(host, site) for site in sites),
        grafts={graft: fit(host, parse(graft).terms[0]) for graft in graft_types()},
        unread=tuple(_unread(host.core, each, prefix) for each in rest),
    )


def _seen(host: Host) -> list[Attends]:
    try:
        inputs = host.adapter.example_inputs(host.core, batch=1)
    except HostError:  # somebody's own model, read by what it holds: nobody knows what it takes
        return []
    return attends(host.core, inputs)


def _same_branch(path: str, carrier: str) -> bool:
    return path == carrier or path.startswith(f"{carrier}.") or carrier.startswith(f"{path}.")


def _found(host: Host, site: Site) -> FoundSite:
    geometry: Any = site.geometry
    tokens = "any number of" if geometry.tokens is None else geometry.tokens
    more = f", {geometry.heads} heads" if site.kind == "attention" else f", {geometry.hidden} hidden"
    own = [stage for stage in STAGES if kind_of(stage) == site.kind]
    return FoundSite(
        path=site.path,
        kind=site.kind,
        module=plain_class(host.module(next(iter(site.carriers.values()), site.path))).__name__,
        shape=f"{tokens} tokens of {geometry.dim}{more}",
        stages=tuple(stage for stage in own if stage in site.carriers),
        missing={stage: reason for stage, reason in site.missing.items() if kind_of(stage) == site.kind},
    )


def _unread(model: nn.Module, each: Attends, prefix: str = "") -> Unread:
    module = model.get_submodule(each.path)
    return Unread(
        path=f"{prefix}{each.path}" or "the model itself",
        module=each.module,
        how=each.how if each.over_tokens else f"{each.how} over {each.over}",
        arguments=tuple(name for name in inspect.signature(type(module).forward).parameters if name != "self"),
        children=tuple(name for name, _ in module.named_children()),
    )
