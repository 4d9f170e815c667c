"""Networks of a user, as `module:` hosts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Reads a value while it is built, which the meta device cannot do."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
        self.conv, self.fc = nn.Conv2d(1, width, 3), nn.Linear(width, classes)
        self.attngraft_input = {"input_size": (1, 8, 8), "mean": (0.5,), "std": (0.25,)}

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.conv(images).relu().mean((2, 3)))


def make(num_classes: int = 3, width: int = 4) -> nn.Module:
    return Net(num_classes, width)


def fixed() -> nn.Module:
    return Net(3, 4)


def blind(num_classes: int = 3) -> nn.Module:
    model = Net(num_classes, 4)
    del model.attngraft_input
    return model


def loading(num_classes: int = 3, pretrained: bool = True) -> nn.Module:
    model = Net(num_classes, 4)
    nn.init.constant_(model.fc.bias, float(pretrained))
    return model


def nothing() -> Any:
    return {"a": 1}


def failing() -> nn.Module:
    raise LookupError("no such checkpoint")


number = 7
