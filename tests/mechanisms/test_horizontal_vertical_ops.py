"""Horizontal and vertical attention: the tests of every op, and mathematical properties."""

# ruff: noqa: RUF012 - the sizes of a tester are constants

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from attngraft.mechanisms.horizontal_vertical import ops
from tests.mechanisms.op_tester import Call, OpTester


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


class TestHorizontal(OpTester):
    op = ops.horizontal_attention
    sizes = {
        "batch": st.integers(1, 3),
        "heads": st.integers(1, 5),
        "tokens": st.integers(1, 7),
        "width": st.integers(1, 5),
        "dim": st.integers(1, 9),
        "identity": st.booleans(),
    }
    small = {"batch": 2, "heads": 3, "tokens": 3, "width": 2, "dim": 5, "identity": False}
    large = {"batch": 2, "heads": 4, "tokens": 50, "width": 16, "dim": 48, "identity": False}
    macs = 2 * 3 * (3 * 2 * 2 + 5 * 2 + 3 * 2)

    def build(self, *, batch: int, heads: int, tokens: int, width: int, dim: int, identity: bool) -> Call:
        return Call(
            (double(batch, heads, tokens, width), double(batch, tokens, dim)),
            {
                "head": double(width, width) / width**0.5,
                "context": double(width, dim) / dim**0.5,
                "score": double(1, width),
                "score_bias": double(1),
                "identity": identity,
            },
        )


class TestHorizontalIdentity(TestHorizontal):
    small = {**TestHorizontal.small, "identity": True}
    large = {**TestHorizontal.large, "identity": True}


class TestVertical(OpTester):
    op = ops.vertical_attention
    sizes = {
        "batch": st.integers(1, 3),
        "tokens": st.integers(1, 7),
        "dim": st.integers(1, 9),
        "hidden": st.integers(1, 4),
        "identity": st.booleans(),
    }
    small = {"batch": 2, "tokens": 3, "dim": 5, "hidden": 2, "identity": False}
    large = {"batch": 2, "tokens": 50, "dim": 48, "hidden": 12, "identity": False}
    macs = 2 * 3 * (3 * 5 * 2)

    def build(self, *, batch: int, tokens: int, dim: int, hidden: int, identity: bool) -> Call:
        return Call(
            (double(batch, tokens, dim), double(batch, tokens, dim)),
            {
                "context": double(hidden, dim) / dim**0.5,
                "merged_weight": double(hidden, dim) / dim**0.5,
                "gate": double(dim, hidden),
                "gate_bias": double(dim),
                "identity": identity,
            },
        )


class TestVerticalIdentity(TestVertical):
    small = {**TestVertical.small, "identity": True}
    large = {**TestVertical.large, "identity": True}


def horizontal(**sizes: int) -> Call:
    return TestHorizontal().build(**{**TestHorizontal.large, **sizes})


def run(call: Call) -> tuple[Tensor, Tensor]:
    return ops.horizontal_attention(*call.arguments, **call.options)


def test_alpha_is_a_distribution_over_heads() -> None:
    call = horizontal()
    weighed, alpha = run(call)
    assert alpha.min() >= 0
    torch.testing.assert_close(alpha.sum(-1), torch.ones_like(alpha.sum(-1)))
    torch.testing.assert_close(weighed, alpha.permute(0, 2, 1)[..., None] * call.arguments[0])


def test_permuting_heads_permutes_alpha() -> None:
    call, order = horizontal(heads=5), torch.tensor([3, 0, 4, 2, 1])
    heads, x = call.arguments
    weighed, alpha = run(call)
    permuted, alpha_permuted = run(Call((heads[:, order], x), call.options))
    torch.testing.assert_close(permuted, weighed[:, order])
    torch.testing.assert_close(alpha_permuted, alpha[..., order])


