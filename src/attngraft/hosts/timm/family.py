"""What timm's families share: blocks found by their class, shapes seen in a forward pass, the head's names."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from types import NoneType
from typing import Any, ClassVar, TypeAlias, cast

import torch
from timm.models._features import FeatureDictNet, FeatureListNet
from torch import Tensor, nn

from attngraft.attention import is_graft, plain_class
from attngraft.hosts.adapter import HostAdapter, Site, norm_state, own_state, random_images
from attngraft.tensors import on_meta

_Shapes: TypeAlias = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
_PLAIN = (bool, int, float, str, tuple, NoneType)


class Look:
    """What one input looks like on its way through a host: the shapes in and out of every module.

    Seen in a forward pass of a copy on the meta device, so nothing is computed and nothing of the host is touched; it is
    made when somebody asks first. What was seen is kept for models of the same form.
    """

    _seen: ClassVar[OrderedDict[Any, _Shapes]] = OrderedDict()  #: the latest forms
    _kept: ClassVar[int] = 32

    def __init__(self, adapter: HostAdapter, model: nn.Module) -> None:
        self.model: Any = model
        self._adapter = adapter

    def entering(self, path: str) -> tuple[int, ...]:
        """Shape of the first argument of the module at `path`, for one image."""
        return self._shapes[path][0]

    def leaving(self, path: str) -> tuple[int, ...]:
        """Shape of what the module at `path` returned."""
        return self._shapes[path][1]

    def ran(self, path: str) -> bool:
        """Whether the module at `path` took part."""
        return path in self._shapes

    @cached_property
    def _shapes(self) -> _Shapes:
        key = form(self.model)
        if key is None:
            return self._pass()
        key = (type(self._adapter), key)
        if key not in self._seen:
            self._seen[key] = self._pass()
            if len(self._seen) > self._kept:
                self._seen.popitem(last=False)
        self._seen.move_to_end(key)
        return self._seen[key]

    def _pass(self) -> _Shapes:
        shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        ghost = on_meta(self.model).eval()
        self._adapter.forget(ghost)

        def hook(path: str) -> Any:
            def note(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
                if path not in shapes and arguments and isinstance(arguments[0], Tensor) and isinstance(output, Tensor):
                    shapes[path] = tuple(arguments[0].shape), tuple(output.shape)

            return note

        for path, module in ghost.named_modules():
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
            module.register_forward_hook(hook(path))
        with torch.no_grad():
            ghost(*self._adapter.example_inputs(ghost, batch=1))
        return shapes


def form(model: nn.Module) -> object | None:
    """All that the shapes within a host follow from, to compare models by: classes, sizes, settings; grafts do not count.

    None where that cannot be told: a module's own forward was replaced.
    """
    found: list[object] = []
    for path, module in model.named_modules():
        if is_graft(path):
            continue
        held = vars(module)
        if "forward" in held:
            return None
        plain = [
            (name, repr(value)) for name, value in held.items() if isinstance(value, _PLAIN) and name != "training"
        ]
        sizes = [(name, value.shape) for name, value in held["_parameters"].items() if value is not None]
        found.append((path, plain_class(module), tuple(plain), tuple(sizes)))
    return (repr(getattr(model, "pretrained_cfg", None)), *found)


class TimmFamily(HostAdapter):
    """An adapter that finds its blocks by class, wherever they stand in the model.

    A family names its model classes (`models`) and block classes (`blocks`), and reads one block at a time.
    """

    models: ClassVar[tuple[type[nn.Module], ...]]
    blocks: ClassVar[tuple[type[nn.Module], ...]]

    @abstractmethod
    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        """The sites of one block, in the order in which it runs them.

        Raises:
            HostError: a module in the block has a form that this adapter does not know.
        """

    def recognizes(self, model: nn.Module) -> bool:
        if type(model) in (
            FeatureListNet,
            FeatureDictNet,
        ):  # only blocks are left; those of other families do not count
            own = [kind for kind in self.blocks if kind.__module__ == self.models[0].__module__]
            return any(plain_class(module) in own for module in model.modules())
        return type(model) in self.models

    def canonical(self, path: str) -> str:
        """`features_only` makes `stages.0` to `stages_0`."""
        return re.sub(r"^([a-z]+)_(\d+)(?=\.|$)", r"\1.\2", path)

    def sites(self, model: nn.Module) -> list[Site]:
        return list(self._sites(model))

    def _sites(self, model: nn.Module) -> Iterator[Site]:
        look = Look(self, model)
        for path, module in model.named_modules():
            if plain_class(module) in self.blocks and not is_graft(path):
                for site in self.read(module, path, look):
                    yield replace(site, path=self.canonical(site.path))

    def example_inputs(self, model: nn.Module, *, batch: int) -> tuple[Tensor, ...]:
        return random_images(model, image_size(model), batch=batch)

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        names = getattr(model, "pretrained_cfg", {}).get("classifier") or "head"
        heads = (names,) if isinstance(names, str) else tuple(names)
        return {"head": own_state(model, *heads, "fc_norm"), "norms": norm_state(model)}


def image_size(model: nn.Module) -> tuple[int, int, int]:
    """(channels, rows, columns) of the images that a timm model was made for."""
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    sizes = (
        getattr(module, "img_size", None) for module in model.modules()
    )  # the model or its patch embedding says it
    made_for = next((size for size in sizes if size), None)
    if made_for is None:
        made_for = cast(Mapping[str, Any], getattr(model, "pretrained_cfg", {})).get("input_size", (3, 224, 224))[-2:]
    rows, columns = (made_for, made_for) if isinstance(made_for, int) else made_for
    return first.in_channels, rows, columns
