"""Local attention as a compiler sees it: the same outputs and gradients as the equation, and no tensor of neighborhoods."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attngraft.mechanisms.local import local_filter, local_scores


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def operands(batch: int = 2, heads: int = 2, width: int = 3, size: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    channels = heads * width
    return double(batch, channels, 5, 4), double(batch, heads * size**2, 5, 4), double(channels, size, size)


def outputs(function: Any, *inputs: Tensor, **options: Any) -> tuple[Tensor, ...]:
    out = function(*inputs, **options)
    return out, *torch.autograd.grad(out.sin().sum(), inputs)


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("softmax", [False, True])
def test_filters_are_those_of_the_equation(softmax: bool, dilation: int) -> None:
    def call(values: Tensor, filters: Tensor, add: Tensor, backend: str = "auto") -> Tensor:
        return local_filter(
            values, filters, None, add, kernel_size=3, dilation=dilation, gamma=0.5, softmax=softmax, backend=backend
        )

    given = operands()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(outputs(compiled, *given), outputs(call, *given, backend="reference"))


@pytest.mark.parametrize("dilation", [1, 2])
def test_scores_are_those_of_the_equation(dilation: int) -> None:
    def call(queries: Tensor, keys: Tensor, backend: str = "auto") -> Tensor:
        return local_scores(queries, keys, heads=2, kernel_size=5, dilation=dilation, backend=backend)

    given = double(2, 6, 5, 4), double(2, 6, 5, 4)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(outputs(compiled, *given), outputs(call, *given, backend="reference"))


@pytest.mark.slow
def test_inductor_stores_no_neighborhoods() -> None:
    """Forward and backward, also with another number of images; a tensor of neighborhoods has k * k times the values."""
    sizes: list[int] = []

    def call(values: Tensor, filters: Tensor, add: Tensor) -> Tensor:
        return local_filter(values.sin(), filters, None, add, kernel_size=3)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True)
    for batch in (2, 3, 4):
        given = operands(batch=batch, width=16)

        def record(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
            found = outputs(compiled, *given)
        torch.testing.assert_close(found, outputs(call, *given))
        padded = batch * (5 + 2) * (4 + 2) * 32
        assert max(sizes) <= padded
        sizes.clear()
