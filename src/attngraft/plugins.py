"""Grafts, hosts and tasks of installed packages, declared as entry points:

[project.entry-points."attngraft.grafts"]
head_gain = "mine.head_gain:HeadGainType"

[project.entry-points."attngraft.hosts"]
tinyformer = "mine.tinyformer:TinyFormerHost"

[project.entry-points."attngraft.tasks"]
bars = "mine.bars:Bars"
"""

import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

log = logging.getLogger(__name__)


def declared(kind: Literal["grafts", "hosts", "tasks"]) -> list[EntryPoint]:
    """Return the entry points of all installed packages for `kind`, without importing them."""
    return list(entry_points(group=f"attngraft.{kind}"))


def package_of(entry: EntryPoint) -> str:
    """Return the name of the package that declares `entry`."""
    return entry.value.partition(".")[0] if entry.dist is None else entry.dist.name


def register_declared(
    kind: Literal["grafts", "hosts"], base: type[Any], register: Callable[[Any], Any]
) -> dict[str, str]:
    """Import what installed packages declare for `kind`, and `register` it: instances or subclasses of `base`.

    An entry point that cannot be imported or registered is skipped with a warning that names its package.

    Returns:
        The names of the registered objects, with their packages.
    """
    packages = {}
    for entry in declared(kind):
        try:
            found = entry.load()
            made: Any = found() if isinstance(found, type) else found
            if not isinstance(made, base):
                raise TypeError(f"it is not a {base.__name__}")
            if missing := [name for name in base.__annotations__ if not hasattr(made, name)]:
                raise TypeError(f"it lacks {', '.join(missing)}")
            register(made)
            name: str = made.name
        except Exception as error:  # anything may fail in the module of another package
            log.warning(
                "attngraft.%s of the package %s: ignoring %s (%s): %s: %s; update or uninstall the package",
                *(kind, package_of(entry), entry.name, entry.value, type(error).__name__, error),
            )
        else:
            packages[name] = package_of(entry)
    return packages
