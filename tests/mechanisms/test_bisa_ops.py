"""Bi-directional attention: the tests of every op, and mathematical properties."""

# ruff: noqa: RUF012 - the sizes of a tester are constants

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attngraft.errors import UsageError
from attngraft.mechanisms.bisa import BidirectionalAttention, MixVariant, eager, hyper, mlp, ops, scores
from tests.mechanisms.op_tester import Call, OpTester, as_good_as_plain

INFINITE = float("inf")


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def hidden_pairs(queries: int, keys: int) -> Tensor:
    """Return a mask in which query 1 sees no key, no query sees key 2, and a few more pairs are hidden."""
    visible = torch.rand(queries, keys) > 0.2
    visible[1:2], visible[:, 2:3] = False, False
    return visible


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the small operands of these tests take the path of large ones."""
    monkeypatch.setattr(eager, "SMALL", 0)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "NUMBERS", 1)
    monkeypatch.setattr(scores, "TILE", 0)
    monkeypatch.setattr(scores, "FEWEST_KEYS", 2)


class PairTester(OpTester):
    """Sizes and scores that the operations share."""

    sizes = {
        "images": st.integers(1, 2),
        "windows": st.integers(1, 3),
        "heads": st.integers(1, 3),
        "queries": st.integers(1, 7),
        "keys": st.integers(1, 7),
        "key_width": st.integers(1, 4),
        "width": st.integers(1, 4),
        "out": st.integers(1, 5),
        "bias": st.sampled_from(["none", "all heads", "each head"]),
        "masked": st.booleans(),
    }
    small = {
        "images": 1,
        "windows": 2,
        "heads": 1,
        "queries": 3,
        "keys": 4,
        "key_width": 2,
        "width": 2,
        "out": 3,
        "bias": "each head",
        "masked": False,
    }
    large = {
        "images": 2,
        "windows": 2,
        "heads": 2,
        "queries": 40,
        "keys": 30,
        "key_width": 16,
        "width": 8,
        "out": 12,
        "bias": "each head",
        "masked": False,
    }

    def scores(self, s: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return q, k and the options bias and visible."""
        batch, pairs = s["images"] * s["windows"], (s["queries"], s["keys"])
        q, k = (double(batch, s["heads"], n, s["key_width"]) for n in pairs)
        bias = (
            None if s["bias"] == "none" else double(s["windows"], 1 if s["bias"] == "all heads" else s["heads"], *pairs)
        )
        visible = hidden_pairs(*pairs) if s["masked"] else None
        return q, k, {"bias": bias, "visible": visible}

    def hats(self, s: dict[str, Any]) -> tuple[Tensor, Tensor]:
        batch = s["images"] * s["windows"]
        q_hat, v_hat = (double(batch, s["heads"], n, s["width"]) for n in (s["queries"], s["keys"]))
        return q_hat, v_hat


class TestTwoWay(PairTester):
    op = ops.two_way_attention
    macs = 2 * 3 * 4 * (2 + 3 + 2)

    def build(self, **s: Any) -> Call:
        q, k, options = self.scores(s)
        _, v_hat = self.hats(s)
        v = double(*k.shape[:3], s["out"])
        return Call((q, k, v, v_hat), {**options, "scale": 0.7})


class TestTwoWayMasked(TestTwoWay):
    small = {**PairTester.small, "masked": True}
    large = {**PairTester.large, "masked": True, "bias": "all heads"}


