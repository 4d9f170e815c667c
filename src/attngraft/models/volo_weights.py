"""Weights for timm's VOLO: positions for images of another size, which timm leaves to others."""

from __future__ import annotations

from timm.layers import resample_abs_pos_embed_nhwc
from torch import Tensor, nn


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The authors' weights, timm's or ours, with `pos_embed` (1, rows, columns, C) resampled to the model's grid."""
    positions, own = state_dict.get("pos_embed"), getattr(model, "pos_embed", None)
    if positions is None or own is None or positions.ndim != 4 or positions.shape == own.shape:
        return state_dict
    return state_dict | {"pos_embed": resample_abs_pos_embed_nhwc(positions, list(own.shape[1:3]))}
