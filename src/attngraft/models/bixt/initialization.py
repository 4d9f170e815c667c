"""How a BiXT starts.

| | "jax", as the published models were trained | "skip", PyTorch's own |
|---|---|---|
| linear layers | Xavier's uniform, a fused projection as one matrix | as `torch.nn.Linear` |
| their biases | 0, but N(0, 1e-6) in the MLPs | |
| the head | 0 | |
| convolutions | LeCun's normal, biases 0 | as `torch.nn.Conv2d` |
| latents | truncated normal of std 0.02 | standard normal |
"""

from __future__ import annotations

from typing import Literal

from timm.layers import lecun_normal_, trunc_normal_
from torch import nn

Initialization = Literal["jax", "skip"]


def initialize_all(model: nn.Module, rule: Initialization) -> None:
    """Initial values of a model with `latents` and a `head`, in place; none for one on the meta device."""
    latents = model.get_parameter("latents")
    if latents.is_meta:  # PyTorch would take its time over nothing
        return
    if rule == "skip":
        nn.init.normal_(latents)
        return
    trunc_normal_(latents, std=0.02)
    for name, module in model.named_modules():
        initialize(module, name)


def initialize(module: nn.Module, name: str) -> None:
    """Initial values, by the rule "jax", of the module called `name` if it is a linear layer or a convolution."""
    if isinstance(module, nn.Conv2d):
        lecun_normal_(module.weight)
    elif not isinstance(module, nn.Linear):
        return
    elif name == "head":
        nn.init.zeros_(module.weight)
    else:
        nn.init.xavier_uniform_(module.weight)
    if module.bias is not None:
        if "mlp" in name:
            nn.init.normal_(module.bias, std=1e-6)
        else:
            nn.init.zeros_(module.bias)