class TestTwoWaySmall(TestTwoWay):
    @pytest.fixture(autouse=True)
    def _small(self, nothing_is_small: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Small calls run plain operations, with a mask."""
        monkeypatch.setattr(eager, "SMALL", 2**21)


class TestTwoWayByHead(TestTwoWay):
    """Groups of one head of one image, with two keys per tile."""

    @pytest.fixture(autouse=True)
    def _small_limits(self, small_tiles: None) -> None:
        """Set the limits that the class docstring describes."""


class TestTwoWayByHeadMasked(TestTwoWayMasked):
    @pytest.fixture(autouse=True)
    def _small_limits(self, small_tiles: None) -> None:
        """Groups of one head of one image, with two keys per tile."""


class TestInverse(PairTester):
    op = ops.inverse_attention
    macs = 2 * (3 * 4 * (2 + 2) + 3 * (2 * 2 * 3 + 2 * 3))

    def build(self, **s: Any) -> Call:
        q, k, options = self.scores(s)
        return Call((q, k, *self.hats(s), double(s["width"], s["width"], s["out"]) / s["width"]), options)


class TestInverseMasked(TestInverse):
    small = {**PairTester.small, "masked": True, "bias": "none"}
    large = {**PairTester.large, "masked": True, "bias": "none"}


class TestInverseMlp(PairTester):
    op = ops.inverse_attention_mlp
    macs = 2 * (3 * 4 * 2 + 3 * 2 * 5 + 4 * 2 * 5 + 3 * 4 * 5 + 3 * 5 * 3)

    def build(self, **s: Any) -> Call:
        q, k, options = self.scores(s)
        return Call(
            (q, k, *self.hats(s)),
            {
                "expand": double(5, 2 * s["width"]),
                "expand_bias": double(5),
                "contract": double(s["out"], 5) / 5**0.5,
                "contract_bias": double(s["out"]),
                **options,
            },
        )


class TestInverseMlpMasked(TestInverseMlp):
    small = {**PairTester.small, "masked": True, "bias": "none"}
    large = {**PairTester.large, "masked": True, "bias": "none"}

    @pytest.fixture(autouse=True)
    def _small_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mlp, "NUMBERS", 1)


class TestHyper(OpTester):
    op = ops.hyper_transform
    sizes = {
        "batch": st.integers(1, 3),
        "heads": st.integers(1, 3),
        "tokens": st.integers(1, 7),
        "width": st.integers(1, 5),
        "out": st.integers(1, 5),
    }
    small = {"batch": 2, "heads": 2, "tokens": 3, "width": 2, "out": 3}
    large = {"batch": 2, "heads": 3, "tokens": 50, "width": 16, "out": 24}
    macs = 2 * 2 * 3 * (2 * 2 * 3 + 2 * 3)

    def build(self, *, batch: int, heads: int, tokens: int, width: int, out: int) -> Call:
        u, q_hat = (double(batch, heads, tokens, width) for _ in range(2))
        return Call((u, q_hat, double(width, width, out) / width))


class TestHyperInChunks(TestHyper):
    """Chunks of two rows; the last has one."""

    small = {**TestHyper.small, "tokens": 1, "batch": 3, "heads": 1}
    macs = 3 * (2 * 2 * 3 + 2 * 3)

    @pytest.fixture(autouse=True)
    def _small_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hyper, "BUFFER", 0)
        monkeypatch.setattr(hyper, "FEWEST_ROWS", 2)


def two_way(**sizes: Any) -> Call:
    torch.manual_seed(0)
    return TestTwoWay().build(**{**PairTester.large, **sizes})


def run(call: Call, **changed: Any) -> tuple[Tensor, Tensor]:
    return ops.two_way_attention(*call.arguments, **{**call.options, **changed})


def shares(call: Call, **changed: Any) -> Tensor:
    """Return L, the outputs u for unit values v_hat, key by key."""
    q, k = call.arguments[:2]
    unit = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:3], -1)
    return ops.two_way_attention(q, k, None, unit, **{**call.options, **changed})[1]


def test_every_key_shares_itself_out_among_the_queries() -> None:
    found = shares(two_way())
    assert found.min() >= 0
    torch.testing.assert_close(found.sum(-2), torch.ones_like(found.sum(-2)))
    assert (found.sum(-1) - 1).abs().max() > 0.1  # the sum that a query receives is not 1


def test_without_values_only_the_inverse_direction_is_worked_out() -> None:
    call = two_way()
    q, k, _, v_hat = call.arguments
    attended, u = ops.two_way_attention(q, k, None, v_hat, **call.options)
    assert attended is None
    torch.testing.assert_close(u, run(call)[1])


def test_the_order_of_keys_changes_nothing_and_that_of_queries_the_order_of_outputs() -> None:
    call = two_way(bias="none")
    q, k, v, v_hat = call.arguments
    keys, queries = torch.randperm(k.shape[2]), torch.randperm(q.shape[2])
    outputs = run(call)
    moved = ops.two_way_attention(q[:, :, queries], k[:, :, keys], v[:, :, keys], v_hat[:, :, keys], scale=0.7)
    for ours, theirs in zip(moved, outputs, strict=True):
        torch.testing.assert_close(ours, theirs[:, :, queries])


def test_a_bias_per_query_is_felt_by_the_inverse_only_and_one_per_key_by_self_attention_only() -> None:
    call = two_way(bias="none")
    attended, u = run(call)
    per_query, per_key = double(1, 1, 40, 1).expand(1, 1, 40, 30), double(1, 1, 1, 30).expand(1, 1, 40, 30)
    torch.testing.assert_close(run(call, bias=per_query)[0], attended)
    assert not torch.allclose(run(call, bias=per_query)[1], u)
    torch.testing.assert_close(run(call, bias=per_key)[1], u)
    assert not torch.allclose(run(call, bias=per_key)[0], attended)


def test_exchanging_queries_and_keys_exchanges_the_directions() -> None:
    """L is the transposed softmax over keys of the transposed scores."""
    call = two_way(bias="none")
    q, k = call.arguments[:2]
    unit = torch.eye(40, dtype=q.dtype).expand(*q.shape[:3], -1)
    attended, _ = ops.two_way_attention(k, q, unit, unit, scale=0.7)
    torch.testing.assert_close(attended.mT, shares(call))


def test_a_bias_of_minus_infinity_hides_as_visible_does() -> None:
    call = two_way(bias="none")
    visible = hidden_pairs(40, 30)
    bias = torch.zeros(1, 1, 40, 30, dtype=torch.float64).masked_fill(~visible, -INFINITE)
    for ours, theirs in zip(run(call, bias=bias), run(call, visible=visible), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", ["reference", "eager", "tiled", "small"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_who_sees_nothing_gets_nothing_and_who_is_not_seen_gives_nothing(
    backend: str, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    if backend == "tiled":
        request.getfixturevalue("small_tiles")
        backend = "eager"
    if backend == "small":
        request.getfixturevalue("monkeypatch").setattr(eager, "SMALL", 2**21)
        backend = "eager"
    call = two_way(bias="each head")
    bias = call.options["bias"]
    bias[:, :, 3], bias[:, :, :, 5] = -INFINITE, -INFINITE  # query 3 sees no key, no query sees key 5
    bias[0] = -INFINITE  # all pairs of the first window are hidden
    call = call.map(lambda tensor: tensor.to(dtype).requires_grad_())
    outputs = run(call, backend=backend)
    gradients = torch.autograd.grad([out.sum() * 3 + out.square().sum() for out in outputs], call.tensors())
    for out in outputs:
        assert out.isfinite().all()
        assert not out[:, :, 3].any()
        assert not out[0::2].any()
    for gradient in gradients:
        assert gradient.isfinite().all()
    to_q, to_k, to_v, to_v_hat, to_bias = gradients
    assert not to_q[:, :, 3].any()
    assert not any(gradient[:, :, 5].any() for gradient in (to_k, to_v, to_v_hat))
    assert not to_bias[call.options["bias"].isinf()].any()
    assert to_bias.any()


@pytest.mark.parametrize("tiled", [False, True])
def test_a_nan_is_not_taken_for_a_masked_line(tiled: bool, request: pytest.FixtureRequest) -> None:
    if tiled:
        request.getfixturevalue("small_tiles")
    call = two_way()
    call.arguments[0][1, 0, 7] = float("nan")
    call.options["bias"][:, :, :, 0] = -INFINITE
    attended, u = run(call)
    assert attended[1, 0, 7].isnan().all()
    assert u[1, 0].isnan().any()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("way", ["small", "whole", "tiled", "mlp"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_large_scores_stay_finite_and_right(
    way: str, dtype: torch.dtype, masked: bool, request: pytest.FixtureRequest
) -> None:
    """Scores of +-1e4, plus a bias as large. `small`: the path of small float32 calls, plain operations.

    The softmaxes are 0 or 1, except that queries 6 to 9, and keys 20 to 25, have equal scores and share the weight.
    """
    if way == "tiled":
        request.getfixturevalue("small_tiles")
    if way == "small":
        request.getfixturevalue("monkeypatch").setattr(eager, "SMALL", 2**21)
    tester = TestInverseMlp() if way == "mlp" else TestTwoWay()
    torch.manual_seed(0)
    call = tester.build(**{**PairTester.large, "bias": "none", "masked": masked})
    q, k = call.arguments[:2]
    q[..., 1], k[..., 0] = 0, 0  # differences there change no score
    q[:, :, 6:10, 1:], k[:, :, 20:26, 2:] = q[:, :, 6:7, 1:], k[:, :, 20:21, 2:]
    bias = torch.full((1, 1, 40, 30), -1e4, dtype=torch.float64)
    bias[..., 6:10, :], bias[..., 20:26] = 1e4, 1e4
    options = call.options | {"bias": bias, "scale": 1e4 / (q @ k.mT).abs().max().item()}
    call = Call(call.arguments, options).map(lambda tensor: tensor.to(dtype))
    found = tester.outputs_and_gradients(call, "auto")
    exact = tester.outputs_and_gradients(call.map(Tensor.double), "reference")
    plain = tester.outputs_and_gradients(call, "reference")
    for ours, theirs, truth in zip(found, plain, exact, strict=True):
        assert ours.isfinite().all()
        if dtype == torch.float32:  # a score of 2e4 has an error of 1e-3
            assert (ours - truth).norm() <= 1e-2 * truth.norm()
        else:
            assert as_good_as_plain(ours, theirs, truth, dtype)
        assert truth.norm() > 1


def test_the_backward_takes_the_tiles_of_the_forward(small_tiles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the tile size has changed in between."""
    call = two_way().map(Tensor.requires_grad_)
    outputs, expected = run(call), run(call, backend="reference")
    monkeypatch.setattr(scores, "TILE", 2**18)
    for ours, theirs in zip(
        *(torch.autograd.grad([out.square().sum() for out in outs], call.tensors()) for outs in (outputs, expected)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_one_token_is_transformed_by_its_own_value() -> None:
    """N = 1: both softmaxes are 1, isa = q_hat (v_hat G)."""
    torch.manual_seed(0)
    call = TestInverse().build(**{**PairTester.large, "queries": 1, "keys": 1})
    *_, q_hat, v_hat, weight = call.arguments
    expected = torch.einsum("nhtb,nhta,abc->nhtc", q_hat, v_hat, weight)
    torch.testing.assert_close(ops.inverse_attention(*call.arguments, **call.options), expected)


def test_the_first_axis_of_the_hypernetwork_is_the_values() -> None:
    u, q_hat = torch.zeros(1, 1, 1, 3), torch.zeros(1, 1, 1, 3)
    u[..., 2], q_hat[..., 1] = 1, 1
    weight = torch.arange(27.0).view(3, 3, 3)
    assert torch.equal(ops.hyper_transform(u, q_hat, weight).flatten(), weight[2, 1])


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0), (0, 0)])
def test_no_tokens(queries: int, keys: int) -> None:
    call = two_way(bias="none", queries=queries, keys=keys)
    attended, u = run(call)
    assert attended.shape == (4, 2, queries, 12)
    assert u.shape == (4, 2, queries, 8)
    assert not attended.any()
    inverse = TestInverse().build(**{**PairTester.large, "bias": "none", "queries": queries, "keys": keys})
    assert not ops.inverse_attention(*inverse.arguments, **inverse.options).any()


