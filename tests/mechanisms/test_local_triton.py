"""The Triton kernels of local attention: interpreted, compiled without a GPU, and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attngraft.dispatch.triton import INTERPRETING
from attngraft.mechanisms.local import ops
from attngraft.mechanisms.local.geometry import Neighborhood
from tests.mechanisms.op_tester import as_good_as_plain
from tests.mechanisms.triton_runs import compiled_kernels, compiler, gpu, inside, installed, outside, run_inside
from tests.slow import product_but


@dataclass(frozen=True)
class Case:
    """Sizes of a call."""

    batch: int = 1
    heads: int = 2
    width: int = 5
    rows: int = 4
    columns: int = 5
    size: int = 3
    dilation: int = 1
    stride: int = 1
    ghosts: tuple[bool, bool] = (False, True)  #: multiplier, addend
    softmax: bool = True
    spread: float = 1.0

    @property
    def neighborhood(self) -> Neighborhood:
        return Neighborhood(self.size, self.dilation, self.stride)

    def operands(self) -> list[Tensor | None]:
        """Return operands in float64."""
        torch.manual_seed(0)
        channels = self.heads * self.width
        strided = [-(-side // self.stride) for side in (self.rows, self.columns)]
        values = torch.randn(self.batch, channels, self.rows, self.columns, dtype=torch.float64)
        filters = torch.randn(self.batch, self.heads * self.size**2, *strided, dtype=torch.float64) * self.spread
        mul, add = (
            torch.randn(channels, self.size, self.size, dtype=torch.float64) if there else None for there in self.ghosts
        )
        return [values, filters, mul, add]


def outputs_and_gradients(case: Case, backend: str, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Return the output, then gradients of its product with a fixed cotangent, in float64, of rounded operands."""
    given = [None if each is None else each.to(device, dtype).requires_grad_() for each in case.operands()]
    found = ops.LOCAL_FILTER(*given, neighborhood=case.neighborhood, softmax=case.softmax, backend=backend)
    cotangent = torch.randn(found.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(found)
    wanted = [each for each in given if each is not None]
    gradients = torch.autograd.grad(found, wanted, cotangent)
    assert all(one.dtype == dtype for one in (found, *gradients))
    assert [one.shape for one in gradients] == [one.shape for one in wanted]
    return [one.detach().cpu().double() for one in (found, *gradients)]


def check(case: Case, device: str = "cpu") -> None:
    ours = outputs_and_gradients(case, "triton", torch.float32, device)
    for mine, truth in zip(ours, outputs_and_gradients(case, "reference", torch.float64), strict=True):
        torch.testing.assert_close(mine, truth, atol=2e-5, rtol=1e-5)


def check_half_precision(case: Case, dtype: torch.dtype, device: str = "cpu") -> None:
    class Rounded(Case):
        def operands(self) -> list[Tensor | None]:
            return [None if each is None else each.to(dtype).double() for each in super().operands()]

    rounded = Rounded(**vars(case))
    exact = outputs_and_gradients(rounded, "reference", torch.float64)
    plain = outputs_and_gradients(rounded, "reference", dtype, device)
    ours = outputs_and_gradients(rounded, "triton", dtype, device)
    for mine, theirs, truth in zip(ours, plain, exact, strict=True):
        assert as_good_as_plain(mine, theirs, truth, dtype)


CASES = {
    "across tiles, odd widths": Case(),
    "both ghosts": Case(batch=2, heads=1, ghosts=(True, True)),
    "a wide neighborhood": Case(heads=1, size=5),
    "no ghost, filters as they are": Case(ghosts=(False, False), softmax=False),
    "a multiplier of filters as they are": Case(ghosts=(True, False), softmax=False),
    "dilated": Case(dilation=2, ghosts=(True, True)),
    "strided": Case(stride=2, rows=6, ghosts=(True, True)),
    "strided and dilated": Case(stride=2, dilation=2, size=3, ghosts=(False, True)),
    "a map smaller than the kernel": Case(rows=2, columns=1, size=5),
    "one of all": Case(batch=1, heads=1, width=1, rows=1, columns=1, size=1, ghosts=(True, True)),
    "more images than parts": Case(
        batch=3 if INTERPRETING else 17, heads=1, width=2, rows=1, columns=2, ghosts=(True, True)
    ),
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tiles so small that small calls have several, and sums of three images in two parts."""
    if INTERPRETING:
        from attngraft.mechanisms.local import triton

        monkeypatch.setattr(triton, "tiles", lambda _: {"BLOCK_P": 16, "num_warps": 4})
        monkeypatch.setattr(triton, "PARTS", 2)


@inside
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(name: str) -> None:
    check(CASES[name])


@inside
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_good_as_plain_pytorch(dtype: torch.dtype) -> None:
    check_half_precision(Case(ghosts=(True, True)), dtype)


@inside
def test_large_scores_stay_finite_and_right() -> None:
    ours = outputs_and_gradients(Case(spread=1e4), "triton", torch.float32)
    exact = outputs_and_gradients(Case(spread=1e4), "reference", torch.float64)
    assert all(one.isfinite().all() for one in ours)
    torch.testing.assert_close(ours[0], exact[0], atol=1e-2, rtol=1e-2)


@inside
def test_the_same_call_gives_the_same_bits() -> None:
    once, again = (outputs_and_gradients(CASES["more images than parts"], "triton", torch.float32) for _ in range(2))
    assert all(map(torch.equal, once, again))


@inside
def test_second_derivatives_come_from_plain_operations() -> None:
    case = Case(batch=1, heads=1, width=2, rows=3, columns=2, ghosts=(True, True))

    def penalty(backend: str) -> tuple[Tensor, ...]:
        given = [each.float().requires_grad_() for each in case.operands() if each is not None]
        found = ops.LOCAL_FILTER(*given, neighborhood=case.neighborhood, softmax=True, backend=backend)
        first = torch.autograd.grad(found.square().sum(), given, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), given)

    for mine, theirs in zip(penalty("triton"), penalty("reference"), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@inside
def test_the_custom_op_is_registered_properly() -> None:
    from attngraft.mechanisms.local import triton

    case = Case(heads=1, width=2, rows=3, columns=2, ghosts=(True, True))
    values, filters, mul, add = (each.float() for each in case.operands() if each is not None)
    given = [each.contiguous().requires_grad_() for each in (values, filters, mul.flatten(1), add.flatten(1))]
    assert set(torch.library.opcheck(triton.apply_filters, (*given, 3, 1, 1, True)).values()) == {"SUCCESS"}


@inside
def test_work_is_counted_as_on_other_paths() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    case = Case(ghosts=(True, True))
    given = [None if each is None else each.float() for each in case.operands()]
    with FlopCounterMode(display=False) as counter:
        ops.LOCAL_FILTER(*given, neighborhood=case.neighborhood, softmax=True, backend="triton")
    assert counter.get_total_flops() == 3 * 2 * 10 * 4 * 5 * 9


@outside
@installed
@pytest.mark.slow
def test_the_kernels_in_the_interpreter() -> None:
    run_inside(Path(__file__))


#: compute capability of an absent GPU, and cases of `compile_local_kernels.py`; without cases, all
COMPILED = [(90, ["both ghosts", "widest"]), (90, []), (80, [])]


@outside
@compiler
@pytest.mark.parametrize(("capability", "cases"), product_but(COMPILED, COMPILED[:1]))
def test_the_kernels_compile(capability: int, cases: list[str], tmp_path: Path) -> None:
    script = Path(__file__).with_name("compile_local_kernels.py")
    assert compiled_kernels(script, capability, cases, tmp_path) == {
        "forward_kernel",
        "values_kernel",
        "filters_kernel",
        "ghosts_kernel",
    }


@outside
@installed
def test_heads_that_are_too_wide_say_so() -> None:
    case = Case(width=129, heads=1)
    given = [None if each is None else each.float() for each in case.operands()]
    verdict = ops.LOCAL_FILTER.explain(*given, neighborhood=case.neighborhood, softmax=True).verdicts["triton"]
    assert "are on cpu" in verdict or "heads of up to 128 channels, but these have 129" in verdict


@gpu
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name: str) -> None:
    check(CASES[name], "cuda")


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_on_a_gpu(dtype: torch.dtype) -> None:
    check_half_precision(Case(width=32, rows=14, columns=14, size=7, ghosts=(True, True)), dtype, "cuda")
