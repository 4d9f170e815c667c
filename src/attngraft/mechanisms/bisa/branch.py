"""The inverse branch of bi-directional attention: its projections, and the transform of a query by a value.

`projection` and `init` describe the host's own linear maps; `factory` is device and dtype, as for `torch.nn.Linear`.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import create_act_layer
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_linear_bn_eval

from attngraft.attention.geometry import Projection
from attngraft.mechanisms.bisa import mlp, ops
from attngraft.mechanisms.common import InitRule, init_matrix

LINEAR = Projection()  # with biases, without norms


class TokenProjection(nn.Module):
    """A linear map of tokens, (B, N, C) to (B, N, width), with the host's bias or batch norm over all B N tokens.

    Args:
        dim: C.
        width: width of the output.
        projection: the host's kind of projection: with or without bias, with or without norm.
        init: the host's rule for weight matrices; biases start at 0, norms as in torch.
    """

    def __init__(
        self, dim: int, width: int, *, projection: Projection = LINEAR, init: InitRule = "trunc_normal", **factory: Any
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, width, bias=projection.bias, **factory)
        init_matrix(self.linear.weight, init)
        if projection.bias:
            nn.init.zeros_(self.linear.bias)
        self.norm = None if projection.norm is None else nn.BatchNorm1d(width, **factory)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y if self.norm is None else self.norm(y.flatten(0, 1)).view_as(y)

    def absorb_norm(self) -> None:
        """Fold the norm into the linear map, in evaluation mode: gamma (W x - mean) / std + beta is linear in x."""
        if self.norm is not None:
            self.linear, self.norm = fuse_linear_bn_eval(self.linear, self.norm), None


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """Return (B, N, H * width) as (B, H, N, width)."""
    return tokens.unflatten(-1, (heads, -1)).transpose(1, 2)


def activation(projection: Projection) -> nn.Module:
    """Return the activation that the host applies before its output projection."""
    return nn.Identity() if projection.activation is None else create_act_layer(projection.activation)


class HyperTransform(nn.Module):
    """Hypernetwork transform q_hat_i W_j, W_j = v_hat_j G (Sec. 3.1); G (s, s, dv) is shared by all heads.

    G is initialized from a normal distribution of standard deviation 1 / s, which preserves the variance of the input; the
    paper does not specify it.

    Args:
        hyper_dim: s.
        value_dim: dv.
        zero: start with G = 0.
    """

    def __init__(self, hyper_dim: int, value_dim: int, *, zero: bool = False, **factory: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hyper_dim, hyper_dim, value_dim, **factory))
        nn.init.zeros_(self.weight) if zero else nn.init.normal_(self.weight, std=1 / hyper_dim)

    def forward(self, q: Tensor, k: Tensor, q_hat: Tensor, v_hat: Tensor, **masks: Any) -> Tensor:
        """Return isa (B, H, Nq, dv); `masks`: bias, visible and scale, as in reference.py."""
        return ops.inverse_attention(q, k, q_hat, v_hat, self.weight, **masks)

    def of_map(self, share: Tensor, q_hat: Tensor, v_hat: Tensor) -> Tensor:
        """Return isa for a given map L (B, H, Nq, Nk)."""
        return ops.hyper_transform(share @ v_hat, q_hat, self.weight)

    def extra_repr(self) -> str:
        return f"hyper_dim={self.weight.shape[0]}, value_dim={self.weight.shape[2]}"


class MlpTransform(nn.Module):
    """MLP transform W2 GELU(W1 [q_hat_i ; v_hat_j] + b1) + b2, shared by all heads (Table 3).

    It has m (2 s + 1) + (m + 1) dv parameters.

    Args:
        hyper_dim: s.
        value_dim: dv.
        hidden: m; by default the largest number for which the MLP is no larger than the hypernetwork (337 for s = dv = 32).
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
        **factory: Any,
    ) -> None:
        super().__init__()
        width = mlp_hidden(hyper_dim, value_dim) if hidden is None else hidden
        self.expand = nn.Linear(2 * hyper_dim, width, **factory)
        self.contract = nn.Linear(width, value_dim, **factory)
        for linear in (self.expand, self.contract):
            init_matrix(linear.weight, init)
            nn.init.zeros_(linear.bias)
        if zero:
            nn.init.zeros_(self.contract.weight)

    def forward(self, q: Tensor, k: Tensor, q_hat: Tensor, v_hat: Tensor, **masks: Any) -> Tensor:
        """Return isa (B, H, Nq, dv); `masks`: bias, visible and scale, as in reference.py."""
        return ops.inverse_attention_mlp(q, k, q_hat, v_hat, **self._layers(), **masks)

    def of_map(self, share: Tensor, q_hat: Tensor, v_hat: Tensor) -> Tensor:
        """Return isa for a given map L (B, H, Nq, Nk)."""
        return mlp.of_map(share, q_hat, v_hat, **self._layers())

    def _layers(self) -> dict[str, Any]:
        return {
            "expand": self.expand.weight,
            "expand_bias": self.expand.bias,
            "contract": self.contract.weight,
            "contract_bias": self.contract.bias,
        }


