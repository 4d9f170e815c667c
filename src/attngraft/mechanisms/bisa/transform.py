"""What a value makes of a query: through the matrix that the hypernetwork gives it, or through an MLP on both."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from attngraft.mechanisms.bisa import mlp, ops
from attngraft.mechanisms.initialization import InitRule, init_matrix


class HyperTransform(nn.Module):
    """q_hat_i W_j with W_j = v_hat_j G (Sec. 3.1); G (s, s, dv) is shared by all heads.

    G starts normal with standard deviation 1 / s, which keeps the variance of what goes in; the paper does not say.

    Args:
        hyper_dim: s. value_dim: dv. zero: start with G = 0.
    """

    def __init__(
        self, hyper_dim: int, value_dim: int, *, zero: bool = False, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hyper_dim, hyper_dim, value_dim, device=device, dtype=dtype))
        nn.init.zeros_(self.weight) if zero else nn.init.normal_(self.weight, std=1 / hyper_dim)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        q_hat: Tensor,
        v_hat: Tensor,
        *,
        bias: Tensor | None,
        visible: Tensor | None,
        scale: float | None,
    ) -> Tensor:
        """isa (B, H, Nq, dv) of these scores."""
        return ops.inverse_attention(q, k, q_hat, v_hat, self.weight, bias=bias, visible=visible, scale=scale)

    def of_map(self, share: Tensor, q_hat: Tensor, v_hat: Tensor) -> Tensor:
        """isa of a map (B, H, Nq, Nk) that is there already."""
        return ops.hyper_transform(share @ v_hat, q_hat, self.weight)

    def extra_repr(self) -> str:
        return f"hyper_dim={self.weight.shape[0]}, value_dim={self.weight.shape[2]}"


class MlpTransform(nn.Module):
    """W2 GELU(W1 [q_hat_i ; v_hat_j] + b1) + b2, shared by all heads (Table 3); m (2 s + 1) + (m + 1) dv parameters.

    Args:
        hyper_dim: s. value_dim: dv.
        hidden: m; where not given, the most that makes it no larger than the hypernetwork (337 for s = dv = 32).
        zero: start with W2 = 0.
        init: the host's rule for weight matrices.
    """

    def __init__(
        self,
        hyper_dim: int,
        value_dim: int,
        *,
        hidden: int | None = None,
        zero: bool = False,
        init: InitRule = "trunc_normal",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        width = mlp_hidden(hyper_dim, value_dim) if hidden is None else hidden
        self.expand = nn.Linear(2 * hyper_dim, width, device=device, dtype=dtype)
        self.contract = nn.Linear(width, value_dim, device=device, dtype=dtype)
        for linear in (self.expand, self.contract):
            init_matrix(linear.weight, init)
            nn.init.zeros_(linear.bias)
        if zero:
            nn.init.zeros_(self.contract.weight)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        q_hat: Tensor,
        v_hat: Tensor,
        *,
        bias: Tensor | None,
        visible: Tensor | None,
        scale: float | None,
    ) -> Tensor:
        """isa (B, H, Nq, dv) of these scores."""
        return ops.inverse_attention_mlp(q, k, q_hat, v_hat, **self._layers(), bias=bias, visible=visible, scale=scale)

    def of_map(self, share: Tensor, q_hat: Tensor, v_hat: Tensor) -> Tensor:
        """isa of a map (B, H, Nq, Nk) that is there already."""
        return mlp.of_map(share, q_hat, v_hat, **self._layers())

    def _layers(self) -> dict[str, Any]:
        """Both, as the operation calls them."""
        return {
            "expand": self.expand.weight,
            "expand_bias": self.expand.bias,
            "contract": self.contract.weight,
            "contract_bias": self.contract.bias,
        }


def mlp_hidden(hyper_dim: int, value_dim: int) -> int:
    """The largest m with (2 s + 1) m + (m + 1) dv <= s s dv: an MLP of the hypernetwork's size, or a single unit."""
    room = math.prod((hyper_dim, hyper_dim, value_dim)) - value_dim
    return max(1, room // (2 * hyper_dim + 1 + value_dim))
