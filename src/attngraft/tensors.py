"""Tensors as safetensors takes them, and modules without theirs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, of which no two share memory (tied weights do)."""
    seen: set[int] = set()
    found = {}
    for name, value in tensors.items():
        tensor = value.detach().cpu()
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone(memory_format=torch.contiguous_format) if place in seen else tensor.contiguous()
        seen.add(place)
    return found


def on_meta(model: nn.Module) -> nn.Module:
    """A copy of `model` without values: parameters, buffers and other tensors of its modules are on the meta device."""
    memo: dict[int, Any] = {}
    attributes = [value for module in model.modules() for value in vars(module).values()]
    kept = [value for each in attributes if isinstance(each, dict) for value in each.values()]  # from earlier calls
    for tensor in [*model.buffers(), *attributes, *kept]:
        if isinstance(tensor, Tensor):
            memo[id(tensor)] = tensor.detach().to("meta")
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, memo)
