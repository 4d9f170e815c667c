"""How a mechanism's matrices start: by the rule of the host they join."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor, nn

InitRule = Literal["trunc_normal", "xavier_uniform", "torch"]


def init_matrix(matrix: Tensor, rule: InitRule) -> None:
    """Fill `matrix` (out, in) in place: truncated normal of std 0.02 (ViT, Swin, T2T), Xavier's uniform (translation,
    captions), or as `torch.nn.Linear` starts (LeViT)."""
    if rule == "trunc_normal":
        nn.init.trunc_normal_(matrix, std=0.02)
    elif rule == "xavier_uniform":
        nn.init.xavier_uniform_(matrix)
    else:
        nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))
