"""The Triton kernels of bi-directional attention: in Triton's interpreter, compiled without a GPU, and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attngraft.dispatch.triton import INTERPRETING
from attngraft.mechanisms.bisa import ops, reference
from tests.mechanisms.op_tester import as_good_as_plain
from tests.mechanisms.triton_runs import (
    IN_THEIR_PRECISION,
    compiled_kernels,
    compiler,
    gpu,
    inside,
    installed,
    outside,
    run_inside,
)
from tests.slow import product_but

INFINITY = float("inf")


@dataclass(frozen=True)
class Case:
    """Sizes of a call; `bias` is (b, its heads); `masked` hides pairs, all keys of one query, and all queries of one key."""

    batch: int = 1
    heads: int = 2
    queries: int = 20
    keys: int = 35
    widths: tuple[int, int | None, int] = (5, 18, 3)  # widths of q, v (None: no values) and v_hat
    bias: tuple[int, int] | None = None
    masked: bool = False
    spread: float = 1.0

    def operands(self) -> list[Tensor | None]:
        """Return q, k, v, v_hat and bias in float64, laid out in memory as (B, N, H, width), as projections return them."""

        def draw(tokens: int, width: int | None) -> Tensor | None:
            if width is None:
                return None
            return torch.randn(self.batch, tokens, self.heads, width, dtype=torch.float64).transpose(1, 2)

        torch.manual_seed(0)
        dk, dv, s = self.widths
        bias = self.bias and torch.randn(*self.bias, self.queries, self.keys, dtype=torch.float64)
        q, *rest = draw(self.queries, dk), draw(self.keys, dk), draw(self.keys, dv), draw(self.keys, s), bias
        return [None if q is None else q * self.spread, *rest]

    def visible(self) -> Tensor | None:
        if not self.masked:
            return None
        seen = torch.rand(self.batch, 1, self.queries, self.keys) > 0.3
        seen[..., 3, :] = False
        seen[..., 5] = False
        return seen


def outputs_and_gradients(
    operands: list[Tensor | None], visible: Tensor | None, backend: str, dtype: torch.dtype, device: str = "cpu"
) -> list[Tensor]:
    """Return outputs, then gradients of their products with fixed cotangents, all in float64."""
    given = [t if t is None else t.to(device, dtype).requires_grad_() for t in operands]
    *rest, bias = given
    visible = None if visible is None else visible.to(device)
    found = [o for o in ops.two_way_attention(*rest, bias=bias, visible=visible, backend=backend) if o is not None]
    generator = torch.Generator().manual_seed(5)
    cotangents = [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out) for out in found]
    gradients = torch.autograd.grad(found, [t for t in given if t is not None], cotangents)
    assert all(one.dtype == dtype for one in (*found, *gradients))
    return [one.detach().cpu().double() for one in (*found, *gradients)]


CASES = {
    "across tiles, odd widths, a learned bias of all entries": Case(bias=(1, 2)),
    "one bias for the heads, one per two entries, without values": Case(
        batch=4, queries=9, keys=9, widths=(16, None, 20), bias=(2, 1)
    ),
    "masked, with empty rows and columns": Case(masked=True, keys=33),
    "both, and fewer keys than queries": Case(queries=34, keys=7, batch=2, heads=1, bias=(2, 1), masked=True),
    "one token": Case(queries=1, keys=1, widths=(1, 1, 1)),
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tiles so small that small calls have several, and sums so short that they have parts."""
    if INTERPRETING:
        from attngraft.mechanisms.bisa import triton, triton_hyper

        options = {"BLOCK_Q": 16, "BLOCK_K": 32, "num_warps": 4, "num_stages": 1}
        monkeypatch.setattr(triton, "tiles", lambda *_, **__: options)
        rows = {"BLOCK": 16, "num_warps": 4, "num_stages": 1}
        monkeypatch.setattr(triton_hyper, "tiles", lambda *_: rows)


