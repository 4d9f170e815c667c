"""What the operations ask of their masks: that they fit the scores."""

from __future__ import annotations

import torch
from torch import Tensor

from attngraft.errors import UsageError


def check_bias(bias: Tensor, scores: tuple[int, ...]) -> None:
    """Whether a bias goes with scores of this shape (B, H, Nq, Nk).

    Raises:
        UsageError: it is not (b, H or 1, Nq or 1, Nk or 1) with b a divisor of B.
    """
    batch, *rest = scores
    fits = bias.ndim == 4 and all(size in (1, wanted) for size, wanted in zip(bias.shape[1:], rest, strict=True))
    if not fits or bias.shape[0] == 0 or batch % bias.shape[0]:
        raise UsageError(
            f"bias is (b, H or 1, Nq or 1, Nk or 1) with b a divisor of B = {batch} and (H, Nq, Nk) = {tuple(rest)}, not "
            f"of shape {tuple(bias.shape)}"
        )


def check_visible(visible: Tensor, scores: tuple[int, ...]) -> None:
    """Whether a mask goes with scores of this shape (B, H, Nq, Nk).

    Raises:
        UsageError: it is not boolean, or not broadcastable to the scores.
    """
    last = scores[max(4 - visible.ndim, 0) :]
    fits = visible.ndim <= 4 and all(size in (1, wanted) for size, wanted in zip(visible.shape, last, strict=True))
    if visible.dtype != torch.bool or not fits:
        raise UsageError(
            f"visible is boolean and broadcastable to (B, H, Nq, Nk) = {tuple(scores)}, not {visible.dtype} of shape "
            f"{tuple(visible.shape)}"
        )
