"""Context broadcasting's ops: the tests of every op, and mathematical properties."""

# ruff: noqa: RUF012 - the sizes of a tester are constants

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attngraft.errors import UsageError
from attngraft.mechanisms.context_broadcast import ops, reference
from tests.mechanisms.op_tester import Call, OpTester

token_axes = st.one_of(
    st.tuples(st.integers(1, 19)), st.tuples(st.integers(1, 5), st.integers(1, 7))
)  # a sequence, or a map


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class Tokens(OpTester):
    """Base class of the tests of ops on tokens."""

    sizes = {"batch": st.integers(1, 3), "axes": token_axes, "channels": st.integers(1, 9)}
    small = {"batch": 2, "axes": (5,), "channels": 3}
    large = {"batch": 2, "axes": (197,), "channels": 24}


class TestContextBroadcast(Tokens):
    op = ops.context_broadcast

    def build(self, *, batch: int, axes: tuple[int, ...], channels: int) -> Call:
        return Call((double(batch, *axes, channels),))


class TestContextBroadcastOfMaxima(TestContextBroadcast):
    def build(self, *, batch: int, axes: tuple[int, ...], channels: int) -> Call:
        # distinct values even after rounding, because the gradient of a tie is ambiguous
        count = torch.Size(axes).numel() * batch * channels
        x = torch.randperm(count).double().view(batch, *axes, channels) / 8
        return Call((x,), {"context": "max"})

    large = {"batch": 1, "axes": (16,), "channels": 8}


class TestScaledContextBroadcast(Tokens):
    op = ops.scaled_context_broadcast

    def build(self, *, batch: int, axes: tuple[int, ...], channels: int) -> Call:
        return Call((double(batch, *axes, channels), double(channels)))


class Prefixed(OpTester):
    """Sequences with leading tokens that may be excluded."""

    sizes = {
        "batch": st.integers(1, 3),
        "tokens": st.integers(3, 11),
        "channels": st.integers(1, 5),
        "prefix": st.integers(0, 2),
    }
    small = {"batch": 2, "tokens": 4, "channels": 3, "prefix": 1}
    large = {"batch": 2, "tokens": 197, "channels": 24, "prefix": 1}
    options: dict[str, str] = {}

    def build(self, *, batch: int, tokens: int, channels: int, prefix: int) -> Call:
        return Call((double(batch, tokens, channels),), {"prefix": prefix, **self.options})


class TestPatchesOnly(Prefixed):
    op = ops.context_broadcast


class TestClassToken(Prefixed):
    op = ops.context_broadcast
    options = {"context": "class"}


class TestGate(Prefixed):
    op = ops.context_gate


class TestHybrid(Prefixed):
    op = ops.context_hybrid


class TestScaledPrefixed(Prefixed):
    op = ops.scaled_context_broadcast

    def build(self, *, batch: int, tokens: int, channels: int, prefix: int) -> Call:
        return Call((double(batch, tokens, channels), double(channels)), {"prefix": prefix})


class TestScaledClassToken(TestScaledPrefixed):
    def build(self, *, batch: int, tokens: int, channels: int, prefix: int) -> Call:
        call = super().build(batch=batch, tokens=tokens, channels=channels, prefix=prefix)
        return Call(call.arguments, {**call.options, "context": "class"})


class TestSqueezeExcitation(OpTester):
    op = ops.squeeze_excitation
    sizes = {
        "batch": st.integers(1, 3),
        "axes": token_axes,
        "channels": st.integers(1, 9),
        "hidden": st.integers(1, 4),
        "bias": st.booleans(),
    }
    small = {"batch": 2, "axes": (4,), "channels": 3, "hidden": 2, "bias": True}
    large = {"batch": 2, "axes": (197,), "channels": 32, "hidden": 4, "bias": False}
    macs = 2 * 2 * 3 * 2

    def build(self, *, batch: int, axes: tuple[int, ...], channels: int, hidden: int, bias: bool) -> Call:
        biases = (double(hidden), double(channels)) if bias else (None, None)
        return Call((double(batch, *axes, channels), double(hidden, channels), double(channels, hidden), *biases))


class TestUniformWeights(OpTester):
    op = ops.uniform_weights
    sizes = {
        "batch": st.integers(1, 3),
        "heads": st.integers(2, 4),
        "tokens": st.integers(1, 6),
        "count": st.integers(1, 2),
        "mask": st.sampled_from(["none", "shared", "causal", "heads"]),
        "keep_half": st.booleans(),
    }
    small = {"batch": 2, "heads": 3, "tokens": 3, "count": 1, "mask": "heads", "keep_half": False}
    large = {"batch": 2, "heads": 3, "tokens": 20, "count": 2, "mask": "shared", "keep_half": True}

    def build(self, *, batch: int, heads: int, tokens: int, count: int, mask: str, keep_half: bool) -> Call:
        masks = {
            "none": None,
            "shared": torch.rand(batch, 1, 1, tokens) > 0.4,
            "causal": torch.ones(tokens, tokens, dtype=torch.bool).tril(),
            "heads": torch.rand(batch, heads, tokens, tokens) > 0.4,
        }
        weights = double(batch, heads, tokens, tokens).softmax(-1)
        return Call((weights, masks[mask]), {"count": count, "keep_half": keep_half})


sequences = st.tuples(st.integers(1, 3), st.integers(1, 12), st.integers(1, 6), st.integers(0, 99))


def drawn(sizes: tuple[int, int, int, int]) -> Tensor:
    torch.manual_seed(sizes[3])
    return double(*sizes[:3])


