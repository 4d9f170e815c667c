"""The inverse branch: what it needs besides a score matrix."""

from __future__ import annotations

from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention.geometry import Projection
from attngraft.mechanisms.bisa.maps import LINEAR, TokenMap, activation, split_heads
from attngraft.mechanisms.bisa.transform import HyperTransform, MlpTransform
from attngraft.mechanisms.bisa.variant import Transform
from attngraft.mechanisms.initialization import InitRule


class InverseBranch(nn.Module):
    """q_hat = GELU(x Wq2), v_hat = GELU(x Wv') and the transform (Alg. 1, lines 4 to 8). GELU is the exact one.

    Args:
        dim: C. num_heads: H.
        value_dim: dv, width per head of what comes out. hyper_dim: s, width per head of q_hat and v_hat.
        transform: the hypernetwork, or the MLP (with `mlp_hidden` units, see `MlpTransform`).
        zero: start by putting out zero.
        projection, init: how the host makes its own maps.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        value_dim: int,
        hyper_dim: int,
        transform: Transform = "hyper",
        mlp_hidden: int | None = None,
        zero: bool = False,
        projection: Projection = LINEAR,
        init: InitRule = "trunc_normal",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        made: dict[str, Any] = {"init": init, "device": device, "dtype": dtype}
        self.query = TokenMap(dim, num_heads * hyper_dim, projection=projection, **made)
        self.value = TokenMap(dim, num_heads * hyper_dim, projection=projection, **made)
        self.transform: HyperTransform | MlpTransform
        if transform == "hyper":
            self.transform = HyperTransform(hyper_dim, value_dim, zero=zero, device=device, dtype=dtype)
        else:
            self.transform = MlpTransform(hyper_dim, value_dim, hidden=mlp_hidden, zero=zero, **made)

    def queries(self, tokens: Tensor) -> Tensor:
        """q_hat (B, H, Nq, s) of the query side's tokens (B, Nq, C)."""
        return split_heads(F.gelu(cast(Tensor, self.query(tokens))), self.num_heads)

    def values(self, tokens: Tensor) -> Tensor:
        """v_hat (B, H, Nk, s) of the key side's tokens (B, Nk, C)."""
        return split_heads(F.gelu(cast(Tensor, self.value(tokens))), self.num_heads)


class OwnEnds(nn.Module):
    """What `separate` adds: queries and keys of the inverse branch's own, and its own output projection.

    Args:
        dim: C. num_heads: H. key_dim: dk. value_dim: dv. out_dim: width of the tokens that leave.
        projection, init: how the host makes its own maps; its activation stands before the output projection.
        zero: start by putting out zero, by the batch norm behind the output projection, where there is one.
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
        init: InitRule = "trunc_normal",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        made: dict[str, Any] = {"projection": projection, "init": init, "device": device, "dtype": dtype}
        self.query = TokenMap(dim, num_heads * key_dim, **made)
        self.key = TokenMap(dim, num_heads * key_dim, **made)
        self.act = activation(projection)
        self.proj = TokenMap(num_heads * value_dim, out_dim, **made)
        if zero and self.proj.norm is not None:
            nn.init.zeros_(self.proj.norm.weight)

    def scored(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, H, Nq, dk) and k (B, H, Nk, dk) of the tokens on both sides."""
        return split_heads(self.query(queries), self.num_heads), split_heads(self.key(keys), self.num_heads)

    def merge(self, merged: Tensor) -> Tensor:
        """Merged heads (B, N, H * dv) to tokens."""
        return cast(Tensor, self.proj(self.act(merged)))