def test_the_score_bias_changes_nothing_and_has_no_gradient() -> None:
    call = horizontal().map(Tensor.requires_grad_)
    outputs = run(call)
    shifted = run(Call(call.arguments, {**call.options, "score_bias": call.options["score_bias"] + 7}))
    torch.testing.assert_close(shifted, outputs)
    outputs[0].square().sum().backward()
    assert torch.equal(call.options["score_bias"].grad, torch.zeros(1, dtype=torch.float64))


def test_a_single_head_learns_nothing() -> None:
    call = horizontal(heads=1).map(Tensor.requires_grad_)
    weighed, alpha = run(call)
    assert torch.equal(alpha, torch.ones_like(alpha))
    weighed.square().sum().backward()
    for name in ("head", "context", "score", "score_bias"):
        assert not call.options[name].grad.any()
    torch.testing.assert_close(call.arguments[0].grad, 2 * call.arguments[0].detach())


@pytest.mark.parametrize("count", [1, 3, 6, 7, 12, 40])
def test_identity_forms_start_exactly(count: int) -> None:
    call = horizontal(heads=count, identity=True).map(Tensor.float)
    options = {**call.options, "score": torch.zeros_like(call.options["score"]), "score_bias": torch.zeros(1)}
    assert torch.equal(ops.horizontal_attention(*call.arguments, **options)[0], call.arguments[0])
    gates = TestVertical().build(**{**TestVertical.large, "identity": True}).map(Tensor.float)
    options = {**gates.options, "gate": torch.zeros_like(gates.options["gate"]), "gate_bias": torch.zeros(48)}
    assert torch.equal(ops.vertical_attention(*gates.arguments, **options)[0], gates.arguments[0])


def test_nothing_mixes_tokens() -> None:
    """Changing token 9 changes the outputs of token 9 only, so causal attention stays causal."""
    call = horizontal()
    heads, x = (tensor.clone() for tensor in call.arguments)
    heads[:, :, 9] += 1
    x[:, 9] -= 1
    others = [token for token in range(x.shape[1]) if token != 9]
    before, after = run(call)[0], run(Call((heads, x), call.options))[0]
    assert torch.equal(before[:, :, others], after[:, :, others])
    assert not torch.equal(before[:, :, 9], after[:, :, 9])
    gates = TestVertical().build(**TestVertical.large)
    merged, x = (tensor.clone() for tensor in gates.arguments)
    merged[:, 9] += 1
    x[:, 9] -= 1
    before = ops.vertical_attention(*gates.arguments, **gates.options)[0]
    after = ops.vertical_attention(merged, x, **gates.options)[0]
    assert torch.equal(before[:, others], after[:, others])
    assert not torch.equal(before[:, 9], after[:, 9])


def test_zero_weights_gate_by_a_half_and_weigh_alike() -> None:
    gates = TestVertical().build(**TestVertical.large).map(torch.zeros_like)
    merged = double(2, 50, 48)
    gated, beta = ops.vertical_attention(merged, gates.arguments[1], **gates.options)
    assert torch.equal(beta, torch.full_like(beta, 0.5))
    assert torch.equal(gated, merged / 2)
    call = horizontal(heads=4).map(torch.zeros_like)
    _, alpha = run(call)
    assert torch.equal(alpha, torch.full_like(alpha, 0.25))


def test_heads_leave_in_the_layout_that_the_projection_wants() -> None:
    """(B, N, H, dv) in memory, so that merging the heads copies nothing, whatever the layout of the input."""
    call = horizontal()
    for heads in (call.arguments[0], call.arguments[0].transpose(1, 2).contiguous().transpose(1, 2)):
        weighed, _ = run(Call((heads, call.arguments[1]), call.options))
        assert weighed.transpose(1, 2).is_contiguous()


def test_gradients_flow_through_one_output_alone() -> None:
    call = horizontal().map(Tensor.requires_grad_)
    found = []
    for backend in ("eager", "reference"):
        _, alpha = ops.horizontal_attention(*call.arguments, **call.options, backend=backend)
        found.append(torch.autograd.grad(alpha.square().sum(), call.arguments[0])[0])
    torch.testing.assert_close(*found)
