"""Lists of available grafts and hosts."""

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any

from attngraft._moved import renamed
from attngraft.attention import HookPoint
from attngraft.grafting.spec import PRESETS
from attngraft.hosts import host_adapters, missing_hosts
from attngraft.hosts.registry import package_of_host
from attngraft.mechanisms.registry import graft_types, package_of_graft


@dataclass(frozen=True)
class GraftInfo:
    """A registered graft."""

    name: str
    summary: str
    source: str
    hook_points: tuple[HookPoint, ...]  #: with default options
    options: dict[str, Any]  #: option -> default
    choices: dict[str, str]  #: option -> type or allowed values, as text
    identity: bool  #: whether the graft, with default options, starts as the identity
    package: str = "attngraft"  #: name of the package that it comes from
    stages = renamed("stages", "hook_points")


@dataclass(frozen=True)
class HostInfo:
    """A family of models that can be grafted."""

    name: str
    summary: str
    package: str = "attngraft"  #: name of the package that the adapter comes from


def list_grafts() -> list[GraftInfo]:
    """Return all registered grafts, built-in ones first."""
    return [_describe(graft_type) for graft_type in graft_types().values()]


def list_presets() -> dict[str, str]:
    """Return the presets: short name -> specification."""
    return dict(PRESETS)


def list_hosts() -> list[HostInfo]:
    """Return all registered host families.

    The summary of an unavailable family is the reason why it is unavailable, such as a missing package.
    """
    missing = missing_hosts()  # called first, because it imports the adapters of optional packages
    found = [HostInfo(name, each.summary, package_of_host(name)) for name, each in host_adapters().items()]
    return [*found, *(HostInfo(name, reason) for name, reason in missing.items())]


def _describe(graft_type: Any) -> GraftInfo:
    defaults = graft_type.Options()
    hints = typing.get_type_hints(graft_type.Options)
    return GraftInfo(
        name=graft_type.name,
        summary=graft_type.summary,
        source=graft_type.source,
        hook_points=graft_type.hook_points(defaults),
        options=dataclasses.asdict(defaults),
        choices={name: _type_text(hint) for name, hint in hints.items()},
        identity=graft_type.starts_as_identity(defaults),
        package=package_of_graft(graft_type.name),
    )


def _type_text(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    return hint.__name__ if isinstance(hint, type) else str(hint)
