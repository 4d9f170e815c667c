"""Parameters off the values at which fresh models start, as after some training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def stir(model: nn.Module, chosen: Callable[[str, nn.Parameter], bool], *, by: float = 0.3, seed: int = 5) -> nn.Module:
    """`model`, the same noise added each time to the parameters that are `chosen`; none on the meta device."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.device.type != "meta" and chosen(name, parameter):
                parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return model
