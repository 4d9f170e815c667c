"""Local attention: the tests of every op, and mathematical properties."""

# ruff: noqa: RUF012 - the sizes of a tester are constants

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from attngraft.errors import UsageError
from attngraft.mechanisms.local import banded, eager, local_filter, local_scores, ops, shifted
from attngraft.mechanisms.local.geometry import Neighborhood
from tests.conformance.weights import input_value
from tests.mechanisms.op_tester import Call, OpTester


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _several_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the small maps of these tests span several strips and blocks, as large ones do."""
    monkeypatch.setattr(banded, "NUMBERS", 1)
    monkeypatch.setattr(banded, "BLOCK", 3)
    monkeypatch.setattr(shifted, "CHANNELS", 2)


class TestLocalFilter(OpTester):
    """Softmax and addend, stride 1, as in the published models."""

    op = ops.LOCAL_FILTER
    sizes = {
        "batch": st.integers(1, 2),
        "heads": st.integers(1, 3),
        "width": st.integers(1, 3),
        "rows": st.integers(1, 8),
        "columns": st.integers(1, 8),
        "size": st.sampled_from((1, 3, 5)),
        "dilation": st.integers(1, 2),
        "ghost": st.sampled_from(("", "add", "mul", "mul add")),
        "stride": st.integers(1, 2),
        "softmax": st.booleans(),
    }
    small = {
        "batch": 1,
        "heads": 2,
        "width": 2,
        "rows": 3,
        "columns": 2,
        "size": 3,
        "dilation": 1,
        "ghost": "add",
        "stride": 1,
        "softmax": True,
    }
    large = {**small, "batch": 2, "width": 8, "rows": 12, "columns": 9, "size": 5}
    macs = 2 * (3 * 2 * 4 * 9)

    def build(self, **s: Any) -> Call:
        near = Neighborhood(s["size"], s["dilation"], s["stride"])
        channels, strided = s["heads"] * s["width"], [-(-s[axis] // s["stride"]) for axis in ("rows", "columns")]
        mul, add = (
            double(channels, near.size, near.size) if name in s["ghost"].split() else None for name in ("mul", "add")
        )
        return Call(
            (
                double(s["batch"], channels, s["rows"], s["columns"]),
                double(s["batch"], s["heads"] * near.offsets, *strided),
                mul,
                add,
            ),
            {"neighborhood": near, "softmax": s["softmax"]},
        )


class TestLocalFilterGhost(TestLocalFilter):
    """With a multiplier by channel."""

    small = {**TestLocalFilter.small, "ghost": "mul add"}
    large = {**TestLocalFilter.large, "ghost": "mul add"}
    macs = 3 * (3 * 2 * 4 * 9)


class TestLocalFilterStrided(TestLocalFilter):
    small = {**TestLocalFilter.small, "ghost": "", "stride": 2, "softmax": False, "rows": 5, "columns": 3}
    large = {**TestLocalFilter.large, "ghost": "", "stride": 2, "softmax": False}
    macs = 4 * 3 * 2 * 9


class TestLocalScores(OpTester):
    op = ops.LOCAL_SCORES
    sizes = {
        "batch": st.integers(1, 2),
        "heads": st.integers(1, 3),
        "width": st.integers(1, 3),
        "rows": st.integers(1, 8),
        "columns": st.integers(1, 8),
        "size": st.sampled_from((1, 3, 5)),
        "dilation": st.integers(1, 2),
    }
    small = {"batch": 1, "heads": 2, "width": 2, "rows": 3, "columns": 2, "size": 3, "dilation": 1}
    large = {**small, "batch": 2, "width": 8, "rows": 12, "columns": 9, "size": 5}
    macs = 3 * 2 * 4 * 9

    def build(self, **s: Any) -> Call:
        shape = s["batch"], s["heads"] * s["width"], s["rows"], s["columns"]
        options = {"heads": s["heads"], "neighborhood": Neighborhood(s["size"], s["dilation"])}
        return Call((double(*shape), double(*shape)), options)


#: multiply-adds of the backward for an offset of a channel of a pixel, whose output is (mul weight) value
BACKWARD = {
    "": ("to output * value: to the weight", "to output * weight: to the value"),
    "mul": (
        "to output * value: to the product with the multiplier",
        "that * mul: to the weight",
        "that * weight: to the multiplier",
        "to output * product with the multiplier: to the value",
    ),
}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("ghost", BACKWARD)
def test_what_the_backward_costs(ghost: str, stride: int) -> None:
    """Counted by hand: 2 images, 4 channels, 9 offsets, 5 x 3 pixels or, with a stride, 3 x 2."""
    rows, columns = {1: (5, 3), 2: (3, 2)}[stride]
    given = [double(2, 4, 5, 3), double(2, 2 * 9, rows, columns), *([double(4, 3, 3)] if ghost else [])]
    leaves = [tensor.requires_grad_() for tensor in given]
    with FlopCounterMode(display=False) as counter:
        found = local_filter(*leaves, kernel_size=3, stride=stride, backend="eager")
        torch.autograd.grad(found.sum(), leaves)
    counts, places = counter.get_flop_counts()["Global"], 2 * 4 * 9 * rows * columns
    assert counts == {
        torch.ops.attngraft.local_filter_lean: 2 * places * (2 if ghost else 1),
        torch.ops.attngraft.local_filter_lean_backward: 2 * places * len(BACKWARD[ghost]),
    }


def operands(
    *, channels: int = 4, heads: int = 2, size: int = 3, rows: int = 6, columns: int = 5
) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return double(2, channels, rows, columns), double(2, heads * size**2, rows, columns)


def test_weights_of_one_add_up_to_one_inside_and_lose_what_falls_outside() -> None:
    _, filters = operands()
    found = local_filter(torch.ones(2, 4, 6, 5, dtype=torch.float64), torch.zeros_like(filters), kernel_size=3)
    torch.testing.assert_close(found[:, :, 1:-1, 1:-1], torch.ones_like(found[:, :, 1:-1, 1:-1]))
    torch.testing.assert_close(found[:, :, 0, 0], torch.full_like(found[:, :, 0, 0], 4 / 9))


def test_the_addend_alone_is_a_depthwise_convolution() -> None:
    values, filters = operands()
    add = double(4, 3, 3)
    found = local_filter(values, torch.zeros_like(filters), add=add, gamma=0.5, softmax=False, kernel_size=3)
    torch.testing.assert_close(found, F.conv2d(values, 0.5 * add.unsqueeze(1), padding=1, groups=4))


def test_the_offsets_go_row_by_row_from_the_upper_left() -> None:
    values, filters = operands()
    only = torch.zeros_like(filters)
    only[:, 1::9] = 1  # the second offset of either head: the pixel above
    found = local_filter(values, only, softmax=False, kernel_size=3)
    torch.testing.assert_close(found[:, :, 1:], values[:, :, :-1])
    assert not found[:, :, 0].any()


def test_a_multiplier_with_exponent_0_and_an_addend_with_factor_0_are_left_out() -> None:
    values, filters = operands()
    plain = local_filter(values, filters, kernel_size=3)
    ghost = local_filter(values, filters, double(4, 3, 3), double(4, 3, 3), lam=0, gamma=0, kernel_size=3)
    assert torch.equal(plain, ghost)
    squared = local_filter(values, filters, torch.full((4, 3, 3), -2.0).double(), lam=2, kernel_size=3)
    torch.testing.assert_close(squared, 4 * plain)


@pytest.mark.parametrize("backend", ["eager", "reference"])
@pytest.mark.parametrize("shape", [(0, 4, 6, 5), (2, 4, 0, 5), (2, 4, 6, 0)])
def test_nothing_gives_nothing(shape: tuple[int, ...], backend: str) -> None:
    if backend == "reference" and 0 in shape[2:]:
        pytest.skip("PyTorch unfolds no map without pixels")
    values = torch.randn(shape, requires_grad=True)
    filters = torch.randn(shape[0], 18, *shape[2:], requires_grad=True)
    found = local_filter(values, filters, kernel_size=3, backend=backend)
    assert found.shape == shape
    gradients = torch.autograd.grad(found.sum(), [values, filters], materialize_grads=True)
    assert [gradient.shape for gradient in gradients] == [values.shape, filters.shape]


@pytest.mark.parametrize("rows", [7, 8])
def test_a_stride_may_leave_out_or_keep_the_last_row(rows: int) -> None:
    """The published kernel rounds down, a convolution rounds up."""
    values, _ = operands(rows=7, columns=8)
    for part in {rows // 2, 4}:
        filters = double(2, 18, part, 4)
        ours, theirs = (
            local_filter(values, filters, add=torch.ones(4, 3, 3).double(), stride=2, kernel_size=3, backend=backend)
            for backend in ("eager", "reference")
        )
        assert ours.shape == (2, 4, part, 4)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_logits_stay_finite(dtype: torch.dtype) -> None:
    values, filters = (tensor.to(dtype).requires_grad_() for tensor in operands())
    found = local_filter(values, 1e4 * filters.sign() + filters, kernel_size=3)
    for tensor in (found, *torch.autograd.grad(found.sum(), [values, filters])):
        assert tensor.isfinite().all()


class Largest(TorchDispatchMode):
    """Dispatch mode that stores the size of the largest new tensor, also inside our operations."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "attngraft":
            with self:
                return {
                    "local_filter_lean": eager.apply_filters,
                    "local_filter_lean_backward": eager.apply_filters.backward,
                }[func._opname]._init_fn(*args)
        found = func(*args, **(kwargs or {}))
        self.numbers = max([self.numbers, *(t.numel() for t in tree_leaves(found) if isinstance(t, Tensor))])
        return found


