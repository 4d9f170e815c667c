"""Examination of a model: sites, hook points, grafts that fit, and attention outside of sites."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from attngraft.attention import HOOK_POINTS, plain_class
from attngraft.errors import HostError
from attngraft.grafting.fit import Fit, fit, kind_of
from attngraft.grafting.spec import parse
from attngraft.hosts import Host, Site, find_host
from attngraft.mechanisms.registry import graft_types
from attngraft.models.attends import Attends, attends, example_image, may_attend
from attngraft.timing.macs import evaluating


@dataclass(frozen=True)
class FoundSite:
    """Description of a site, for display."""

    path: str
    kind: str
    module: str  #: name of the host's class of the module
    shape: str  #: tokens, width, heads
    hook_points: tuple[str, ...]
    missing: Mapping[str, str]  #: hook point -> why the site lacks it
    record_tensors: tuple[str, ...] = ()  #: tensors for `attngraft.record` besides those at hook points


@dataclass(frozen=True)
class Unread:
    """A module that computes attention and is not part of a site: facts for writing an adapter."""

    path: str
    module: str
    how: str  #: "fused", "softmax" (with the axis, unless it runs over tokens) or "not run"
    arguments: tuple[str, ...]  #: arguments of its forward
    children: tuple[str, ...]


@dataclass(frozen=True)
class Examination:
    """Results of `attngraft doctor --host`."""

    model: str  #: name of its class
    adapter: str | None
    refusal: str | None  #: why no adapter supports it
    sites: tuple[FoundSite, ...] = ()
    grafts: Mapping[str, Fit] | None = None  #: graft with default options -> the sites that accept or refuse it
    unread: tuple[Unread, ...] = ()
    not_run: str | None = None  #: why the forward pass failed


def examine(model: nn.Module, inputs: Sequence[Tensor] | None = None) -> Examination:
    """Examine `model` without changing it; on the meta device nothing is computed.

    Attention is detected in a forward pass. If the model cannot be run (for example because its inputs are
    unknown), modules whose code names a softmax or an attention function are returned instead, and `not_run` has the error.

    Args:
        inputs: inputs of the model's forward; None: example inputs of the adapter, or an image if there is no adapter.
    """
    name = plain_class(model).__name__
    try:
        host = find_host(model)
        sites = host.sites
    except HostError as error:
        seen, not_run = _seen(model, lambda: example_image(model) if inputs is None else inputs)
        return Examination(name, None, str(error), unread=tuple(_unread(model, each) for each in seen), not_run=not_run)
    if inputs is not None:
        seen, not_run = _seen(model, lambda: inputs)
    else:
        seen, not_run = _seen(host.core, lambda: host.adapter.example_inputs(host.core, batch=1))
        seen = [replace(each, path=f"{host.prefix}{each.path}".rstrip(".")) for each in seen]
    held = {f"{host.prefix}{path}" for site in sites for path in (site.path, *site.targets.values())}
    rest = [each for each in seen if not any(_same_branch(each.path, path) for path in held)]
    return Examination(
        name,
        host.adapter.name,
        None,
        sites=tuple(_found(host, site) for site in sites),
        grafts={graft: fit(host, parse(graft).terms[0]) for graft in graft_types()},
        unread=tuple(_unread(model, each) for each in rest),
        not_run=not_run,
    )


def _seen(model: nn.Module, inputs: Callable[[], Sequence[Tensor]]) -> tuple[list[Attends], str | None]:
    """Return the modules that compute attention, and the error if the model could not be run on `inputs`."""
    try:
        with evaluating(model):  # keeps running statistics unchanged
            return attends(model, inputs()), None
    except Exception as error:
        return may_attend(model), f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _same_branch(path: str, target: str) -> bool:
    return path == target or path.startswith(f"{target}.") or target.startswith(f"{path}.")


def _found(host: Host, site: Site) -> FoundSite:
    geometry: Any = site.geometry
    tokens = "any number of" if geometry.tokens is None else geometry.tokens
    more = "" if site.kind == "attention" else f", {geometry.hidden} hidden"
    if site.kind == "attention" and (site.targets or site.record_tensors):  # otherwise the heads are unknown
        more = f", {geometry.heads} heads"
    own = [hook_point for hook_point in HOOK_POINTS if kind_of(hook_point) == site.kind]
    return FoundSite(
        path=site.path,
        kind=site.kind,
        module=plain_class(host.module(next(iter(site.targets.values()), site.path))).__name__,
        shape=f"{tokens} tokens of {geometry.dim}{more}",
        hook_points=tuple(hook_point for hook_point in own if hook_point in site.targets),
        missing={hook_point: reason for hook_point, reason in site.missing.items() if kind_of(hook_point) == site.kind},
        record_tensors=tuple(site.record_tensors),
    )


def _unread(model: nn.Module, each: Attends) -> Unread:
    module = model.get_submodule(each.path)
    return Unread(
        path=each.path or "the model itself",
        module=each.module,
        how=each.how if each.over_tokens else f"{each.how} over {each.over}",
        arguments=tuple(name for name in inspect.signature(type(module).forward).parameters if name != "self"),
        children=tuple(name for name, _ in module.named_children()),
    )
