"""The Triton kernels of bi-directional cross-attention: interpreted, compiled without a GPU, and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attngraft.dispatch.triton import INTERPRETING
from attngraft.mechanisms.bixt import ops, reference
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


@dataclass(frozen=True)
class Case:
    """Sizes of a call; `shared`: which of the latents' operands, references and values, have batch size 1."""

    batch: int = 2
    heads: int = 2
    latents: int = 20
    tokens: int = 70
    widths: tuple[int, int, int] = (5, 18, 3)  # widths of references, latents' values and tokens' values
    shared: tuple[bool, bool] = (False, False)
    spread: float = 1.0

    def operands(self) -> list[Tensor]:
        """Return operands in float64, laid out in memory as (B, N, H, width), as projections return them."""

        def draw(batch: int, tokens: int, width: int) -> Tensor:
            return torch.randn(batch, tokens, self.heads, width, dtype=torch.float64).transpose(1, 2)

        torch.manual_seed(0)
        d, dl, dt = self.widths
        batches = [1 if shared else self.batch for shared in self.shared]
        r_latents, v_latents = draw(batches[0], self.latents, d), draw(batches[1], self.latents, dl)
        return [r_latents * self.spread, draw(self.batch, self.tokens, d), v_latents, draw(self.batch, self.tokens, dt)]


def outputs_and_gradients(
    operands: list[Tensor], backend: str, dtype: torch.dtype, device: str = "cpu", scale: float = 0.5
) -> list[Tensor]:
    """Return outputs, then gradients of their products with fixed cotangents, all in float64."""
    given = [tensor.to(device, dtype).requires_grad_() for tensor in operands]
    found = ops.bidirectional_attention(*given, scale=scale, backend=backend)
    generator = torch.Generator().manual_seed(5)
    cotangents = [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out) for out in found]
    gradients = torch.autograd.grad(found, given, cotangents)
    assert all(one.dtype == dtype for one in (*found, *gradients))
    assert [one.shape for one in gradients] == [one.shape for one in given]
    return [one.detach().cpu().double() for one in (*found, *gradients)]


def check(case: Case) -> None:
    ours = outputs_and_gradients(case.operands(), "triton", torch.float32)
    for mine, truth in zip(ours, outputs_and_gradients(case.operands(), "reference", torch.float64), strict=True):
        torch.testing.assert_close(mine, truth, atol=1e-5, rtol=1e-5)


def check_half_precision(case: Case, dtype: torch.dtype, device: str = "cpu") -> None:
    rounded = [tensor.to(dtype) for tensor in case.operands()]
    exact = outputs_and_gradients(rounded, "reference", torch.float64)
    plain = outputs_and_gradients(rounded, "reference", dtype, device)
    ours = outputs_and_gradients(rounded, "triton", dtype, device)
    for mine, theirs, truth in zip(ours, plain, exact, strict=True):
        assert as_good_as_plain(mine, theirs, truth, dtype)


