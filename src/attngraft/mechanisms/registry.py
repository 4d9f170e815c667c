"""Registry of graft types by name: built-in types and those of installed packages, imported on first use, and others."""

import importlib
from functools import cache
from typing import Any

from attngraft.attention import GraftType
from attngraft.errors import check_types
from attngraft.plugins import register_declared

#: modules that register graft types when imported; a new mechanism adds its line here
BUILT_IN = (
    "attngraft.mechanisms.bisa.graft",
    "attngraft.mechanisms.context_broadcast.graft",
    "attngraft.mechanisms.horizontal_vertical.graft",
    "attngraft.mechanisms.identity.graft",
    "attngraft.mechanisms.local.graft",
)
#: name of a set of grafts -> what is in it; no graft may have one of these names
GRAFT_SETS = {
    "shortlist": "few grafts that suit the host, cheapest first",
    "all": "every registered graft that fits the host",
}
_types: dict[str, GraftType[Any]] = {}


def register_graft(graft_type: GraftType[Any]) -> GraftType[Any]:
    """Register `graft_type` under its name, for specifications, and return it.

    Raises:
        ValueError: the name is already registered for another class, is reserved, or is not a lower-case identifier.
    """
    check_types(graft_type=(graft_type, GraftType))
    name = graft_type.name
    if not name.isidentifier() or name.lower() != name:
        raise ValueError(f"a graft's name must be a lower-case identifier, not {name!r}")
    if name in ("none", *GRAFT_SETS):
        raise ValueError(f"the name {name!r} is reserved; choose another name")
    if name in _types and type(_types[name]) is not type(graft_type):
        raise ValueError(
            f"a graft named {name!r} is already registered ({type(_types[name]).__name__}); choose another name"
        )
    _types[name] = graft_type
    return graft_type


def graft_types() -> dict[str, GraftType[Any]]:
    """Return all graft types by name, built-in ones first."""
    _load()
    return {name: _types[name] for name in sorted(_types, key=lambda name: package_of_graft(name) != "attngraft")}


def package_of_graft(name: str) -> str:
    """Return the name of the package that the graft type called `name` comes from."""
    return _load().get(name) or type(_types[name]).__module__.partition(".")[0]


@cache
def _load() -> dict[str, str]:
    """Register the built-in types, then those of installed packages; return the latter's names with their packages."""
    for module in BUILT_IN:
        importlib.import_module(module)
    return register_declared("grafts", GraftType, register_graft)
