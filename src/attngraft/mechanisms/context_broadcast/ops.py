"""The operations of context broadcasting, with their checks and backends."""

from typing import Any

from torch import Tensor

from attngraft.dispatch import Op
from attngraft.errors import UsageError
from attngraft.mechanisms.context_broadcast import eager, reference
from attngraft.mechanisms.context_broadcast.reference import Context


def _check_context(x: Tensor, *, context: Context = "mean", prefix: int = 0, **_: Any) -> None:
    """Refuse a map (B, H, W, C) with leading tokens."""
    if x.ndim != 3 and (prefix or context == "class"):
        token = "a prefix" if prefix else "a class token"
        raise UsageError(f"{token} is only possible for a sequence (B, N, C), but x has shape {tuple(x.shape)}")


def _check_class_token(x: Tensor, *, prefix: int = 0) -> None:
    _check_context(x, context="class", prefix=prefix)


def _check_count(weights: Tensor, *, count: int, **_: Any) -> None:
    if not 1 <= count <= weights.shape[1]:
        raise UsageError(f"count must be between 1 and the number of heads, {weights.shape[1]}, not {count}")


context_broadcast = Op(
    reference.context_broadcast,
    "(x_i + context) / 2, context = mean, max or class token",
    check=_check_context,
    eager=eager.context_broadcast,
)
scaled_context_broadcast = Op(
    reference.scaled_context_broadcast,
    "x_i + Lambda * context",
    check=_check_context,
    eager=eager.scaled_context_broadcast,
)
context_gate = Op(reference.context_gate, "x_i * (x_0 + 1)", check=_check_class_token, eager=eager.context_gate)
context_hybrid = Op(
    reference.context_hybrid, "x_i * x_0 + (x_i + mean x) / 2", check=_check_class_token, eager=eager.context_hybrid
)
squeeze_excitation = Op(reference.squeeze_excitation, "x * sigmoid(W2 relu(W1 mean x))", eager=eager.squeeze_excitation)
uniform_weights = Op(
    reference.uniform_weights,
    "an attention map whose last heads are uniform over the visible keys",
    check=_check_count,
    eager=eager.uniform_weights,
)
