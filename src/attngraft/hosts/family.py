"""Base class of adapters that find blocks by class, their shape probe, and tables of model families."""

import importlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import NoneType
from typing import Any, ClassVar, TypeAlias, cast

import torch
from torch import Tensor, nn

from attngraft.attention import GraftedModule, is_graft, plain_class
from attngraft.hosts.adapter import HostAdapter, Site
from attngraft.hosts.patched import patch_classes
from attngraft.tensors import on_meta

Sites: TypeAlias = Iterator[Site]  #: in forward order
_Shapes: TypeAlias = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
_SETTINGS = (bool, int, float, str, tuple, NoneType)


class ShapeProbe:
    """Input and output shapes of every module of a host, for one example.

    Computed on first use, by a forward pass of a copy on the meta device; cached for models of the same structure.
    """

    _cache: ClassVar[OrderedDict[Any, _Shapes]] = OrderedDict()  #: least recently used first
    _cache_size: ClassVar[int] = 32

    def __init__(self, adapter: HostAdapter, model: nn.Module) -> None:
        self.model: Any = model
        self.adapter = adapter

    def input_shape(self, path: str) -> tuple[int, ...]:
        """Return the shape of the first argument of the module at `path`."""
        return self._shapes[path][0]

    def output_shape(self, path: str) -> tuple[int, ...]:
        """Return the shape of the output of the module at `path`."""
        return self._shapes[path][1]

    @cached_property
    def _shapes(self) -> _Shapes:
        key = structure(self.model)
        if key is None:
            return self._run()
        key = (type(self.adapter), key)
        if key not in self._cache:
            self._cache[key] = self._run()
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return self._cache[key]

    def _run(self) -> _Shapes:
        shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        copy = on_meta(self.model).eval()
        self.adapter.forget(copy)

        def hook(path: str) -> Any:
            def note(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
                if path not in shapes and arguments and isinstance(arguments[0], Tensor) and isinstance(output, Tensor):
                    shapes[path] = tuple(arguments[0].shape), tuple(output.shape)

            return note

        for path, module in copy.named_modules():
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
            module.register_forward_hook(hook(path))
        with torch.no_grad():
            copy(*self.adapter.example_inputs(copy, batch=1))
        return shapes


def structure(model: nn.Module) -> object | None:
    """Return a cache key for the shapes in a host: the classes, sizes and settings of its modules.

    Returns None if a module's forward was replaced, because the key would then be incomplete.
    """
    found: list[object] = []
    for path, module in model.named_modules():
        if is_graft(path):
            continue
        members = vars(module)
        if "forward" in members:
            return None
        settings = [
            (name, repr(value))
            for name, value in members.items()
            if isinstance(value, _SETTINGS) and name != "training"
        ]
        sizes = [(name, value.shape) for name, value in members["_parameters"].items() if value is not None]
        found.append((path, plain_class(module), tuple(settings), tuple(sizes)))
    return (repr(getattr(model, "pretrained_cfg", None)), *found)


#: function of (block, path of the block, shape probe) that returns the block's sites in forward order
BlockReader: TypeAlias = Callable[[Any, str, ShapeProbe], Sites]


class BlockFamily(HostAdapter):
    """Base class of adapters that find blocks by exact class, wherever they are in the model."""

    module_name: ClassVar[str]  #: full name of a module of the package, with {0} for its short name
    models: ClassVar[tuple[type[nn.Module], ...]]
    blocks: ClassVar[Mapping[type[nn.Module], BlockReader]]

    @classmethod
    def find_class(cls, name: str) -> type[nn.Module]:
        """Import a class of the package by its short name (`pit.PoolingVisionTransformer`)."""
        module, _, kind = name.partition(".")
        return cast(type[nn.Module], getattr(importlib.import_module(cls.module_name.format(module)), kind))

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
    """A row of a table of families.

    Classes are imported when the adapter is created, so a class missing from a release affects only its row. A name with a
    dot is the short name of a class (`pit.PoolingVisionTransformer`); a name without a dot is appended to each prefix.
    """

    name: str
    summary: str
    prefixes: tuple[str, ...] = ()  #: beginnings of short class names, to which names without a dot are appended
    models: tuple[str, ...]
    blocks: Mapping[str, BlockReader]
    #: host class -> base of its patched class
    templates: Mapping[str, type[GraftedModule]] = field(default_factory=dict)
    #: further patched classes, shared with other families
    patched: Mapping[type[nn.Module], type[GraftedModule]] = field(default_factory=dict)
    members: Mapping[str, Any] = field(default_factory=dict)  #: further attributes of the adapter
    base: type[BlockFamily] | None = None  #: base class of the adapter; None: the table's base
    module: str = ""  #: module where pickle finds the patched classes; set by `family_table`

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
    """Return the rows by name; `module` is the name of the module that defines the table."""
    return {row.name: replace(row, module=module, base=row.base or base) for row in rows}


def patched_by_name(table: Mapping[str, Family], name: str) -> type[GraftedModule]:
    """Return the patched class `name` of a row in the table, for unpickling.

    Raises:
        AttributeError: no row has a patched class of this name.
    """
    for row in table.values():
        hosts = (short for host in row.templates for short in row.short_names(host))
        if any(name == f"Grafted{short.rpartition('.')[2]}" for short in hosts):
            return next(kind for kind in row.adapter.patched.values() if kind.__name__ == name)
    raise AttributeError(f"no family has a patched class {name!r}")
