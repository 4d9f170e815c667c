"""Code shared by the mechanisms: initial weights, the layout of heads, and checks of graft options."""

import math
from typing import Literal

from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, Geometry

InitRule = Literal["trunc_normal", "xavier_uniform", "torch"]


def init_matrix(matrix: Tensor, rule: InitRule) -> None:
    """Initialize `matrix` (out, in) in place.

    The rules are a truncated normal of std 0.02 (ViT, Swin, T2T), Xavier uniform (translation, captions), and the
    initialization of `torch.nn.Linear` (LeViT).
    """
    if rule == "trunc_normal":
        nn.init.trunc_normal_(matrix, std=0.02)
    elif rule == "xavier_uniform":
        nn.init.xavier_uniform_(matrix)
    else:
        nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))


def empty_heads(side: Tensor, values: Tensor) -> Tensor:
    """Return empty heads (B, H, N, width), laid out as (B, N, H, width) so that merging them needs no copy.

    B, H and N are those of `side`, width and dtype those of `values` (..., width).
    """
    batch, heads, tokens = side.shape[:3]
    return values.new_empty(batch, tokens, heads, values.shape[-1]).transpose(1, 2)


def as_rows(tensor: Tensor) -> Tensor:
    """Return (B, H, N, width) as contiguous rows (B * N * H, width); the layout of `empty_heads` needs no copy."""
    return tensor.transpose(1, 2).contiguous().view(-1, tensor.shape[-1])


def attention_geometry(geometry: Geometry) -> AttentionGeometry:
    """Return the geometry of an attention site.

    Raises:
        TypeError: the site is not an attention site.
    """
    if not isinstance(geometry, AttentionGeometry):
        raise TypeError(f"this graft needs an attention site, got {type(geometry).__name__}")
    return geometry


def check_odd(name: str, value: int) -> None:
    """Check an option that must be odd.

    Raises:
        ValueError: the value is even, or so large that its parameters fill the memory.
    """
    if value > 255:
        raise ValueError(f"{name} must be at most 255, not {value}")
    if value < 1 or value % 2 == 0:
        raise ValueError(f"{name} must be odd, not {value}")


def check_positive(name: str, value: int | None) -> None:
    """Check an option that must be 1 or more; None passes.

    Raises:
        ValueError: the value is less than 1.
    """
    if value is not None and value < 1:
        raise ValueError(f"{name} must be 1 or more, not {value}")
