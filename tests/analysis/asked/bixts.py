"""A small BiXT, and the model whose latents and tokens attend one after the other."""

from __future__ import annotations

from typing import Any

import timm
from torch import nn

import attngraft.models  # noqa: F401 - registers them
from tests.analysis.asked.asking import SIDE, sharp


def bixt(name: str = "bixt_ti_l64_p16", **changes: Any) -> nn.Module:
    """Of three layers and 8 latents, on a map of 4 x 4."""
    shape = {"img_size": SIDE, "patch_size": 8, "num_latents": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}
    return sharp(timm.create_model(name, **shape | changes))
