"""Tensors as safetensors takes them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, of which no two share memory (tied weights do)."""
    seen: set[int] = set()
    found = {}
    for name, value in tensors.items():
        tensor = value.detach().cpu()
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone(memory_format=torch.contiguous_format) if place in seen else tensor.contiguous()
        seen.add(place)
    return found