@pytest.mark.parametrize("ghost", [False, True])
def test_images_of_a_batch_know_nothing_of_each_other(monkeypatch: pytest.MonkeyPatch, ghost: bool) -> None:
    """Small images are computed as one tall image; even infinities do not leak from one to the next."""
    monkeypatch.setattr(banded, "BLOCK", 16)
    values, filters = torch.randn(5, 4, 3, 2), torch.randn(5, 2 * 9, 3, 2)
    values[2] = torch.inf
    mul, add = torch.randn(2, 4, 3, 3)
    given = [values.requires_grad_(), filters.requires_grad_()]
    others = [0, 1, 3, 4]

    def results(some: list[int]) -> list[Tensor]:
        found = local_filter(values[some], filters[some], mul if ghost else None, add, kernel_size=3, backend="eager")
        gradients = torch.autograd.grad(found[[i for i, image in enumerate(some) if image != 2]].sum(), given)
        return [found, *gradients]

    together, apart = results([0, 1, 2, 3, 4]), results(others)
    assert not together[0][2].isfinite().any()
    torch.testing.assert_close(together[0][others], apart[0])
    for ours, theirs in zip(together[1:], apart[1:], strict=True):
        torch.testing.assert_close(ours[others], theirs[others])


@pytest.mark.parametrize("ghost", [False, True])
def test_nothing_is_k_times_k_times_as_large_as_the_values(monkeypatch: pytest.MonkeyPatch, ghost: bool) -> None:
    monkeypatch.setattr(shifted, "CHANNELS", 32)
    values, filters = torch.randn(1, 32, 40, 40), torch.randn(1, 25, 40, 40)
    mul = torch.randn(32, 5, 5) if ghost else None
    tensors = [values.requires_grad_(), filters.requires_grad_()]
    with Largest() as seen:
        found = local_filter(values, filters, mul, torch.randn(32, 5, 5), kernel_size=5)
        torch.autograd.grad(found.sum(), tensors)
    assert seen.numbers <= (25 / 8 if ghost else 1.5) * values.numel()
    with Largest() as seen:
        local_filter(values, filters, mul, kernel_size=5, backend="reference")
    assert seen.numbers == 25 * values.numel(), "it would be seen"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kernel_size": 4}, "must be odd, so that each neighborhood has a center, not 4"),
        ({"kernel_size": 5}, "have 25 maps per head for a 5 x 5 neighborhood"),
        ({"dilation": 0}, "1 or more, not 0 and 1"),
        ({"stride": 2}, "the values have Y = 6, so the filters cannot have Y = 6 with stride 2"),
        ({"values": double(2, 5, 6, 5)}, "divides the 5 channels"),
        (
            {"values": double(1, 4, 6, 5)},
            "filters must have shape (B, HK, Y', X') with B=1 as in the operands before it",
        ),
        ({"values": double(4, 6, 5)}, "values must have shape (B, C, Y, X), not (4, 6, 5)"),
        ({"mul": double(4, 3)}, "mul must be (4, 3, 3) for these values, not (4, 3)"),
        ({"add": double(2, 3, 3)}, "add must be (4, 3, 3)"),
    ],
)
def test_operands_that_do_not_fit(changed: dict[str, Any], said: str) -> None:
    values, filters = operands()
    with pytest.raises(UsageError, match=re.escape(said)):
        local_filter(**{"values": values, "filters": filters, "kernel_size": 3, **changed})


