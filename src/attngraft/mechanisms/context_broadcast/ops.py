"""The public operations of context broadcasting, with their backends.

`x` is (B, N, C) or, without a class token, (B, H, W, C): all axes between the first and the last are tokens. `prefix`
leading tokens are neither averaged nor changed; 0, the paper's way, treats all alike.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attngraft.dispatch import Backend, Op, triton_obstacle
from attngraft.errors import UsageError
from attngraft.mechanisms.context_broadcast import eager, reference
from attngraft.mechanisms.context_broadcast.reference import Context


def _triton_obstacle(x: Tensor, *_: Tensor, context: Context = "mean", prefix: int = 0) -> str | None:
    obstacle = triton_obstacle(x)
    if obstacle is None and context != "mean":
        obstacle = f"the kernel averages, and context is {context}"
    if obstacle is None and prefix:
        obstacle = "the kernel takes all tokens, and a prefix is left out"
    return obstacle


def _triton_context_broadcast(*args: Any, **kwargs: Any) -> Tensor:
    from attngraft.mechanisms.context_broadcast import triton  # here: needs Triton

    return triton.context_broadcast(*args, **kwargs)


def _triton_scaled_context_broadcast(*args: Any, **kwargs: Any) -> Tensor:
    from attngraft.mechanisms.context_broadcast import triton  # here: needs Triton

    return triton.scaled_context_broadcast(*args, **kwargs)


CONTEXT_BROADCAST = Op(
    "context_broadcast",
    "(x_i + context) / 2, context = mean, max or class token",
    backends={
        "reference": Backend(reference.context_broadcast),
        "eager": Backend(eager.context_broadcast),
        "triton": Backend(_triton_context_broadcast, _triton_obstacle),
    },
)
SCALED_CONTEXT_BROADCAST = Op(
    "scaled_context_broadcast",
    "x_i + Lambda * context",
    backends={
        "reference": Backend(reference.scaled_context_broadcast),
        "eager": Backend(eager.scaled_context_broadcast),
        "triton": Backend(_triton_scaled_context_broadcast, _triton_obstacle),
    },
)
CONTEXT_GATE = Op(
    "context_gate",
    "x_i * (x_0 + 1)",
    backends={"reference": Backend(reference.context_gate), "eager": Backend(eager.context_gate)},
)
CONTEXT_HYBRID = Op(
    "context_hybrid",
    "x_i * x_0 + (x_i + mean x) / 2",
    backends={"reference": Backend(reference.context_hybrid), "eager": Backend(eager.context_hybrid)},
)
SQUEEZE_EXCITATION = Op(
    "squeeze_excitation",
    "x * sigmoid(W2 relu(W1 mean x))",
    backends={"reference": Backend(reference.squeeze_excitation), "eager": Backend(eager.squeeze_excitation)},
)
UNIFORM_WEIGHTS = Op(
    "uniform_weights",
    "an attention map whose last heads are uniform over the visible keys",
    backends={"reference": Backend(reference.uniform_weights), "eager": Backend(eager.uniform_weights)},
)


def _check(x: Tensor, *, prefix: int, class_token: bool) -> None:
    """Refuse a map (B, H, W, C) where leading tokens are meant."""
    if x.ndim != 3 and (prefix or class_token):
        what = "a prefix" if prefix else "a class token"
        raise UsageError(f"{what} stands in front of a sequence (B, N, C), and x is {tuple(x.shape)}")


def context_broadcast(x: Tensor, *, context: Context = "mean", prefix: int = 0, backend: str = "auto") -> Tensor:
    """CB, (x_i + context) / 2 for every token i (Eq. 1; contexts max and class: Table 10).

    Args:
        x: (B, N, C) or (B, H, W, C).
        context: the mean of all tokens, their maximum per channel, or token 0.

    Raises:
        UsageError: a prefix or a class token on a map.
        BackendError: a backend asked for by name cannot be used here.
    """
    _check(x, prefix=prefix, class_token=context == "class")
    return CONTEXT_BROADCAST(x, context=context, prefix=prefix, backend=backend)


def scaled_context_broadcast(
    x: Tensor, scale: Tensor, *, context: Context = "mean", prefix: int = 0, backend: str = "auto"
) -> Tensor:
    """CB_S, x_i + Lambda * context, without halving (Sec. 2.2). `scale` is Lambda, (C); errors as `context_broadcast`."""
    _check(x, prefix=prefix, class_token=context == "class")
    return SCALED_CONTEXT_BROADCAST(x, scale, context=context, prefix=prefix, backend=backend)


def context_gate(x: Tensor, *, prefix: int = 0, backend: str = "auto") -> Tensor:
    """CB_gate, x_i * (x_0 + 1) (Appendix B.6). `x` is (B, N, C); errors as `context_broadcast`."""
    _check(x, prefix=prefix, class_token=True)
    return CONTEXT_GATE(x, prefix=prefix, backend=backend)


def context_hybrid(x: Tensor, *, prefix: int = 0, backend: str = "auto") -> Tensor:
    """CB_hybrid, x_i * x_0 + (x_i + mean x) / 2 (Appendix B.6). `x` is (B, N, C); errors as `context_broadcast`."""
    _check(x, prefix=prefix, class_token=True)
    return CONTEXT_HYBRID(x, prefix=prefix, backend=backend)


def squeeze_excitation(
    x: Tensor,
    squeeze: Tensor,
    excite: Tensor,
    *,
    squeeze_bias: Tensor | None = None,
    excite_bias: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """x * sigmoid(W2 relu(W1 mean x)) over tokens, the comparison of Tables 2 and 3.

    Args:
        x: (B, N, C) or (B, H, W, C).
        squeeze, excite: W1 (C / r, C) and W2 (C, C / r); biases where given.
    """
    return SQUEEZE_EXCITATION(x, squeeze, excite, squeeze_bias, excite_bias, backend=backend)


def uniform_weights(
    weights: Tensor, visible: Tensor | None, *, count: int, keep_half: bool = False, backend: str = "auto"
) -> Tensor:
    """The attention map with its last `count` heads uniform over the keys that each query may see (Table 1).

    Args:
        weights: (B, H, Nq, Nk), rows sum to 1.
        visible: boolean, broadcastable to `weights`; None for all. A query that sees nothing gets zeros.
        count: 1..H.
        keep_half: leave half of the weight with the query's own key (Nq = Nk), so that the head does CB on its values.

    Raises:
        UsageError: `count` is not within 1..H.
    """
    if not 1 <= count <= weights.shape[1]:
        raise UsageError(f"count is {count}, and the map has {weights.shape[1]} heads")
    return UNIFORM_WEIGHTS(weights, visible, count=count, keep_half=keep_half, backend=backend)