def test_outputs_leave_in_the_layout_that_the_projection_wants() -> None:
    call = two_way()
    attended, u = run(call)
    inverse = TestInverse().build(**PairTester.large)
    isa = ops.inverse_attention(*inverse.arguments, **inverse.options)
    for found in (attended, u, isa):
        assert found.transpose(1, 2).is_contiguous()


def test_nothing_of_queries_times_keys_is_kept_for_the_backward() -> None:
    call = two_way(bias="none").map(lambda tensor: tensor.float().requires_grad_())
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ops.inverse_attention(*call.arguments[:2], call.arguments[0][..., :8], call.arguments[3], torch.ones(8, 8, 12))
    assert kept
    assert max(kept) < 4 * 2 * 40 * 30


class Largest(TorchDispatchMode):
    """Dispatch mode that stores the size of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sizes = [tensor.numel() for tensor in tree_leaves(found) if isinstance(tensor, Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return found


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("form", [{}, {"weight": 0.0}, {"transform": "mlp"}, {"separate": True}])
def test_no_tensor_of_tokens_times_tokens_times_width_is_made(
    form: dict[str, Any], dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlp, "NUMBERS", 2**10)
    torch.manual_seed(0)
    layer = BidirectionalAttention(16, 2, hyper_dim=4, mlp_hidden=8, variant=MixVariant(**form), attn_drop=dropout)
    x = torch.randn(1, 128, 16, requires_grad=True)
    with Largest() as seen:
        layer(x).square().sum().backward()
    assert 128 * 8 <= seen.numbers <= 2 * 128 * 128  # a map at most; the least of N x N x width is that times 2
    with Largest() as seen, torch.no_grad():
        assert mlp.formula(torch.ones(1, 1, 8, 8), torch.ones(1, 1, 8, 3), torch.ones(1, 1, 8, 3)).shape[-1] == 3
    assert seen.numbers == 8 * 8 * 3  # so that a large tensor is detected


@pytest.mark.parametrize(("numbers", "calls"), [(1, 6 * 5), (3 * 4 * 5 * 2, 3), (3 * 4 * 2, 6 * 3), (2**10, 1)])
def test_the_mlp_takes_several_pairs_at_a_time_or_some_keys_of_one(
    numbers: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlp, "NUMBERS", numbers)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    share, a, b = double(2, 3, 3, 5), double(2, 3, 3, 4), double(2, 3, 5, 4)
    assert len(list(mlp._chunks(share, a, b))) == calls
    torch.testing.assert_close(mlp._shared_hidden(share, a, b), mlp.formula(share, a, b))


@pytest.mark.parametrize(
    ("batch", "heads", "fitting", "period"), [(6, 3, 0, 1), (6, 3, 2, 2), (8, 2, 5, 4), (6, 2, 8, 3)]
)
def test_groups_cover_every_head_once_and_keep_to_the_period_of_the_bias(
    batch: int, heads: int, fitting: int, period: int
) -> None:
    found = list(scores._groups(batch, heads, fitting, period))
    seen = torch.zeros(batch, heads)
    for group in found:
        seen[group.images, group.heads] += 1
        count, of_heads = group.counts
        assert count * of_heads <= max(fitting, 1)
        assert count % period == 0 or (period % count == 0 and group.images.start % count == 0)
    assert torch.equal(seen, torch.ones(batch, heads))


def test_a_bias_that_does_not_divide_the_batch_is_refused() -> None:
    call = two_way(bias="none")
    with pytest.raises(UsageError, match="divisor of B = 4"):
        run(call, bias=double(3, 2, 40, 30))


@pytest.mark.parametrize(
    ("bias", "said"),
    [
        ((1, 3, 40, 30), "(H, Nq, Nk) = (2, 40, 30), not (1, 3, 40, 30)"),
        ((1, 2, 39, 30), "not (1, 2, 39, 30)"),
        ((1, 2, 40, 29), "not (1, 2, 40, 29)"),
        ((2, 40, 30), "not (2, 40, 30)"),
        ((0, 2, 40, 30), "not (0, 2, 40, 30)"),
        ((8, 2, 40, 30), "divisor of B = 4"),
    ],
)
def test_a_bias_that_is_not_one_of_these_scores_is_refused(bias: tuple[int, ...], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        run(two_way(bias="none"), bias=double(*bias))


@pytest.mark.parametrize("bias", [(2, 1, 1, 30), (1, 2, 40, 1), (4, 1, 1, 1)])
@pytest.mark.parametrize("backend", ["reference", "eager"])
def test_a_bias_is_broadcast_along_axes_of_size_1(backend: str, bias: tuple[int, ...]) -> None:
    small = double(*bias).requires_grad_()
    outputs = run(two_way(bias="none"), bias=small, backend=backend)
    whole = run(two_way(bias="none"), bias=small.expand(-1, -1, 40, 30), backend="reference")
    for found, expected in zip(outputs, whole, strict=True):
        torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(sum(out.square().sum() for out in outs), small) for outs in (outputs, whole))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("visible", "said"),
    [
        (torch.ones(40, 30), "visible must be boolean"),
        (torch.ones(40, 29, dtype=torch.bool), "not torch.bool of shape (40, 29)"),
        (torch.ones(2, 1, 40, 30, dtype=torch.bool), "broadcastable to (B, H, Nq, Nk) = (4, 2, 40, 30)"),
        (torch.ones(1, 1, 1, 40, 30, dtype=torch.bool), "not torch.bool of shape (1, 1, 1, 40, 30)"),
    ],
)
def test_a_mask_that_is_not_one_of_these_scores_is_refused(visible: Tensor, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        run(two_way(bias="none"), visible=visible)


def test_a_boolean_bias_is_not_added_as_ones() -> None:
    with pytest.raises(UsageError, match="cannot be boolean; pass it as visible"):
        run(two_way(bias="none"), bias=torch.ones(1, 1, 40, 30, dtype=torch.bool))


@pytest.mark.parametrize(
    ("tester", "place", "shape", "said"),
    [
        (TestTwoWay, 0, (4, 40, 16), "q must have shape (B, H, Nq, dk), not (4, 40, 16)"),
        (TestTwoWay, 1, (4, 2, 30, 15), "k must have shape (B, H, Nk, dk) with B=4, H=2, dk=16"),
        (TestTwoWay, 2, (4, 2, 31, 12), "v must have shape (B, H, Nk, dv)"),
        (TestTwoWay, 3, (1, 2, 30, 8), "v_hat must have shape (B, H, Nk, s) with B=4, H=2, Nk=30"),
        (TestInverse, 2, (4, 2, 30, 8), "q_hat must have shape (B, H, Nq, s) with B=4, H=2, Nq=40, s=8"),
        (TestInverse, 4, (8, 7, 12), "hyper must have shape (s, s, dv) with s=8"),
        (TestInverseMlp, 2, (4, 2, 40, 7), "q_hat must have shape (B, H, Nq, s)"),
        (
            TestInverseMlp,
            "expand",
            (5, 15),
            "expand must have shape (m, 2 s) with s=8 as in the operands before it, not (5, 15)",
        ),
        (TestInverseMlp, "expand_bias", (4,), "expand_bias must have shape (m) with m=5"),
        (TestInverseMlp, "contract", (12, 4), "contract must have shape (dv, m) with m=5"),
        (TestInverseMlp, "contract_bias", (11,), "contract_bias must have shape (dv) with dv=12"),
        (TestHyper, 1, (2, 3, 49, 16), "q_hat must have shape (B, H, N, s)"),
        (TestHyper, 2, (16, 24), "hyper must have shape (s, s, dv)"),
    ],
)
def test_operands_that_do_not_fit_each_other_are_named(
    tester: type[OpTester], place: int | str, shape: tuple[int, ...], said: str
) -> None:
    call = tester().build(**{**tester.large, **({"bias": "none"} if "bias" in tester.large else {})})
    arguments, options = list(call.arguments), dict(call.options)
    (arguments if isinstance(place, int) else options)[place] = double(*shape)  # type: ignore[index, call-overload]
    with pytest.raises(UsageError, match=re.escape(said)):
        tester.op(*arguments, **options)


@pytest.mark.slow
def test_exports() -> None:
    class Layer(torch.nn.Module):
        def forward(self, *tensors: Tensor) -> Tensor:
            return ops.inverse_attention(*tensors)

    call = TestInverse().build(**{**PairTester.small, "bias": "none"})
    exported = torch.export.export(Layer(), call.arguments)
    torch.testing.assert_close(exported.module()(*call.arguments), ops.inverse_attention(*call.arguments))