def test_scores_of_a_pixel_and_its_neighbors() -> None:
    queries, keys = double(1, 4, 3, 5), double(1, 4, 3, 5)
    found = local_scores(queries, keys, heads=2, kernel_size=3).unflatten(1, (2, 9))
    torch.testing.assert_close(found[0, 1, 3, 1, 2], queries[0, 2:, 1, 2] @ keys[0, 2:, 1, 1])  # the left neighbor
    assert not found[0, :, :3, 0].any(), "nothing is above the first row"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kernel_size": 2}, "must be odd"),
        (
            {"keys": double(2, 4, 5, 5)},
            "keys must have shape (B, C, Y, X) with B=2, C=4, Y=6, X=5 as in the operands before it",
        ),
        ({"heads": 3}, "the 4 channels are not divisible by 3 heads"),
    ],
)
def test_scores_of_operands_that_do_not_fit(changed: dict[str, Any], said: str) -> None:
    given = {"queries": double(2, 4, 6, 5), "keys": double(2, 4, 6, 5), "heads": 2, "kernel_size": 3}
    with pytest.raises(UsageError, match=re.escape(said)):
        local_scores(**{**given, **changed})  # type: ignore[arg-type]


def vectors(shared: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in sorted((shared / "conformance/vectors/elsa").glob("op_*.json"))]
    assert found
    return found


