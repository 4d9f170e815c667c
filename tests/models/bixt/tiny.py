"""A tiny BiXT for tests."""

from __future__ import annotations

from typing import Any

import timm
import torch

from attngraft.models.bixt.model import BiXT

#: 4 x 4 tokens
TINY: dict[str, Any] = {
    "img_size": 16,
    "patch_size": 4,
    "stride": 4,
    "embed_dim": 16,
    "num_heads": 2,
    "num_latents": 3,
    "depth": 3,
    "num_classes": 5,
}


def tiny(name: str = "bixt_ti_l64_p16", *, seed: int = 0, scramble: bool = True, **changes: Any) -> BiXT:
    """Of the published names' shape. With `scramble` no value stays at its start, where heads and biases are zero."""
    torch.manual_seed(seed)
    model: BiXT = timm.create_model(name, **{**TINY, **changes})
    if scramble:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def images(*, batch: int = 2, height: int = 16, width: int = 16, channels: int = 3, seed: int = 1) -> torch.Tensor:
    """Standard-normal ones."""
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(seed))
