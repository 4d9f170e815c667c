"""Adapters that find their blocks by class, and rows of tables for families without a forward of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, cast

from torch import nn

from attngraft.attention import GraftedModule, is_graft, plain_class
from attngraft.hosts.adapter import HostAdapter, Site
from attngraft.hosts.patched import patch_classes
from attngraft.hosts.shape_probe import ShapeProbe

#: (block, its path, shapes of the model) -> the block's sites in forward order
BlockReader: TypeAlias = Callable[[Any, str, ShapeProbe], Iterable[Site]]


class BlockFamily(HostAdapter):
    """An adapter that finds its blocks by exact class, wherever they are in the model."""

    models: ClassVar[tuple[type[nn.Module], ...]]
    blocks: ClassVar[Mapping[type[nn.Module], BlockReader]]

    @classmethod
    def find_class(cls, name: str) -> type[nn.Module]:
        """Import a class of the package by its short name (`pit.PoolingVisionTransformer`)."""
        raise NotImplementedError

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) in self.models

    def sites(self, model: nn.Module) -> list[Site]:
        shapes = ShapeProbe(self, model)
        return [
            replace(site, path=self.canonical(site.path))
            for path, module in model.named_modules()
            if plain_class(module) in self.blocks and not is_graft(path)
            for site in self.blocks[plain_class(module)](module, path, shapes)
        ]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family as a row of a table.

    Classes are imported with the adapter, so a class that a release lacks affects only its row. A name with a dot is a short
    name of one class (`pit.PoolingVisionTransformer`); another one is appended to each of the `prefixes`.
    """

    name: str
    summary: str
    prefixes: tuple[str, ...] = ()  #: short names of classes up to the part that they share
    models: tuple[str, ...]
    blocks: Mapping[str, BlockReader]
    templates: Mapping[str, type[GraftedModule]] = field(
        default_factory=dict
    )  #: host class -> base of its patched class
    patched: Mapping[type[nn.Module], type[GraftedModule]] = field(default_factory=dict)  #: shared with other families
    members: Mapping[str, Any] = field(default_factory=dict)  #: further attributes of the adapter
    base: type[BlockFamily] | None = None  #: base class of the adapter; by default that of the table
    module: str = ""  #: where pickle finds its patched classes; set by `family_table`

    def short_names(self, name: str) -> list[str]:
        return [name] if "." in name else [prefix + name for prefix in self.prefixes]

    @cached_property
    def adapter(self) -> BlockFamily:
        """The adapter of this row.

        Raises:
            ImportError: the package has no such module.
            AttributeError: the package has no such class.
        """

        base = cast(type[BlockFamily], self.base)

        def classes(name: str) -> list[type[nn.Module]]:
            return [base.find_class(short) for short in self.short_names(name)]

        patched = dict(self.patched)
        for name, template in self.templates.items():
            patched |= patch_classes(template, *classes(name), module=self.module)
        members = {
            "__module__": self.module,
            "name": self.name,
            "summary": self.summary,
            "patched": patched,
            "models": tuple(model for name in self.models for model in classes(name)),
            "blocks": {block: reader for name, reader in self.blocks.items() for block in classes(name)},
            **self.members,
        }
        return type(self.name, (base,), members)()


def family_table(module: str, base: type[BlockFamily], *rows: Family) -> dict[str, Family]:
    """Return the rows of a table by name; `module` is the name of the module with the table."""
    return {row.name: replace(row, module=module, base=row.base or base) for row in rows}


def patched_by_name(table: Mapping[str, Family], name: str) -> type[GraftedModule]:
    """Return the patched class called `name` of a table's rows, for unpickling.

    Raises:
        AttributeError: no row has it.
    """
    for row in table.values():
        hosts = (short for host in row.templates for short in row.short_names(host))
        if any(name == f"Grafted{short.rpartition('.')[2]}" for short in hosts):
            return next(kind for kind in row.adapter.patched.values() if kind.__name__ == name)
    raise AttributeError(f"no family has a patched class {name!r}")