@pytest.mark.parametrize("backend", ["eager", "reference"])
def test_the_published_operator(shared: Path, backend: str) -> None:
    """Outputs and gradients equal those of the conformance vectors."""
    assert {vector["config"]["stride"] for vector in vectors(shared)} == {1}, "docstring and guide say so"
    for vector in vectors(shared):
        config = vector["config"]
        given = {name: torch.from_numpy(input_value(name, shape)) for name, shape in vector["inputs"].items()}
        given = {name: tensor.requires_grad_() for name, tensor in given.items()}
        found = local_filter(
            given["v"],
            given["attn"],
            given.get("ghost_mul"),
            given.get("ghost_add"),
            kernel_size=config["kernel_size"],
            dilation=config["dilation"],
            stride=config["stride"],
            lam=config["lam"],
            gamma=config["gamma"],
            softmax=False,
            backend=backend,
        )
        (found * torch.from_numpy(input_value("grad", found.shape))).sum().backward()
        ours = {"out": found, **{f"grad_{name}": tensor.grad for name, tensor in given.items()}}
        for name, entry in vector["expected"].items():
            theirs = torch.tensor(entry["values"])
            flat = ours[name].detach().flatten()[:: entry.get("stride", 1)]  # type: ignore[union-attr]
            torch.testing.assert_close(flat, theirs, atol=entry.get("atol", vector["atol"]), rtol=vector["rtol"])
