"""Bi-directional cross-attention: the tests of every op, and mathematical properties."""

# ruff: noqa: RUF012 - the sizes of a tester are constants

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from attngraft.errors import BackendError, UsageError
from attngraft.mechanisms.bixt import eager, folded, ops, pieces, reference
from attngraft.mechanisms.bixt.layer import BidirectionalCrossAttention, are_plain
from tests.mechanisms.op_tester import Call, OpTester, as_good_as_plain


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the small operands of these tests take the path of large ones, in several pieces."""
    monkeypatch.setattr(eager, "SMALL", 0)
    monkeypatch.setattr(folded, "WORTH", math.inf)
    monkeypatch.setattr(pieces, "NUMBERS", 1)
    monkeypatch.setattr(pieces, "FEWEST_TOKENS", 3)


class TestBidirectional(OpTester):
    """`shared`: which of the latents' operands, references and values, have batch size 1."""

    op = ops.bidirectional_attention
    sizes = {
        "batch": st.integers(1, 3),
        "shared": st.tuples(st.booleans(), st.booleans()),
        "heads": st.integers(1, 3),
        "latents": st.integers(1, 7),
        "tokens": st.integers(1, 8),
        "width": st.integers(1, 4),
        "to_tokens": st.integers(1, 4),
        "to_latents": st.integers(1, 4),
    }
    small = {
        "batch": 2,
        "shared": (False, False),
        "heads": 1,
        "latents": 3,
        "tokens": 4,
        "width": 2,
        "to_tokens": 2,
        "to_latents": 3,
    }
    large = {
        "batch": 2,
        "shared": (False, False),
        "heads": 2,
        "latents": 12,
        "tokens": 50,
        "width": 16,
        "to_tokens": 8,
        "to_latents": 24,
    }
    macs = 2 * 3 * 4 * (2 + 2 + 3)

    def build(self, **s: Any) -> Call:
        r_batch, v_batch = (1 if shared else s["batch"] for shared in s["shared"])
        of_tokens = (s["batch"], s["heads"], s["tokens"])
        return Call(
            (
                double(r_batch, s["heads"], s["latents"], s["width"]),
                double(*of_tokens, s["width"]),
                double(v_batch, s["heads"], s["latents"], s["to_tokens"]),
                double(*of_tokens, s["to_latents"]),
            ),
            {"scale": 0.7},
        )


class TestBidirectionalShared(TestBidirectional):
    """Latents of batch size 1, whose gradients are summed over the images."""

    small = {**TestBidirectional.small, "shared": (True, True)}
    large = {**TestBidirectional.large, "shared": (True, True)}


