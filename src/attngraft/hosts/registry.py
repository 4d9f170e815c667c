"""Host adapters by name, and how a host is found in whatever a user hands over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from attngraft.attention import GraftedModule, with_originals
from attngraft.errors import HostError
from attngraft.hosts import packages
from attngraft.hosts.adapter import HostAdapter, Site
from attngraft.hosts.partial import rest_of
from attngraft.hosts.unread import why_unread

_adapters: dict[str, HostAdapter] = {}


def register_host(adapter: HostAdapter) -> HostAdapter:
    """Make `adapter` known. Later ones are asked first, so a third party can serve a model that a built-in refuses.

    Raises:
        ValueError: its name is taken by another adapter.
    """
    if adapter.name in _adapters and type(_adapters[adapter.name]) is not type(adapter):
        raise ValueError(f"a host adapter named {adapter.name!r} is registered already")
    _adapters[adapter.name] = adapter
    return adapter


def host_adapters() -> dict[str, HostAdapter]:
    """All adapters by name, built-in ones first; those for another package's models once such a model was met."""
    packages.load_needed()
    return dict(_adapters)


def missing_hosts() -> dict[str, str]:
    """Import every adapter, also those for packages that one can do without; names those that cannot be had, and why."""
    return packages.load_all()


def patched_class(module: nn.Module, adapter: HostAdapter | None = None) -> type[GraftedModule] | None:
    """The patched class of `module`'s exact class, if an adapter has one; that of its host's `adapter` goes first."""
    packages.load_met([module])
    for each in (*(() if adapter is None else (adapter,)), *host_adapters().values()):
        if type(module) in each.patched:
            return each.patched[type(module)]
    return None


@dataclass(frozen=True)
class Host:
    """A model, the supported host found in it, and the adapter that reads it."""

    model: nn.Module
    core: nn.Module
    prefix: str  #: path of `core` in `model`, with a trailing dot, or nothing
    adapter: HostAdapter

    @cached_property
    def sites(self) -> list[Site]:
        with with_originals(self.core):  # as its adapter knows it
            return self.adapter.sites(self.core)

    def module(self, path: str) -> nn.Module:
        """The module at a host path."""
        return self.core.get_submodule(path)

    def architecture(self) -> dict[str, Any]:
        with with_originals(self.core):
            return self.adapter.architecture(self.core)


def find_host(model: nn.Module) -> Host:
    """The supported host that `model` is, or holds (as timm's feature getter, or a wrapper of yours, does).

    Raises:
        HostError: the model is wrapped in a way that hides its classes (compiled, DDP, FSDP, ...), no adapter knows it,
            or it holds several hosts, or only torch's part of another package's attention can be read.
    """
    _refuse_wrapped(model)
    missing = packages.load_met(model.modules())
    adapters = list(reversed(host_adapters().values()))
    found: list[tuple[str, nn.Module, HostAdapter]] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{outer}.") or not outer for outer, _, _ in found):
            continue
        adapter = next((adapter for adapter in adapters if adapter.recognizes(module)), None)
        if adapter is not None:
            found.append((path, module, adapter))
    if not found:
        raise HostError(_unknown(model, "and holds none", missing))
    if all(adapter.gathers for _, _, adapter in found) and len({adapter.name for _, _, adapter in found}) == 1:
        if (part := rest_of(model, [path for path, _, _ in found])) is not None:
            own, other = part
            raise HostError(
                _unknown(
                    model,
                    f"and of its attention only torch's own can be read, not the {other}; to graft that part alone: "
                    f'graft(model.get_submodule("{own}"), ...)',
                    missing,
                )
            )
        return Host(model, model, "", found[0][2])
    if len(found) > 1:
        paths = ", ".join(path for path, _, _ in found[:5])
        raise HostError(
            f"the model holds {len(found)} hosts ({paths}); graft them one by one: graft(model.{found[0][0]}, ...)"
        )
    path, core, adapter = found[0]
    return Host(model, core, f"{path}." if path else "", adapter)


def _unknown(model: nn.Module, why: str, missing: Mapping[str, str]) -> str:
    """What to say of a model that no adapter reads: why, what to do, and the adapters for models of its own package.

    All adapters, where it is of no package that has some: of a class of the user's own, for one.
    """
    unread = why_unread(model)
    package = packages.PACKAGES.get(type(model).__module__.partition(".")[0])
    known = list(host_adapters())
    names = [name for name in known if package is not None and name in package.adapters] or known
    said = (
        f"{type(model).__name__} is no host that attngraft knows, {why}.",
        f"What attends in it is not read: {unread}." if unread else "",
        "For a model of your own write an adapter and call attngraft.register_host(adapter).",
        f"Supported: {_by_family(names)} (see: attngraft list hosts).",
        packages.in_words(missing),
    )
    return " ".join(each for each in said if each)


def _by_family(names: Iterable[str]) -> str:
    """Names of adapters on little room: `timm (vit, swin), torch.nn, bixt`."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.partition(".")[0], []).append(name)
    return ", ".join(
        each[0] if len(each) == 1 else f"{family} ({', '.join(name.partition('.')[2] or name for name in each)})"
        for family, each in families.items()
    )


def forget(model: nn.Module) -> None:
    """Drop what a host in `model` keeps from earlier calls: before a copy, and when its values have changed."""
    try:
        host = find_host(model)
    except HostError:
        return
    host.adapter.forget(host.core)


def _refuse_wrapped(model: nn.Module) -> None:
    wrappers = {
        "OptimizedModule": "torch.compile",
        "DistributedDataParallel": "DistributedDataParallel",
        "DataParallel": "DataParallel",
        "FullyShardedDataParallel": "FSDP",
    }
    for path, module in model.named_modules():
        bases = [base.__name__ for base in type(module).__mro__]
        wrapper = next((what for name, what in wrappers.items() if name in bases), None)
        wrapper = wrapper or ("fully_shard" if "FSDPModule" in bases else None)
        if isinstance(module, torch.jit.ScriptModule):
            wrapper = "torch.jit"
        elif parametrize.is_parametrized(module):
            wrapper = "torch.nn.utils.parametrize"
        if wrapper:
            where = f" at {path}" if path else ""
            other = "; module.compile() compiles without wrapping" if wrapper == "torch.compile" else ""
            raise HostError(
                f"the model is wrapped already{where} ({wrapper}); graft the plain model first, then wrap it{other}"
            )
