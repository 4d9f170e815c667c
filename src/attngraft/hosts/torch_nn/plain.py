"""The host's own way through a module that has its patched class: what runs where nothing is grafted and no graph is made.

There torch has kernels for a whole layer or attention, which round otherwise than the modules one by one.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from attngraft.attention import GraftedModule, plain_class

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def without_graph(module: nn.Module, *inputs: Tensor) -> bool:
    """Whether torch may use those kernels: no gradients, no training."""
    if module.training:
        return False
    tensors = (*inputs, *module.parameters())
    return not (torch.is_grad_enabled() and any(each.requires_grad for each in tensors))


def hooked(module: nn.Module) -> bool:
    """Whether `module`, or one in it, has hooks; then torch runs the modules of a layer one by one."""
    return any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())


def plain_twin(module: ModuleT) -> ModuleT:
    """A module of the host's own class that shares all that `module` holds, but for grafts and listeners."""
    twin: Any = object.__new__(plain_class(module))
    twin.__dict__.update(module.__dict__)
    twin.__dict__.pop("recorder", None)
    twin.__dict__["_modules"] = {
        name: plain_twin(child) if child is not None and _richer(child) else child
        for name, child in module._modules.items()
        if name != "grafts"
    }
    return cast(ModuleT, twin)


def _richer(module: nn.Module) -> bool:
    return any(isinstance(each, GraftedModule) for each in module.modules())
