"""Linear maps of tokens as the host makes its own: with a bias, or with batch norm behind them."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_linear_bn_eval

from attngraft.attention.geometry import Projection
from attngraft.mechanisms.initialization import InitRule, init_matrix

LINEAR = Projection()  # with biases, nothing behind


class TokenMap(nn.Module):
    """(B, N, C) to (B, N, width): linear with the host's bias or without, then batch norm over all B N tokens if asked for.

    Args:
        dim: C. width: of what comes out.
        projection: whether there is a bias, and a norm.
        init: the host's rule for weight matrices; biases start at 0, norms as torch starts them.
    """

    def __init__(
        self,
        dim: int,
        width: int,
        *,
        projection: Projection = LINEAR,
        init: InitRule = "trunc_normal",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, width, bias=projection.bias, device=device, dtype=dtype)
        init_matrix(self.linear.weight, init)
        if projection.bias:
            nn.init.zeros_(self.linear.bias)
        self.norm = None if projection.norm is None else nn.BatchNorm1d(width, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        y = cast(Tensor, self.linear(x))
        return y if self.norm is None else self.norm(y.flatten(0, 1)).view_as(y)

    def absorb_norm(self) -> None:
        """For inference: gamma (W x - mean) / std + beta is a linear map with a bias. In evaluation mode only."""
        if self.norm is not None:
            self.linear, self.norm = fuse_linear_bn_eval(self.linear, self.norm), None


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """(B, N, H * width) to (B, H, N, width)."""
    return tokens.unflatten(-1, (heads, -1)).transpose(1, 2)


def activation(projection: Projection) -> nn.Module:
    """What stands before the host's output projection."""
    if projection.activation is None:
        return nn.Identity()
    from timm.layers import create_act_layer

    return cast(nn.Module, create_act_layer(projection.activation))