CASES = {
    "across tiles and parts, odd widths": Case(),
    "latents shared by the images": Case(shared=(True, True), heads=1),
    "references shared alone": Case(shared=(True, False), tokens=9),
    "more latents than tokens": Case(latents=40, tokens=7, heads=1),
    "tiles that fit": Case(latents=32, tokens=64, widths=(16, 16, 16), heads=1),
    "one token": Case(tokens=1),
    "one latent": Case(latents=1, tokens=33),
    "one of all": Case(batch=1, heads=1, latents=1, tokens=1, widths=(1, 1, 1)),
}
WIDE = Case(batch=2, heads=1, latents=18, tokens=35, widths=(20, 36, 50), shared=(True, True))


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tiles so small that small calls have several, and parts of two or three tiles."""
    if INTERPRETING:
        use_tiles(monkeypatch, piece=0)


def use_tiles(monkeypatch: pytest.MonkeyPatch, *, piece: int, programs: int = 8) -> None:
    from attngraft.mechanisms.bixt import triton

    options = {"BLOCK_N": 16, "PIECE": piece, "num_warps": 4, "num_stages": 1}
    monkeypatch.setattr(triton, "tiles", lambda *_: options)
    monkeypatch.setattr(triton, "PROGRAMS", programs)


@inside
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(name: str) -> None:
    check(CASES[name])


@inside
def test_wide_latents_are_read_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiles(monkeypatch, piece=16)
    check(WIDE)


@inside
@pytest.mark.parametrize("piece", [0, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_good_as_plain_pytorch(
    dtype: torch.dtype, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_tiles(monkeypatch, piece=piece)
    check_half_precision(WIDE, dtype)


@inside
def test_large_scores_stay_finite_and_right() -> None:
    case = Case(batch=1, heads=1, latents=17, tokens=33, spread=2e4, widths=(4, 4, 4))
    operands = [tensor.float() for tensor in case.operands()]
    assert reference.similarity(*operands[:2], scale=0.5).abs().max() > 1e4
    ours = outputs_and_gradients(operands, "triton", torch.float32)
    exact = outputs_and_gradients(operands, "reference", torch.float64)
    for mine, truth in zip(ours[:2], exact, strict=False):
        torch.testing.assert_close(mine, truth, atol=1e-2, rtol=1e-2)  # a float32 score of 1e4 has an error of 1e-3
    assert all(one.isfinite().all() for one in ours)


@inside
def test_the_parts_of_the_tokens_change_nothing_but_the_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(batch=1, heads=2, latents=5, tokens=70, widths=(4, 4, 4))
    exact = outputs_and_gradients(case.operands(), "reference", torch.float64)
    for programs in (1, 4, 64):  # one part of five tiles; one of three and one of two; five of one
        use_tiles(monkeypatch, piece=0, programs=programs)
        once, again = (outputs_and_gradients(case.operands(), "triton", torch.float32) for _ in range(2))
        assert all(map(torch.equal, once, again))
        for mine, truth in zip(once, exact, strict=True):
            torch.testing.assert_close(mine, truth, atol=1e-5, rtol=1e-5)


@inside
def test_tokens_lie_beyond_what_32_bits_count() -> None:
    """Only the pages that are read of the 4 GiB are allocated."""
    far = torch.empty(2**31 + 8, dtype=torch.float16).as_strided((1, 1, 3, 8), (0, 0, 2**30, 1))
    far.copy_(torch.randn(3, 8))
    near, latents = far.clone(), torch.randn(1, 1, 4, 8).half()
    for ours, theirs in zip(*(outputs_of(latents, tokens, "triton") for tokens in (far, near)), strict=True):
        assert torch.equal(ours, theirs)


def outputs_of(latents: Tensor, tokens: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    return ops.bidirectional_attention(latents, tokens, latents, tokens, scale=0.5, backend=backend)


@inside
def test_second_derivatives_come_from_plain_operations() -> None:
    case = Case(heads=1, latents=3, tokens=4, widths=(2, 2, 2), shared=(True, True))

    def penalty(backend: str) -> tuple[Tensor, ...]:
        given = [tensor.float().requires_grad_() for tensor in case.operands()]
        latents, tokens = ops.bidirectional_attention(*given, scale=0.5, backend=backend)
        first = torch.autograd.grad(latents.square().sum() + tokens.cos().sum(), given, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), given)

    for mine, theirs in zip(penalty("triton"), penalty("reference"), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@inside
def test_the_custom_ops_are_registered_properly() -> None:
    from attngraft.mechanisms.bixt import triton

    case = Case(heads=2, latents=3, tokens=4, widths=(2, 3, 4), shared=(True, True))
    given = [tensor.float().requires_grad_() for tensor in case.operands()]
    assert set(torch.library.opcheck(triton.attend, (*given, 0.5)).values()) == {"SUCCESS"}
    with torch.no_grad():
        latents, tokens, lse = triton.attend(*given, 0.5)
    back = (latents, tokens, *(tensor.detach() for tensor in given), latents, lse, 0.5)
    assert set(torch.library.opcheck(triton.attend.backward, back).values()) == {"SUCCESS"}


@inside
def test_the_kernels_serve_every_way_in() -> None:
    given = [tensor.float() for tensor in Case(tokens=5, widths=(3, 3, 3), shared=(True, True)).operands()]
    assert ops.bidirectional_attention.explain(*given, scale=0.5).chosen == "triton"
    both = ops.bidirectional_attention(*given, scale=0.5)
    assert all(one.transpose(1, 2).is_contiguous() for one in both)  # heads merge without a copy
    apart = [tensor.transpose(0, -1).contiguous().transpose(0, -1) for tensor in given]  # channels apart in memory
    for ours, theirs in zip(ops.bidirectional_attention(*apart, scale=0.5, backend="triton"), both, strict=True):
        assert torch.equal(ours, theirs)
    r_latents, r_tokens, v_latents, v_tokens = given
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = ops.bidirectional_attention(r_latents, r_tokens.bfloat16(), v_latents, v_tokens, scale=0.5)
    assert {one.dtype for one in mixed} == {torch.bfloat16}


@inside
@pytest.mark.parametrize(("latents", "tokens"), [(3, 0), (0, 4)])
def test_of_nothing_comes_zero(latents: int, tokens: int) -> None:
    results = outputs_and_gradients(Case(latents=latents, tokens=tokens).operands(), "triton", torch.float32)
    assert [out.shape[2] for out in results] == [latents, tokens, latents, tokens, latents, tokens]
    assert not any(out.any() for out in results)


@inside
def test_function_transforms_get_plain_operations() -> None:
    r_latents, *rest = (tensor.float() for tensor in Case(tokens=4, widths=(3, 3, 3)).operands())

    def loss(r_latents: Tensor, backend: str = "auto") -> Tensor:
        latents, tokens = ops.bidirectional_attention(r_latents, *rest, scale=0.5, backend=backend)
        return latents.square().sum() + tokens.cos().sum()

    expected = torch.autograd.grad(loss(r_latents.requires_grad_(), "reference"), r_latents)[0]
    found = torch.func.vmap(torch.func.grad(loss))(torch.stack([r_latents, r_latents]))
    torch.testing.assert_close(found[1], expected)


@inside
def test_costs_count_every_product_once() -> None:
    case = Case(batch=2, heads=1, latents=3, tokens=4, widths=(2, 5, 6), shared=(True, True))
    given = [tensor.float().requires_grad_() for tensor in case.operands()]
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        latents, tokens = ops.bidirectional_attention(*given, scale=0.5, backend="triton")
        assert counter.get_total_flops() == 2 * 2 * 3 * 4 * (2 + 5 + 6)
        (latents.sum() + tokens.sum()).backward()
    assert counter.get_total_flops() == 3 * 2 * 2 * 3 * 4 * (2 + 5 + 6)


@inside
def test_compiles_whole() -> None:
    given = [tensor.float().requires_grad_() for tensor in Case(tokens=4, shared=(True, True)).operands()]

    def call(*tensors: Tensor) -> Tensor:
        latents, tokens = ops.bidirectional_attention(*tensors, scale=0.5, backend="triton")
        return latents.square().sum() + tokens.sin().sum()

    expected = torch.autograd.grad(call(*given), given)
    found = torch.autograd.grad(torch.compile(call, fullgraph=True)(*given), given)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@outside
@installed
@pytest.mark.slow
def test_the_kernels_in_the_interpreter() -> None:
    """Run the tests of this file, and those of every op in precisions of the kernels, in one process."""
    chosen = f"test_bixt_triton or (TestBidirectionalShared and {IN_THEIR_PRECISION})"
    run_inside(Path(__file__), Path(__file__).with_name("test_bixt_ops.py"), only=chosen)


@outside
def test_reasons_against_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def verdict(*operands: Tensor, dropout: float = 0.0) -> str:
        explained = ops.bidirectional_attention.explain(*operands, scale=1.0, dropout=dropout)
        return explained.verdicts["triton"]

    x, wide, many = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 129), torch.ones(1, 1, 129, 4)
    monkeypatch.setattr("attngraft.dispatch.triton.INTERPRETING", False)
    assert "the tensors are on cpu" in verdict(x, x, x, x)
    monkeypatch.setattr("attngraft.dispatch.triton.INTERPRETING", True)
    monkeypatch.setattr("attngraft.dispatch.triton.INSTALLED", True)
    monkeypatch.setattr("attngraft.dispatch.triton.RECENT", True)
    assert verdict(x, many, x, many) == "chosen"
    assert "float64" in verdict(*[x.double()] * 4)
    assert "of one dtype" in verdict(x, x.half(), x, x)
    assert "up to 128 channels, but these have 129" in verdict(x, x, wide, x)
    assert "up to 128 latents, not 129" in verdict(many, x, many, x)
    assert "have no dropout" in verdict(x, x, x, x, dropout=0.1)


#: compute capability of an absent GPU, and cases of `compile_bixt_kernels.py`
COMPILED = [(90, ["paper", "float32-most"]), (80, ["published", "most", "float32"])]


@outside
@compiler
@pytest.mark.parametrize(("capability", "cases"), product_but(COMPILED, COMPILED[:1]))
def test_the_kernels_compile_for_a_gpu_that_is_not_here(capability: int, cases: list[str], tmp_path: Path) -> None:
    script = Path(__file__).with_name("compile_bixt_kernels.py")
    assert compiled_kernels(script, capability, cases, tmp_path) == {"forward_kernel", "backward_kernel"}


@gpu
@pytest.mark.parametrize("latents", [1, 32, 64, 128])
@pytest.mark.parametrize("widths", [(32, 32, 32), (64, 64, 64), (128, 128, 128), (20, 100, 36)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_a_gpu(dtype: torch.dtype, widths: tuple[int, int, int], latents: int) -> None:
    """Outputs and gradients equal the reference's, with the tiles and parts of real use."""
    case = Case(batch=3, heads=3, latents=latents, tokens=1111, widths=widths, shared=(True, True))
    check_half_precision(case, dtype, "cuda")