@inside
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(name: str) -> None:
    operands, visible = CASES[name].operands(), CASES[name].visible()
    ours = outputs_and_gradients(operands, visible, "triton", torch.float32)
    for mine, truth in zip(ours, outputs_and_gradients(operands, visible, "reference", torch.float64), strict=True):
        torch.testing.assert_close(mine, truth, atol=1e-5, rtol=1e-5)


def check_half_precision(case: Case, dtype: torch.dtype, device: str = "cpu") -> None:
    operands, visible = case.operands(), case.visible()
    rounded = [t if t is None else t.to(dtype) for t in operands]
    exact = outputs_and_gradients(rounded, visible, "reference", torch.float64)
    plain = outputs_and_gradients(rounded, visible, "reference", dtype, device)
    ours = outputs_and_gradients(rounded, visible, "triton", dtype, device)
    for mine, theirs, truth in zip(ours, plain, exact, strict=True):
        assert as_good_as_plain(mine, theirs, truth, dtype)


@inside
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_good_as_plain_pytorch(dtype: torch.dtype) -> None:
    check_half_precision(Case(queries=40, keys=40, heads=1, widths=(16, 16, 16), bias=(1, 1)), dtype)


@inside
def test_large_scores_stay_finite_and_right() -> None:
    case = Case(queries=17, keys=33, heads=1, spread=1e4, widths=(4, 4, 4))
    operands = [t if t is None else t.float() for t in case.operands()]
    assert reference.scores(operands[0], operands[1]).abs().max() > 1e4
    ours = outputs_and_gradients(operands, None, "triton", torch.float32)
    exact = outputs_and_gradients(operands, None, "reference", torch.float64)
    for mine, truth in zip(ours[:2], exact, strict=False):
        torch.testing.assert_close(mine, truth, atol=1e-2, rtol=1e-2)  # a float32 score of 1e4 has an error of 1e-3
    assert all(one.isfinite().all() for one in ours)


@inside
def test_a_bias_of_minus_infinity_hides_a_pair_from_both_directions() -> None:
    case = Case(queries=5, keys=6, heads=1, bias=(1, 1), widths=(4, 4, 4))
    *rest, bias = case.operands()
    bias[..., 1, :] = bias[..., 2] = -INFINITY
    sa, u, *_, dq, dk, dv, dv_hat, dbias = outputs_and_gradients([*rest, bias], None, "triton", torch.float32)
    assert not any(one[0, 0, 1].any() for one in (sa, u, dq, dbias))
    assert not any(one[0, 0, 2].any() for one in (dk, dv, dv_hat)) and not dbias[..., 2].any()
    seen = outputs_and_gradients([*rest, bias], None, "reference", torch.float64)
    for mine, truth in zip((sa, u, dq, dk, dv, dv_hat, dbias), seen, strict=True):
        torch.testing.assert_close(mine, truth, atol=1e-5, rtol=1e-5)


@inside
@pytest.mark.parametrize("shape", [(1, 1, 1, 33), (2, 1, 17, 1), (2, 1, 1, 1)])
def test_a_bias_is_broadcast_along_axes_of_size_1(shape: tuple[int, ...]) -> None:
    """The bias is read in place and its gradient is summed, across tiles of 16 queries and 32 keys."""
    *rest, _ = Case(batch=2, heads=1, queries=17, keys=33, widths=(2, 2, 2)).operands()
    bias = torch.randn(*shape, dtype=torch.float64)
    ours = outputs_and_gradients([*rest, bias], None, "triton", torch.float32)
    expected = outputs_and_gradients([*rest, bias], None, "reference", torch.float64)
    assert ours[-1].shape == shape
    for mine, truth in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, truth, atol=3e-5, rtol=1e-5)


@inside
def test_the_gradient_of_a_bias_is_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from attngraft.mechanisms.bisa import triton

    operands = Case(batch=3, heads=1, queries=4, keys=4, bias=(1, 1)).operands()
    whole = outputs_and_gradients(operands, None, "reference", torch.float64)[-1]
    for programs in (1, 2):  # one part of three members; parts of two and of one
        monkeypatch.setattr(triton, "PROGRAMS", programs)
        parts = outputs_and_gradients(operands, None, "triton", torch.float32)[-1]
        torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)