def mlp_hidden(hyper_dim: int, value_dim: int) -> int:
    """Return the largest m with (2 s + 1) m + (m + 1) dv <= s s dv, an MLP of the hypernetwork's size; at least 1."""
    room = math.prod((hyper_dim, hyper_dim, value_dim)) - value_dim
    return max(1, room // (2 * hyper_dim + 1 + value_dim))


class InverseBranch(nn.Module):
    """Inverse branch: q_hat = GELU(x Wq2), v_hat = GELU(x Wv') and the transform (Alg. 1, lines 4 to 8); exact GELU.

    Args:
        dim: C.
        num_heads: H.
        value_dim: dv, width per head of the output.
        hyper_dim: s, width per head of q_hat and v_hat.
        transform: "hyper" for the hypernetwork, or "mlp" (with `mlp_hidden` units, see `MlpTransform`).
        zero: start with zero output.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        value_dim: int,
        hyper_dim: int,
        transform: str = "hyper",
        mlp_hidden: int | None = None,
        zero: bool = False,
        projection: Projection = LINEAR,
        init: InitRule = "trunc_normal",
        **factory: Any,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = TokenProjection(dim, num_heads * hyper_dim, projection=projection, init=init, **factory)
        self.value = TokenProjection(dim, num_heads * hyper_dim, projection=projection, init=init, **factory)
        self.transform: HyperTransform | MlpTransform
        if transform == "hyper":
            self.transform = HyperTransform(hyper_dim, value_dim, zero=zero, **factory)
        else:
            self.transform = MlpTransform(hyper_dim, value_dim, hidden=mlp_hidden, zero=zero, init=init, **factory)

    def queries(self, tokens: Tensor) -> Tensor:
        """Return q_hat (B, H, Nq, s) of the query side's tokens (B, Nq, C)."""
        return split_heads(F.gelu(self.query(tokens)), self.num_heads)

    def values(self, tokens: Tensor) -> Tensor:
        """Return v_hat (B, H, Nk, s) of the key side's tokens (B, Nk, C)."""
        return split_heads(F.gelu(self.value(tokens)), self.num_heads)


class SeparateProjections(nn.Module):
    """Projections added by `separate`: queries, keys and an output projection of the inverse branch.

    Args:
        dim: C.
        num_heads: H.
        key_dim: dk.
        value_dim: dv.
        out_dim: width of the output tokens.
        projection: the host's kind of projection; its activation comes before the output projection.
        zero: start with zero output; set through the batch norm after the output projection, if there is one.
        options: init and factory for all maps.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        key_dim: int,
        value_dim: int,
        out_dim: int,
        zero: bool = False,
        projection: Projection = LINEAR,
        **options: Any,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = TokenProjection(dim, num_heads * key_dim, projection=projection, **options)
        self.key = TokenProjection(dim, num_heads * key_dim, projection=projection, **options)
        self.act = activation(projection)
        self.proj = TokenProjection(num_heads * value_dim, out_dim, projection=projection, **options)
        if zero and self.proj.norm is not None:
            nn.init.zeros_(self.proj.norm.weight)

    def queries_and_keys(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return q (B, H, Nq, dk) and k (B, H, Nk, dk) of the tokens on both sides."""
        return split_heads(self.query(queries), self.num_heads), split_heads(self.key(keys), self.num_heads)

    def merge(self, merged: Tensor) -> Tensor:
        """Project merged heads (B, N, H * dv) to tokens."""
        return self.proj(self.act(merged))
