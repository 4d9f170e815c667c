"""Context broadcasting as modules, usable in any network.

All but `SqueezeExcitation` take (B, N, C) or (B, H, W, C) and return the same shape; `prefix_tokens` leading tokens are
neither averaged nor changed (0, the paper's way, treats all tokens alike).

Each offers to a recorder what it broadcasts or multiplies by, with the token axes kept at size 1: `context`, `gate`. It is
computed beside the output, which stays what it is without a recorder.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from attngraft.attention import Recordable
from attngraft.mechanisms.context_broadcast import ops
from attngraft.mechanisms.context_broadcast.reference import Context, context_of, excitation
from attngraft.mechanisms.initialization import InitRule, init_matrix


class ContextBroadcast(Recordable, nn.Module):
    """CB: each token moves halfway to the context, (x_i + context) / 2 (Eq. 1). No parameters, never the identity.

    Offers `context` to a recorder.
    """

    def __init__(self, *, context: Context = "mean", prefix_tokens: int = 0) -> None:
        super().__init__()
        self.context: Context = context
        self.prefix_tokens = prefix_tokens

    def forward(self, x: Tensor) -> Tensor:
        if self.is_recording("context"):
            self.record("context", context_of(x, context=self.context, prefix=self.prefix_tokens))
        return ops.context_broadcast(x, context=self.context, prefix=self.prefix_tokens)

    def extra_repr(self) -> str:
        return f"context={self.context}, prefix_tokens={self.prefix_tokens}"


class ScaledContextBroadcast(Recordable, nn.Module):
    """CB_S: x_i + Lambda * context, one Lambda (C) per site, without halving (Sec. 2.2).

    Offers `context` to a recorder.

    Args:
        dim: C.
        init: Lambda's first value. The paper gives none; 0 starts as the identity, 1 as twice CB's form.
    """

    def __init__(
        self,
        dim: int,
        *,
        init: float = 0.0,
        context: Context = "mean",
        prefix_tokens: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.context: Context = context
        self.prefix_tokens = prefix_tokens
        self.scale = nn.Parameter(torch.full((dim,), init, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        if self.is_recording("context"):
            self.record("context", context_of(x, context=self.context, prefix=self.prefix_tokens))
        self.record("scale", self.scale)
        return ops.scaled_context_broadcast(x, self.scale, context=self.context, prefix=self.prefix_tokens)

    def extra_repr(self) -> str:
        return f"{self.scale.numel()}, context={self.context}, prefix_tokens={self.prefix_tokens}"


class ContextGate(Recordable, nn.Module):
    """CB_gate: x_i * (x_0 + 1), x_0 the class token (Appendix B.6). (B, N, C) only.

    Offers `gate`, x_0 + 1, to a recorder.
    """

    def __init__(self, *, prefix_tokens: int = 0) -> None:
        super().__init__()
        self.prefix_tokens = prefix_tokens

    def forward(self, x: Tensor) -> Tensor:
        if self.is_recording("gate"):
            self.record("gate", x[:, :1] + 1)
        return ops.context_gate(x, prefix=self.prefix_tokens)


class ContextHybrid(Recordable, nn.Module):
    """CB_hybrid: x_i * x_0 + (x_i + mean x) / 2, x_0 the class token (Appendix B.6). (B, N, C) only.

    Offers `gate`, x_0, and `context`, mean x, to a recorder.
    """

    def __init__(self, *, prefix_tokens: int = 0) -> None:
        super().__init__()
        self.prefix_tokens = prefix_tokens

    def forward(self, x: Tensor) -> Tensor:
        if self.is_recording("gate"):
            self.record("gate", x[:, :1])
        if self.is_recording("context"):
            self.record("context", context_of(x, prefix=self.prefix_tokens))
        return ops.context_hybrid(x, prefix=self.prefix_tokens)


class SqueezeExcitation(Recordable, nn.Module):
    """x * sigmoid(W2 relu(W1 mean x)) over tokens: what the paper compares CB with (Tables 2, 3).

    Offers `gate`, what x is multiplied by, to a recorder.

    Args:
        dim: C.
        reduction: the hidden width is C // reduction, at least 1.
        bias: biases on W1 and W2, which start at zero.
    """

    def __init__(
        self,
        dim: int,
        *,
        reduction: int = 16,
        bias: bool = False,
        init: InitRule = "trunc_normal",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        hidden = max(1, dim // reduction)
        self.squeeze = nn.Linear(dim, hidden, bias=bias, device=device, dtype=dtype)
        self.excite = nn.Linear(hidden, dim, bias=bias, device=device, dtype=dtype)
        for linear in (self.squeeze, self.excite):
            init_matrix(linear.weight, init)
            if bias:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        squeeze, excite = self.squeeze, self.excite
        if self.is_recording("gate"):
            self.record("gate", excitation(x, squeeze.weight, excite.weight, squeeze.bias, excite.bias))
        return ops.squeeze_excitation(
            x, squeeze.weight, excite.weight, squeeze_bias=squeeze.bias, excite_bias=excite.bias
        )


class ContextMlp(nn.Module):
    """fc1 -> GELU -> fc2 with a context module at the front (input of fc1), mid (after GELU) or end (after fc2).

    Mid and end are the same function for CB with a mean or class context, as fc2 is affine; for the others they are not.

    Args:
        dim: C; `hidden` is the width in between, at which a context at mid must work.
        context: any module from tokens to tokens.
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        context: nn.Module,
        position: Literal["front", "mid", "end"] = "end",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden, device=device, dtype=dtype)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim, device=device, dtype=dtype)
        self.context = context
        self.position = position

    def forward(self, x: Tensor) -> Tensor:
        x = self._at("front", x)
        x = self._at("mid", self.act(self.fc1(x)))
        return self._at("end", self.fc2(x))

    def _at(self, position: str, x: Tensor) -> Tensor:
        return cast(Tensor, self.context(x)) if position == self.position else x


class MixerBlock(nn.Module):
    """A Mixer block with context in its channel MLP: x + tokens(norm1(x)^T)^T, then x + channels(norm2(x)).

    In the token MLP the second axis holds channels, so context there would average channels: it stays as it is.

    Args:
        dim: C.
        token_mlp: a module over (B, C, N).
        channel_mlp: a module over (B, N, C), usually a `ContextMlp`.
    """

    def __init__(
        self,
        dim: int,
        *,
        token_mlp: nn.Module,
        channel_mlp: nn.Module,
        eps: float = 1e-6,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=eps, device=device, dtype=dtype)
        self.mlp_tokens = token_mlp
        self.norm2 = nn.LayerNorm(dim, eps=eps, device=device, dtype=dtype)
        self.mlp_channels = channel_mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + cast(Tensor, self.mlp_channels(self.norm2(x)))