@inside
def test_second_derivatives_come_from_plain_operations() -> None:
    case = Case(queries=3, keys=4, heads=1, bias=(1, 1), widths=(2, 2, 2), masked=False)

    def penalty(backend: str) -> tuple[Tensor, ...]:
        given = [t if t is None else t.float().requires_grad_() for t in case.operands()]
        sa, u = ops.two_way_attention(*given[:4], bias=given[4], backend=backend)
        first = torch.autograd.grad(sa.square().sum() + u.cos().sum(), given, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), given)

    for mine, theirs in zip(penalty("triton"), penalty("reference"), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@inside
@pytest.mark.parametrize("values", [True, False])
def test_the_custom_ops_are_registered_properly(values: bool) -> None:
    from attngraft.mechanisms.bisa import triton

    case = Case(queries=3, keys=4, heads=1, widths=(2, 2 if values else None, 2), bias=(1, 1))
    given = [t if t is None else t.float().requires_grad_() for t in case.operands()]
    arguments = (*given, torch.rand(3, 4) > 0.2, 0.5)
    assert set(torch.library.opcheck(triton.attend, arguments).values()) == {"SUCCESS"}
    with torch.no_grad():
        sa, u, row_lse, column_lse = triton.attend(*arguments)
    back = (sa, u, *arguments[:-1], sa, row_lse, column_lse, 0.5, True)
    back = tuple(one.detach() if isinstance(one, Tensor) else one for one in back)
    assert set(torch.library.opcheck(triton.attend.backward, back).values()) == {"SUCCESS"}


@inside
def test_the_kernels_serve_every_way_in() -> None:
    q, k, v, v_hat, _ = (t if t is None else t.float() for t in Case(queries=4, keys=4, widths=(3, 3, 3)).operands())
    assert ops.two_way_attention.explain(q, k, v, v_hat).chosen == "triton"
    u_alone = ops.two_way_attention(q, k, None, v_hat)
    both = ops.two_way_attention(q, k, v, v_hat)
    assert u_alone[0] is None
    torch.testing.assert_close(u_alone[1], both[1])
    assert both[0].transpose(1, 2).is_contiguous()  # heads merge without a copy
    hyper = torch.randn(3, 3, 5)
    found = ops.inverse_attention(q, k, v_hat, v_hat, hyper, backend="triton")
    torch.testing.assert_close(found, ops.inverse_attention(q, k, v_hat, v_hat, hyper, backend="reference"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert {one.dtype for one in ops.two_way_attention(q, k.bfloat16(), v, v_hat)} == {torch.bfloat16}
    bias = torch.randn(1, 1, 4, 4, requires_grad=True)  # a float32 table with operands in half precision
    half = [one.bfloat16() for one in (q, k, v, v_hat)]
    mixed = [ops.two_way_attention(*half, bias=bias, backend=backend)[0] for backend in ("triton", "eager")]
    torch.testing.assert_close(*mixed, atol=0.02, rtol=0.02)
    ours, plain = (torch.autograd.grad(one.float().square().sum(), bias)[0] for one in mixed)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, plain, atol=0.05, rtol=0.05)
    nothing = ops.two_way_attention(q, k[:, :, :0], v[:, :, :0], v_hat[:, :, :0], backend="triton")
    assert [out.shape for out in nothing] == [q.shape, q.shape] and not any(out.any() for out in nothing)


@inside
def test_function_transforms_get_plain_operations() -> None:
    q, k, v, v_hat, _ = (t if t is None else t.float() for t in Case(queries=3, keys=4, widths=(3, 3, 3)).operands())

    def loss(q: Tensor, backend: str = "auto") -> Tensor:
        sa, u = ops.two_way_attention(q, k, v, v_hat, backend=backend)
        return sa.square().sum() + ops.hyper_transform(u, q, torch.ones(3, 3, 2), backend=backend).sum()

    expected = torch.autograd.grad(loss(q.requires_grad_(), "reference"), q)[0]
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(torch.stack([q, q]))[1], expected)


@inside
def test_costs_count_every_product_once() -> None:
    case = Case(queries=3, keys=4, heads=1, widths=(2, 5, 6))
    given = [t if t is None else t.float().requires_grad_() for t in case.operands()]
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        sa, u = ops.two_way_attention(*given[:4], backend="triton")
        assert counter.get_total_flops() == 2 * 3 * 4 * (2 + 5 + 6)
        (sa.sum() + u.sum()).backward()
    assert counter.get_total_flops() == 3 * 2 * 3 * 4 * (2 + 5 + 6)


def hyper_results(sizes: dict[str, int], backend: str, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Return the hypernetwork's output, then its gradients, all in float64."""
    torch.manual_seed(0)
    rows = (sizes.get("batch", 2), sizes.get("heads", 2), sizes["tokens"], sizes["width"])
    drawn = [torch.randn(*rows), torch.randn(*rows), torch.randn(rows[-1], rows[-1], sizes["out"]) / rows[-1]]
    rounded = [tensor.to(torch.bfloat16 if dtype == torch.bfloat16 else torch.float16) for tensor in drawn]
    given = [tensor.to(device, dtype).requires_grad_() for tensor in rounded]
    out = ops.hyper_transform(*given, backend=backend)
    assert out.dtype == dtype
    found = [out, *torch.autograd.grad(out, given, torch.randn(out.shape).to(out))]
    return [one.detach().cpu().double() for one in found]


@inside
@pytest.mark.parametrize("programs", [1, 64])
@pytest.mark.parametrize("sizes", [{"tokens": 9, "width": 3, "out": 5}, {"tokens": 5, "width": 18, "out": 33}])
def test_the_hypernetwork(sizes: dict[str, int], programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from attngraft.mechanisms.bisa import triton_hyper

    monkeypatch.setattr(triton_hyper, "PROGRAMS", programs)
    ours = hyper_results(sizes, "triton", torch.float32)
    for mine, truth in zip(ours, hyper_results(sizes, "reference", torch.float64), strict=True):
        torch.testing.assert_close(mine, truth, atol=1e-5, rtol=1e-5)


def check_hyper_half_precision(sizes: dict[str, int], dtype: torch.dtype, device: str = "cpu") -> None:
    ours, plain = (hyper_results(sizes, backend, dtype, device) for backend in ("triton", "eager"))
    exact = hyper_results(sizes, "reference", torch.float64)
    for mine, theirs, truth in zip(ours, plain, exact, strict=True):
        assert as_good_as_plain(mine, theirs, truth, dtype)


@inside
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_hypernetwork_in_half_precision(dtype: torch.dtype) -> None:
    check_hyper_half_precision({"tokens": 20, "width": 8, "out": 12}, dtype)


@inside
def test_the_hypernetwork_as_a_custom_op() -> None:
    from attngraft.mechanisms.bisa import triton_hyper

    shapes = ((2, 2, 3, 2), (2, 2, 3, 2), (2, 2, 5))
    given = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    assert set(torch.library.opcheck(triton_hyper.transform, given).values()) == {"SUCCESS"}
    back = [torch.randn(2, 2, 3, 5), *(tensor.detach() for tensor in given)]
    assert set(torch.library.opcheck(triton_hyper.transform.backward, back).values()) == {"SUCCESS"}
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        out = ops.hyper_transform(*given)
    plain = torch.utils.flop_counter.FlopCounterMode(display=False)
    with plain:
        ops.hyper_transform(*given, backend="eager")
    assert counter.get_total_flops() == plain.get_total_flops()
    assert out.transpose(1, 2).is_contiguous()
    nothing = ops.hyper_transform(given[0][:, :, :0], given[1][:, :, :0], given[2], backend="triton")
    assert nothing.shape == (2, 2, 0, 5)

    def penalty(backend: str) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(
            ops.hyper_transform(*given, backend=backend).square().sum(), given, create_graph=True
        )
        return torch.autograd.grad(sum(g.square().sum() for g in first), given)

    for mine, theirs in zip(penalty("triton"), penalty("reference"), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@inside
def test_compiles_whole() -> None:
    case = Case(queries=3, keys=4, heads=1, bias=(1, 1), widths=(2, 2, 2))
    given = [t if t is None else t.float().requires_grad_() for t in case.operands()]

    def call(*tensors: Tensor) -> Tensor:
        sa, u = ops.two_way_attention(*tensors[:4], bias=tensors[4], backend="triton")
        return sa.square().sum() + u.sin().sum()

    expected = torch.autograd.grad(call(*given), given)
    found = torch.autograd.grad(torch.compile(call, fullgraph=True)(*given), given)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@outside
@pytest.mark.slow
@installed
def test_the_kernels_in_the_interpreter() -> None:
    """Run the tests of this file, and those of every op in precisions of the kernels, in one process."""
    masked_and_hyper = "(TestTwoWayMasked or (TestHyper and not TestHyperInChunks))"
    chosen = f"test_bisa_triton or ({masked_and_hyper} and {IN_THEIR_PRECISION})"
    run_inside(Path(__file__), Path(__file__).with_name("test_bisa_ops.py"), only=chosen)


@outside
def test_reasons_against_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def verdict(*operands: Tensor | None, **masks: Tensor) -> str:
        return ops.two_way_attention.explain(*operands, **masks).verdicts["triton"]

    x, wide = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 129)
    monkeypatch.setattr("attngraft.dispatch.triton.INTERPRETING", False)
    assert "the tensors are on cpu" in verdict(x, x, x, x)
    monkeypatch.setattr("attngraft.dispatch.triton.INTERPRETING", True)
    monkeypatch.setattr("attngraft.dispatch.triton.INSTALLED", True)
    monkeypatch.setattr("attngraft.dispatch.triton.RECENT", True)
    assert verdict(x, x, None, x) == "chosen"
    assert "float64" in verdict(x.double(), x.double(), None, x.double())
    assert "of one dtype" in verdict(x, x.half(), x, x)
    assert "not float64" in verdict(x, x, x, x, bias=torch.zeros(1, 1, 2, 2, dtype=torch.float64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert verdict(x, x.half(), x, x) == "chosen"
    assert "up to 128 channels, but these have 129" in verdict(x, x, wide, x)
    assert verdict(x, x[:, :, :1], x[:, :, :1], x[:, :, :1]) == "chosen"
    assert ops.inverse_attention.explain(x, x, x, x, torch.ones(4, 4, 5)).chosen == "triton"
    matrix = torch.ones(129, 129, 4)
    assert "have 129" in ops.inverse_attention.explain(x, x, wide, wide, matrix).verdicts["triton"]
    assert "have 129" in ops.hyper_transform.explain(wide, wide, matrix).verdicts["triton"]


#: compute capability of an absent GPU, and cases of `compile_bisa_kernels.py`
COMPILED = [(90, ["float32"]), (90, ["odd-inverse"]), (80, ["narrow", "middle"])]


@outside
@compiler
@pytest.mark.parametrize(("capability", "cases"), product_but(COMPILED, COMPILED[:1]))
def test_the_kernels_compile_for_a_gpu_that_is_not_here(capability: int, cases: list[str], tmp_path: Path) -> None:
    script = Path(__file__).with_name("compile_bisa_kernels.py")
    assert compiled_kernels(script, capability, cases, tmp_path) == {
        f"{which}_kernel"
        for which in (
            *("column", "row", "key_gradient", "query_gradient", "bias_gradient"),
            *("transform", "row_gradient", "hyper_gradient"),
        )
    }


@gpu
@pytest.mark.parametrize("width", [16, 32, 64, 128, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_a_gpu(dtype: torch.dtype, width: int) -> None:
    case = Case(batch=4, queries=197, keys=150, heads=3, widths=(width,) * 3, bias=(2, 3), masked=True)
    check_half_precision(case, dtype, "cuda")
    check_hyper_half_precision({"batch": 4, "heads": 3, "tokens": 197, "width": width, "out": width}, dtype, "cuda")
