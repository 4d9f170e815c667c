"""How a mechanism's matrices start: by the rule of the host they join."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

InitRule = Literal["trunc_normal", "xavier_uniform"]


def init_matrix(matrix: Tensor, rule: InitRule) -> None:
    """Fill `matrix` in place: truncated normal of std 0.02 (ViT, Swin, T2T), or Xavier's uniform (translation, captions)."""
    if rule == "trunc_normal":
        nn.init.trunc_normal_(matrix, std=0.02)
    else:
        nn.init.xavier_uniform_(matrix)