class TestBidirectionalSmall(TestBidirectional):
    @pytest.fixture(autouse=True)
    def _small(self, _nothing_is_small: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Small calls run plain operations."""
        monkeypatch.setattr(eager, "SMALL", 2**20)


class TestProjected(OpTester):
    op = ops.projected_attention
    sizes = {
        "batch": st.integers(1, 3),
        "shared": st.tuples(st.booleans(), st.booleans()),
        "heads": st.integers(1, 3),
        "latents": st.integers(1, 6),
        "tokens": st.integers(1, 8),
        "width": st.integers(1, 4),
        "channels": st.integers(1, 5),
        "out": st.integers(1, 5),
        "bias": st.booleans(),
    }
    small = {
        "batch": 2,
        "shared": (True, True),
        "heads": 2,
        "latents": 2,
        "tokens": 4,
        "width": 2,
        "channels": 3,
        "out": 2,
        "bias": True,
    }
    large = {
        "batch": 2,
        "shared": (False, False),
        "heads": 2,
        "latents": 12,
        "tokens": 50,
        "width": 16,
        "channels": 24,
        "out": 20,
        "bias": True,
    }
    macs = 2 * 4 * (3 * 2 * 4 + 4 * 2 + 3 * 2 * 2 * 2)

    def build(self, **s: Any) -> Call:
        joined, of_latents = s["heads"] * s["width"], (s["heads"], s["latents"], s["width"])
        r_batch, v_batch = (1 if shared else s["batch"] for shared in s["shared"])
        return Call(
            (
                double(r_batch, *of_latents),
                double(v_batch, *of_latents),
                double(s["batch"], s["tokens"], s["channels"]),
                double(2 * joined, s["channels"]) / s["channels"] ** 0.5,
                double(2 * joined) if s["bias"] else None,
                double(s["out"], joined) / joined**0.5,
                double(s["out"]),
            ),
            {"scale": 0.7},
        )


class TestProjectedWithoutBias(TestProjected):
    small = {**TestProjected.small, "bias": False, "shared": (False, False)}


class TestProjectedSmall(TestProjected):
    @pytest.fixture(autouse=True)
    def _small(self, _nothing_is_small: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Small calls run plain operations on folded projections."""
        monkeypatch.setattr(eager, "SMALL", 2**20)


def attention(**sizes: Any) -> Call:
    torch.manual_seed(0)
    return TestBidirectional().build(**{**TestBidirectional.large, **sizes})


def run(call: Call, **changed: Any) -> tuple[Tensor, Tensor]:
    return ops.bidirectional_attention(*call.arguments, **{**call.options, **changed})


def test_weights_add_up_to_one_in_either_direction() -> None:
    r_latents, r_tokens, v_latents, v_tokens = attention().arguments
    for found in ops.bidirectional_attention(
        r_latents, r_tokens, torch.ones_like(v_latents), torch.ones_like(v_tokens), scale=0.7
    ):
        torch.testing.assert_close(found, torch.ones_like(found))


def test_exchanging_latents_and_tokens_exchanges_what_they_get() -> None:
    """The operation is symmetric in both sides; M may exceed N."""
    r_latents, r_tokens, v_latents, v_tokens = attention().arguments
    latents, tokens = run(attention())
    back_tokens, back_latents = ops.bidirectional_attention(r_tokens, r_latents, v_tokens, v_latents, scale=0.7)
    torch.testing.assert_close(back_tokens, tokens)
    torch.testing.assert_close(back_latents, latents)


def test_the_order_of_tokens_does_not_matter_to_latents_and_goes_along_with_tokens() -> None:
    r_latents, r_tokens, v_latents, v_tokens = attention().arguments
    order = torch.randperm(r_tokens.shape[2])
    latents, tokens = run(attention())
    moved_latents, moved_tokens = ops.bidirectional_attention(
        r_latents, r_tokens[:, :, order], v_latents, v_tokens[:, :, order], scale=0.7
    )
    torch.testing.assert_close(moved_latents, latents)
    torch.testing.assert_close(moved_tokens, tokens[:, :, order])


def test_one_token_gives_its_value_to_every_latent() -> None:
    call = attention(tokens=1)
    latents, _ = run(call)
    torch.testing.assert_close(latents, call.arguments[3].expand_as(latents))


@pytest.mark.parametrize("shared", [(True, False), (False, True)])
@pytest.mark.parametrize("tester", [TestBidirectional, TestProjected])
def test_references_may_be_shared_where_values_are_not(tester: type[OpTester], shared: tuple[bool, bool]) -> None:
    torch.manual_seed(0)
    call = tester().build(**{**tester.large, "shared": shared})
    expected = tester().outputs_and_gradients(call, "reference")
    for ours, theirs in zip(tester().outputs_and_gradients(call, "eager"), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("latents", "tokens"), [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_nobody_to_attend_to(latents: int, tokens: int, backend: str) -> None:
    call = attention(latents=latents, tokens=tokens).map(Tensor.requires_grad_)
    to_latents, to_tokens = run(call, backend=backend)
    assert to_latents.shape == (2, 2, latents, 24)
    assert to_tokens.shape == (2, 2, tokens, 8)
    assert not to_latents.any()
    assert not to_tokens.any()
    for gradient in torch.autograd.grad([to_latents.sum(), to_tokens.sum()], call.tensors(), materialize_grads=True):
        assert not gradient.any()
    projected = TestProjected().build(**{**TestProjected.large, "latents": latents, "tokens": tokens})
    assert not ops.projected_attention(*projected.arguments, scale=1.0, backend=backend)[0].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tester", [TestBidirectional, TestProjected])
def test_large_scores_stay_finite_and_right(tester: type[OpTester], dtype: torch.dtype) -> None:
    """Scores of +-1e4: the softmaxes are 0 or 1, except that tokens 20 to 25 are equal and share the weight."""
    torch.manual_seed(0)
    call = tester().build(**tester.large)
    tokens = 1 if tester is TestBidirectional else 2
    call.arguments[tokens].narrow(-2, 20, 6).copy_(call.arguments[tokens].narrow(-2, 20, 1))  # type: ignore[union-attr]
    call = Call(call.arguments, {"scale": 700.0}).map(lambda tensor: tensor.to(dtype))
    found = tester().outputs_and_gradients(call, "eager")
    exact = tester().outputs_and_gradients(call.map(Tensor.double), "reference")
    plain = tester().outputs_and_gradients(call, "reference")
    for ours, theirs, truth in zip(found, plain, exact, strict=True):
        assert ours.isfinite().all()
        assert as_good_as_plain(ours, theirs, truth, dtype) or (ours - truth).norm() <= 1e-2 * truth.norm()


@pytest.mark.parametrize("autocast", [False, True])
def test_scores_beyond_half_precision_give_values_of_the_largest(autocast: bool) -> None:
    """The largest score of a few tokens is 10^6, and float16 ends at 65,504."""
    torch.manual_seed(0)
    call = attention(tokens=7)
    references = [tensor.float() * 300 for tensor in call.arguments[:2]]  # type: ignore[union-attr]
    operands = [*references, *(tensor.float() for tensor in call.arguments[2:])]  # type: ignore[union-attr]
    half = [tensor.half() for tensor in operands]
    expected = reference.bidirectional_attention(*(tensor.double() for tensor in half), scale=1.0)
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        found = ops.bidirectional_attention(*(operands if autocast else half), scale=1.0, backend="eager")
    for ours, truth in zip(found, expected, strict=True):
        assert ours.dtype == torch.float16
        torch.testing.assert_close(ours.double(), truth, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("offset", [-100.0, 0.0, 100.0])
def test_pieces_whose_scores_lie_far_apart_are_put_together_rightly(offset: float) -> None:
    """From piece to piece, the largest score rises or falls by more than the range of exp."""
    call = attention(tokens=9, latents=4).map(Tensor.float)
    call.arguments[1][..., 0] += offset * torch.arange(9)  # type: ignore[index]
    call.arguments[0][..., 0] = 1  # type: ignore[index]
    tester = TestBidirectional()
    exact = tester.outputs_and_gradients(call.map(Tensor.double), "reference")
    for ours, truth in zip(tester.outputs_and_gradients(call, "eager"), exact, strict=True):
        torch.testing.assert_close(ours.double(), truth, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("small", [0, 2**20])
@pytest.mark.parametrize("training", [False, True])
def test_folding_the_projections_costs_no_accuracy(training: bool, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error against float64 is at most twice that of the unfolded equation."""
    monkeypatch.setattr(eager, "SMALL", small)
    tester = TestProjected()
    torch.manual_seed(0)
    call = tester.build(**{**tester.large, "tokens": 300}).map(Tensor.float)
    work = tester.outputs_and_gradients if training else tester.outputs
    exact, plain = work(call.map(Tensor.double), "reference"), work(call, "reference")
    for ours, theirs, truth in zip(work(call, "eager"), plain, exact, strict=True):
        assert as_good_as_plain(ours, theirs, truth, torch.float32)


def test_dropout_falls_on_either_direction_by_itself_and_keeps_the_mean() -> None:
    call = attention(tokens=40, latents=40)
    r, _, _, _ = call.arguments
    unit = torch.eye(40, dtype=torch.float64).expand(2, 2, -1, -1)
    torch.manual_seed(0)
    to_tokens, to_latents = ops.bidirectional_attention(r, r, unit, unit, scale=0.1, dropout=0.5)
    kept = to_tokens != 0, to_latents != 0
    assert not torch.equal(*kept)
    whole = ops.bidirectional_attention(r, r, unit, unit, scale=0.1)
    for found, without, where in zip((to_tokens, to_latents), whole, kept, strict=True):
        assert 0.4 < where.double().mean() < 0.6
        torch.testing.assert_close(found, 2 * without * where)


def test_kernels_refuse_dropout_and_too_many_latents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "operands_obstacle", lambda *operands, **limits: None)  # as on a GPU
    call = attention()
    with pytest.raises(BackendError, match="the kernels have no dropout"):
        run(call, dropout=0.5, backend="triton")
    with pytest.raises(BackendError, match="up to 128 latents, not 129"):
        run(attention(latents=129), backend="triton")


OURS = {op._name: op for each in (eager, folded) for op in (each.attend_in_pieces, each.attend_in_pieces.backward)}


class Largest(TorchDispatchMode):
    """Dispatch mode that stores the size of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "attngraft":  # its own operations are inspected too
            with self:
                return OURS[func._opname]._init_fn(*args)
        found = func(*args, **(kwargs or {}))
        sizes = [tensor.numel() for tensor in tree_leaves(found) if isinstance(tensor, Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return found


def test_no_map_of_all_tokens_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither forward nor backward; with projections, no tensor of all tokens is wider than the tokens."""
    call = attention(batch=1, tokens=4000, latents=40).map(Tensor.requires_grad_)
    with Largest() as seen:
        torch.autograd.grad([out.square().sum() for out in run(call)], call.tensors())
    assert seen.numbers == 2 * 4000 * 24  # the values' gradient; a map is 2 * 4000 * 40
    layer, tokens = BidirectionalCrossAttention(32, 8, dim_attention=32, heads=2), torch.randn(1, 4000, 8)
    with Largest() as seen:
        sum(out.square().sum() for out in layer(torch.randn(1, 10, 32), tokens.requires_grad_())).backward()  # type: ignore[union-attr]
    assert seen.numbers == 4000 * 8
    monkeypatch.setenv("ATTNGRAFT_BACKEND", "reference")
    with Largest() as seen:
        run(call)
    assert seen.numbers == 2 * 4000 * 40  # so that a large tensor is detected


@pytest.mark.parametrize("tester", [TestBidirectional, TestProjected])
def test_the_counter_finds_what_the_equation_costs_forward_and_backward(tester: type[OpTester]) -> None:
    call = tester().build(**tester.large).map(Tensor.requires_grad_)
    counts = []
    for backend in ("eager", "reference"):
        with FlopCounterMode(display=False) as counter:
            outputs = tester().outputs(call, backend)
            torch.autograd.grad([out.sum() for out in outputs], call.tensors())
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_gives_the_same_whether_its_projections_are_folded_or_called(bias: bool) -> None:
    torch.manual_seed(0)
    layer = BidirectionalCrossAttention(12, 10, dim_attention=16, heads=2, rv_bias=bias).double()
    latents, tokens = double(1, 5, 12), double(3, 20, 10).requires_grad_()
    wanted = [tokens, *layer.parameters()]
    results = []
    for hooked in (False, True):
        called: list[Any] = []
        if hooked:
            layer.proj_pat.register_forward_hook(lambda *_, called=called: called.append(1))
        assert are_plain(layer.proj_pat) != hooked
        outputs = layer(latents, tokens)
        assert len(called) == hooked, "a hook on a projection is not passed over"
        results.append([*outputs, *torch.autograd.grad([out.square().sum() for out in outputs], wanted)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_projection_that_is_more_than_a_linear_layer_is_called() -> None:
    assert are_plain(nn.Linear(2, 2))
    assert not are_plain(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    assert not are_plain(nn.Sequential(nn.Linear(2, 2)))
    patched = nn.Linear(2, 2)
    patched.forward = lambda x: x  # type: ignore[method-assign, assignment]
    assert not are_plain(patched)
    with_global_hook = register_module_forward_hook(lambda *_: None)
    try:
        assert not are_plain(nn.Linear(2, 2))
    finally:
        with_global_hook.remove()


@pytest.mark.parametrize("name", ["rv_latents", "rv_patches", "proj_lat", "proj_pat"])
def test_a_hook_on_any_projection_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folded, "WORTH", 0)
    layer, called = BidirectionalCrossAttention(12, 10, dim_attention=16, heads=2), []
    layer.get_submodule(name).register_forward_hook(lambda *_: called.append(name))
    layer(torch.randn(1, 5, 12), torch.randn(1, 20, 10))
    assert called == [name]
    with torch.no_grad():
        layer.eval()(torch.randn(1, 5, 12), torch.randn(1, 20, 10))
    assert called == [name, name]


@pytest.mark.parametrize(
    ("place", "shape", "said"),
    [
        (0, (3, 2, 12, 16), "r_latents must have shape (b, H, M, d) with B=2, H=2, d=16 as in the operands before it"),
        (0, (2, 12, 16), "r_latents must have shape (b, H, M, d), not (2, 12, 16)"),
        (2, (1, 2, 11, 8), "v_latents must have shape (b, H, M, dl)"),
        (3, (2, 2, 49, 24), "v_tokens must have shape (B, H, N, dt) with B=2, H=2, N=50"),
    ],
)
def test_operands_that_do_not_fit_each_other_are_named(place: int, shape: tuple[int, ...], said: str) -> None:
    arguments = list(attention().arguments)
    arguments[place] = double(*shape)
    with pytest.raises(UsageError, match=re.escape(said)):
        ops.bidirectional_attention(*arguments, scale=1.0)


@pytest.mark.parametrize(
    ("place", "shape", "said"),
    [
        (2, (2, 50), "tokens must have shape (B, N, c)"),
        (1, (2, 2, 12, 15), "v_latents must have shape (b, H, M, d)"),
        (3, (64, 23), "in_weight must have shape (2 H d, c) with H=2, d=16, c=24"),
        (3, (60, 24), "in_weight must have shape (2 H d, c) with H=2, d=16"),
        (5, (20, 30), "out_weight must have shape (c', H d) with H=2, d=16 as in the operands before it, not (20, 30)"),
        (6, (19,), "out_bias must have shape (c') with c'=20"),
    ],
)
def test_projections_that_do_not_fit_are_named(place: int, shape: tuple[int, ...], said: str) -> None:
    arguments = list(TestProjected().build(**TestProjected.large).arguments)
    arguments[place] = double(*shape)
    with pytest.raises(UsageError, match=re.escape(said)):
        ops.projected_attention(*arguments, scale=1.0)


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_a_dropout_that_is_no_probability_is_refused(dropout: float) -> None:
    with pytest.raises(UsageError, match="must be a probability in"):
        run(attention(), dropout=dropout)


@pytest.mark.slow
@pytest.mark.parametrize("tester", [TestBidirectional, TestProjected])
def test_exports_as_operations_that_everybody_knows(tester: type[OpTester]) -> None:
    class Layer(nn.Module):
        def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
            return getattr(ops, tester.op.name)(*tensors, scale=0.7)  # type: ignore[no-any-return]

    call = tester().build(**tester.small)
    exported = torch.export.export(Layer(), call.arguments)
    assert all("attngraft" not in str(node.target) for node in exported.graph.nodes)
    for ours, theirs in zip(exported.module()(*call.arguments), tester().outputs(call, "reference"), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_exports_with_the_number_of_tokens_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folded, "WORTH", 0.9)  # the default, with which more tokens than the example's are folded
    layer = BidirectionalCrossAttention(12, 12, dim_attention=12, heads=3)
    few, many = ((torch.randn(2, 4, 12), torch.randn(2, count, 12)) for count in (30, 90))
    count = torch.export.Dim("N", min=2, max=5000)
    exported = torch.export.export(layer, few, dynamic_shapes=(None, {1: count})).module()
    for ours, theirs in zip(exported(*many), layer(*many), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def way_of(operands: Sequence[Tensor | None], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of the path that the operation with projections takes."""
    seen: list[str] = []
    ways = [(eager, "_of_one_image"), *((folded, name) for name in ("attend_in_groups", "attend", "attend_in_pieces"))]
    with monkeypatch.context() as patched:
        for module, name in [*ways, (reference, "projected_attention")]:
            label, way = f"{module.__name__.rpartition('.')[2]}.{name}", getattr(module, name)
            patched.setattr(module, name, lambda *o, label=label, way=way, **kw: seen.append(label) or way(*o, **kw))
        ops.projected_attention(*operands, scale=0.7, backend="eager")  # type: ignore[arg-type]
    return seen[0]


def bixt_projected(
    batch: int, tokens: int, *, heads: int = 3, latents: int = 64, **changes: Any
) -> list[Tensor | None]:
    """Return operands of the published models' widths."""
    sizes = {"batch": batch, "tokens": tokens, "heads": heads, "latents": latents, "width": 192 // heads}
    call = TestProjected().build(**TestProjected.large | sizes | {"channels": 192, "out": 192} | changes)
    return list(call.map(Tensor.float).arguments)


@pytest.mark.parametrize(
    ("images", "tokens", "heads", "training", "way"),
    [
        (1, 196, 3, False, "eager._of_one_image"),
        (1, 196, 3, True, "reference.projected_attention"),
        (2, 196, 3, False, "reference.projected_attention"),  # folding costs as much as it saves
        (2, 400, 3, False, "folded.attend"),
        (2, 400, 3, True, "folded.attend"),
        (2, 784, 6, False, "reference.projected_attention"),  # narrow heads: the folded products are larger
        (60, 400, 3, False, "folded.attend_in_groups"),
        (60, 400, 3, True, "folded.attend_in_pieces"),
        (8, 3136, 3, False, "folded.attend_in_pieces"),
        (8, 3136, 6, False, "reference.projected_attention"),
    ],
)
def test_the_way_follows_from_the_sizes(
    images: int, tokens: int, heads: int, training: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager, "SMALL", 2**22)
    monkeypatch.setattr(folded, "WORTH", 0.9)
    with torch.set_grad_enabled(training):
        assert way_of(bixt_projected(images, tokens, heads=heads), monkeypatch) == way


def test_projections_of_very_many_tokens_do_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are folded even where that takes more work."""
    monkeypatch.setattr(folded, "WORTH", 0.9)
    operands = bixt_projected(1, 1000, heads=6)
    for most, way in ((1001, "reference.projected_attention"), (1000, "folded.attend_in_pieces")):
        monkeypatch.setattr(eager, "MANY_TOKENS", most)
        assert way_of(operands, monkeypatch) == way


@pytest.mark.parametrize("watched", ["counted", "half", "autocast", "meta"])
@pytest.mark.parametrize("images", [1, 2, 60])
def test_who_looks_on_meets_no_way_that_is_not_for_him(
    watched: str, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FLOP counter sees plain operations or a registered one; calls that need casts are not folded."""
    monkeypatch.setattr(eager, "SMALL", 2**22)
    operands = bixt_projected(images, 400)
    if watched in ("half", "meta"):
        change = {"half": {"dtype": torch.bfloat16}, "meta": {"device": "meta"}}[watched]
        operands = [None if operand is None else operand.to(**change) for operand in operands]
    looking_on = {"counted": FlopCounterMode(display=False), "autocast": torch.autocast("cpu", torch.bfloat16)}
    with torch.no_grad(), looking_on.get(watched, nullcontext()):
        way = way_of(operands, monkeypatch)
    assert way == ("folded.attend_in_pieces" if watched == "counted" else "reference.projected_attention")


@settings(max_examples=40)
@given(data=st.data())
def test_one_image_without_gradients_goes_a_way_of_few_calls(data: st.DataObject) -> None:
    call = TestProjected().build(**data.draw(st.fixed_dictionaries(TestProjected.sizes)) | {"batch": 1})
    expected, count = TestProjected().outputs(call, "reference"), call.arguments[2].shape[1]  # type: ignore[union-attr]
    with pytest.MonkeyPatch.context() as patched, torch.no_grad():
        patched.setattr(folded, "WORTH", 0)
        patched.setattr(eager, "FEW_TOKENS", count)
        assert way_of(call.arguments, patched) == "eager._of_one_image"
        for ours, theirs in zip(TestProjected().outputs(call, "eager"), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
        patched.setattr(eager, "FEW_TOKENS", count - 1)
        assert way_of(call.arguments, patched) == "reference.projected_attention"


@settings(max_examples=30)
@given(data=st.data())
def test_images_in_groups_are_the_images_together(data: st.DataObject) -> None:
    drawn = data.draw(st.fixed_dictionaries(TestProjected.sizes)) | {"batch": data.draw(st.integers(2, 7))}
    call = TestProjected().build(**drawn)
    images = data.draw(st.integers(1, drawn["batch"] - 1))
    with torch.no_grad():
        found = folded.attend_in_groups(*call.arguments, scale=0.7, images=images)  # type: ignore[arg-type]
    for ours, theirs in zip(found, TestProjected().outputs(call, "reference"), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("tokens", [6, 400])
def test_a_counter_sees_what_the_equation_costs_whichever_way_is_gone(
    images: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager, "SMALL", 2**22)
    monkeypatch.setattr(folded, "WORTH", 0.9)
    layer = BidirectionalCrossAttention(48, 48, dim_attention=48, heads=3)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(torch.randn(images, 4, 48), torch.randn(images, tokens, 48))
    projections = (48 * 96 + 48 * 48) * (4 + tokens)
    assert counter.get_total_flops() == images * 2 * (projections + 3 * 4 * tokens * 48)


@settings(max_examples=40)
@given(data=st.data())
def test_small_calls_without_gradients_run_fused_attention_or_maps_of_few_tokens(data: st.DataObject) -> None:
    """For latents of batch size 1, more latents than tokens, different widths, and the layout of projections."""
    fewest = data.draw(st.integers(0, 6))
    sizes = st.integers(1, 5)
    batch, heads, latents, count, width, to_tokens, to_latents = (data.draw(sizes) for _ in range(7))
    of_latents = [data.draw(st.sampled_from((1, batch))) for _ in range(2)]
    operands = (
        double(of_latents[0], heads, latents, width),
        double(batch, count, heads, width).transpose(1, 2),
        double(of_latents[1], heads, latents, to_tokens),
        double(batch, count, heads, to_latents).transpose(1, 2),
    )
    expected = ops.bidirectional_attention(*operands, scale=0.7, backend="reference")
    with pytest.MonkeyPatch.context() as patched, torch.no_grad():
        patched.setattr(eager, "SMALL", 2**20)
        patched.setattr(eager, "FUSED_FROM" if batch == 1 else "FUSED_FROM_OF_SEVERAL", fewest)
        calls = []
        fused = eager._fused
        patched.setattr(eager, "_fused", lambda *o, **kw: calls.append(1) or fused(*o, **kw))
        found = ops.bidirectional_attention(*operands, scale=0.7)
    assert bool(calls) == (count >= fewest)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("tokens", [3, 0])
@pytest.mark.parametrize("watched", ["gradients", "counted", "meta", "half", "nobody"])
def test_who_looks_on_sees_the_equation(monkeypatch: pytest.MonkeyPatch, watched: str, tokens: int) -> None:
    monkeypatch.setattr(eager, "SMALL", 2**20)
    monkeypatch.setattr(eager, "FUSED_FROM_OF_SEVERAL", 0)
    calls: list[int] = []
    fused = eager._fused
    monkeypatch.setattr(eager, "_fused", lambda *o, **kw: calls.append(1) or fused(*o, **kw))
    dtype = torch.bfloat16 if watched == "half" else torch.float32
    device = "meta" if watched == "meta" else "cpu"
    operands = [torch.randn(2, 2, count, 4, dtype=dtype, device=device) for count in (5, tokens, 5, tokens)]
    counter = FlopCounterMode(display=False) if watched == "counted" else nullcontext()
    with torch.set_grad_enabled(watched == "gradients"), counter:
        ops.bidirectional_attention(*operands, scale=0.7)
    assert bool(calls) == (watched == "nobody" and tokens > 0)
    if watched == "counted":
        assert counter.get_total_flops() == 2 * 3 * 2 * 2 * 5 * tokens * 4, "one similarity, two products with values"
