"""Helpers for tensors: copies without shared storage, and models without values."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous CPU tensors that share no storage, as safetensors requires; tied weights are copied."""
    seen: set[int] = set()
    found = {}
    for name, value in tensors.items():
        tensor = value.detach().cpu()
        storage = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone(memory_format=torch.contiguous_format) if storage in seen else tensor.contiguous()
        seen.add(storage)
    return found


def on_meta(model: nn.Module) -> nn.Module:
    """Return a copy of `model` whose parameters, buffers and other tensors are on the meta device."""
    memo: dict[int, Any] = {}
    attributes = [value for module in model.modules() for value in vars(module).values()]
    kept = [value for each in attributes if isinstance(each, dict) for value in each.values()]  # from earlier calls
    for tensor in [*model.buffers(), *attributes, *kept]:
        if isinstance(tensor, Tensor):
            memo[id(tensor)] = tensor.detach().to("meta")
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, memo)