@settings(max_examples=25, deadline=None)
@given(sizes=sequences)
def test_cb_keeps_the_mean_and_halves_what_deviates(sizes: tuple[int, int, int, int]) -> None:
    x = drawn(sizes)
    mean = x.mean(1, keepdim=True)
    y = x
    for times in range(1, 4):
        y = ops.context_broadcast(y)
        torch.testing.assert_close(y - mean, (x - mean) / 2**times)


def test_cb_is_symmetric_with_eigenvalues_one_and_one_half() -> None:
    matrix = torch.stack(
        [ops.context_broadcast(row.view(1, 7, 1)).flatten() for row in torch.eye(7, dtype=torch.float64)]
    )
    torch.testing.assert_close(matrix, matrix.T)
    eigenvalues = torch.linalg.eigvalsh(matrix)
    torch.testing.assert_close(eigenvalues, torch.tensor([0.5] * 6 + [1.0], dtype=torch.float64))


def test_cb_of_a_gradient_is_its_gradient() -> None:
    x, gradient = double(2, 9, 4).requires_grad_(), double(2, 9, 4)
    (found,) = torch.autograd.grad(ops.context_broadcast(x), x, gradient)
    torch.testing.assert_close(found, ops.context_broadcast(gradient))


@settings(max_examples=25, deadline=None)
@given(sizes=sequences, context=st.sampled_from(["mean", "max", "class"]))
def test_permuting_tokens_permutes_the_output(sizes: tuple[int, int, int, int], context: str) -> None:
    x = drawn(sizes)
    order = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(x.shape[1] - 1)])  # token 0 stays
    scale = double(x.shape[-1])
    for function in (
        lambda x: ops.context_broadcast(x, context=context),
        lambda x: ops.scaled_context_broadcast(x, scale, context=context),
        ops.context_gate,
        ops.context_hybrid,
    ):
        torch.testing.assert_close(function(x[:, order]), function(x)[:, order])


@pytest.mark.parametrize("context", ["mean", "class"])
def test_linear_forms_are_linear_and_gates_are_quadratic(context: str) -> None:
    x, y, scale = double(2, 6, 4), double(2, 6, 4), double(4)
    for function in (
        lambda x: ops.context_broadcast(x, context=context),
        lambda x: ops.scaled_context_broadcast(x, scale, context=context),
    ):
        torch.testing.assert_close(function(3 * x - y), 3 * function(x) - function(y))
    for function in (ops.context_gate, ops.context_hybrid):
        odd, even = (function(x) - function(-x)) / 2, (function(x) + function(-x)) / 2
        torch.testing.assert_close(function(2 * x), 2 * odd + 4 * even)


def test_a_single_token_is_its_own_context() -> None:
    x, scale = double(3, 1, 5), double(5)
    for context in ("mean", "max", "class"):
        torch.testing.assert_close(ops.context_broadcast(x, context=context), x)
        torch.testing.assert_close(ops.scaled_context_broadcast(x, scale, context=context), (1 + scale) * x)


def test_the_class_token_stays_under_class_context() -> None:
    x = double(2, 6, 4)
    assert torch.equal(ops.context_broadcast(x, context="class")[:, 0], x[:, 0])


def test_a_prefix_is_neither_averaged_nor_changed() -> None:
    x = double(2, 8, 4)
    y = ops.context_broadcast(x, prefix=2)
    assert torch.equal(y[:, :2], x[:, :2])
    torch.testing.assert_close(y[:, 2:], (x[:, 2:] + x[:, 2:].mean(1, keepdim=True)) / 2)


def test_zero_scale_is_the_identity_bit_for_bit_and_learns_at_once() -> None:
    x, scale = torch.randn(2, 7, 4), torch.zeros(4, requires_grad=True)
    y = ops.scaled_context_broadcast(x, scale)
    assert torch.equal(y, x)
    y.square().sum().backward()
    assert scale.grad.abs().min() > 0


def test_long_half_precision_sequences_do_not_overflow() -> None:
    x = torch.full((1, 4000, 2), 30.0, dtype=torch.float16)  # the sum is beyond float16
    assert torch.equal(ops.context_broadcast(x), x)


def test_a_map_has_neither_prefix_nor_class_token() -> None:
    x = double(2, 3, 4, 5)
    with pytest.raises(UsageError, match="a prefix is only possible for a sequence"):
        ops.context_broadcast(x, prefix=1)
    with pytest.raises(UsageError, match="a class token"):
        ops.context_gate(x)


def test_a_map_is_averaged_over_both_axes() -> None:
    x = double(2, 3, 4, 5)
    torch.testing.assert_close(ops.context_broadcast(x).flatten(1, 2), ops.context_broadcast(x.flatten(1, 2)))


def test_uniform_heads_put_out_the_mean_of_visible_values_and_cb_of_them() -> None:
    weights, values = double(2, 3, 6, 6).softmax(-1), double(2, 3, 6, 4)
    heads = ops.uniform_weights(weights, None, count=2) @ values
    torch.testing.assert_close(heads[:, 0], (weights @ values)[:, 0])
    torch.testing.assert_close(heads[:, 1:], values[:, 1:].mean(2, keepdim=True).expand_as(heads[:, 1:]))
    halves = ops.uniform_weights(weights, None, count=1, keep_half=True) @ values
    torch.testing.assert_close(halves[:, 2], reference.context_broadcast(values[:, 2]))
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    past = ops.uniform_weights(weights, causal, count=3) @ values
    counts = torch.arange(1, 7, dtype=torch.float64)[:, None]
    torch.testing.assert_close(past, values.cumsum(2) / counts)
    blind = ops.uniform_weights(weights, torch.zeros(6, 6, dtype=torch.bool), count=1)
    assert not blind[:, 2].any()
    with pytest.raises(UsageError, match="number of heads, 3, not 4"):
        ops.uniform_weights(weights, None, count=4)
