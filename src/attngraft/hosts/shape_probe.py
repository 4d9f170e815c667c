"""Shapes inside a host, from a forward pass on the meta device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from types import NoneType
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from attngraft.attention import is_graft, plain_class
from attngraft.hosts.adapter import HostAdapter
from attngraft.tensors import on_meta

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
    """Return everything that determines the shapes in a host, for comparison: classes, sizes, settings; without grafts.

    None if it cannot be determined, because a module's forward was replaced.
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
