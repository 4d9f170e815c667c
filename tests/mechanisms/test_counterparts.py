"""ELSA's counterparts against the formula, pixel by pixel, and against special cases of the family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attngraft.errors import UsageError
from attngraft.mechanisms.local.counterparts import (
    DecoupledFilter,
    DepthwiseConvolution,
    DynamicConvolution,
    filter_norm,
)
from attngraft.mechanisms.local.unified import LocalAttention
from tests.seeding import seed

LAYERS: dict[str, Callable[..., Any]] = {
    "depthwise": DepthwiseConvolution,
    "dynamic": DynamicConvolution,
    "decoupled": DecoupledFilter,
}


def of(layer: Callable[..., Any], dim: int = 6, **options: Any) -> Any:
    seed(0)
    made = layer(dim, kernel_size=3, **options).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def filters_of(layer: Any, x: Tensor) -> Tensor:
    """Return the filters of the table, (B, C, K, Y, X)."""
    batch, rows, columns, channels = x.shape
    mean = x.mean((1, 2))
    if isinstance(layer, DepthwiseConvolution):
        found = layer.filters.flatten(1).repeat_interleave(channels // layer.heads, 0)[None, :, :, None, None]
        return found.expand(batch, -1, -1, rows, columns)
    if isinstance(layer, DynamicConvolution):
        made = layer.expand(F.relu(layer.norm(layer.squeeze(mean)))).view(batch, channels, -1, 1, 1)
        return made.expand(-1, -1, -1, rows, columns)
    spatial = filter_norm(layer.spatial(x)) * layer.spatial_scale + layer.spatial_shift
    made = filter_norm(layer.expand(F.relu(layer.squeeze(mean))).view(batch, channels, -1))
    made = made * layer.channel_scale[:, None] + layer.channel_shift[:, None]
    return torch.einsum("byxo,bco->bcoyx", spatial, made)


def spelled_out(layer: Any, x: Tensor) -> Tensor:
    values = F.pad(layer.proj_in(x).permute(0, 3, 1, 2), (1, 1, 1, 1))
    filters = filters_of(layer, x)
    rows, columns = x.shape[1:3]
    out = sum(
        filters[:, :, 3 * i + j] * values[:, :, i : i + rows, j : j + columns] for i in range(3) for j in range(3)
    )
    return layer.proj_out(out.permute(0, 2, 3, 1))


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@given(batch=st.integers(1, 3), rows=st.integers(1, 5), columns=st.integers(1, 5))
def test_they_are_what_the_table_says(layer: Callable[..., Any], batch: int, rows: int, columns: int) -> None:
    made = of(layer)
    x = torch.randn(batch, rows, columns, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    inputs = x.requires_grad_()
    found, expected = made(inputs), spelled_out(made, inputs)
    torch.testing.assert_close(found, expected)
    wanted = [inputs, *made.parameters()]
    for a, b in zip(
        torch.autograd.grad(found.square().sum(), wanted),
        torch.autograd.grad(expected.square().sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_a_depthwise_convolution_is_net4_without_a_norm_and_with_a_head_for_each_channel() -> None:
    made = of(DepthwiseConvolution)
    family = LocalAttention(6, 6, terms=("rb",), size=3, norm="identity").double()
    family.load_state_dict(
        {
            "proj_in.weight": made.proj_in.weight,
            "proj_in.bias": made.proj_in.bias,
            "proj_out.weight": made.proj_out.weight,
            "proj_out.bias": made.proj_out.bias,
            "rb": made.filters.flatten(1),
        }
    )
    x = torch.randn(2, 5, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(made(x), family(x))


def test_heads_share_filters() -> None:
    made = of(DepthwiseConvolution, heads=2)
    assert made.filters.shape == (2, 3, 3)
    x = torch.randn(2, 4, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(made(x), spelled_out(made, x))


def test_images_of_a_batch_stay_apart() -> None:
    x = torch.randn(3, 4, 4, 6, dtype=torch.float64)
    for layer in LAYERS.values():
        made = of(layer)
        torch.testing.assert_close(made(x), torch.cat([made(image) for image in x.split(1)]))


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="kernel_size must be odd"):
        DynamicConvolution(6, kernel_size=4)
    with pytest.raises(UsageError, match="the width 6 is not divisible by 4 heads"):
        DepthwiseConvolution(6, heads=4)


@pytest.mark.parametrize("layer", LAYERS)
def test_none_holds_more_than_it_says(layer: str) -> None:
    dim, offsets = 40, 9
    made = LAYERS[layer](dim, kernel_size=3)
    ends = 2 * (dim * dim + dim)
    hidden = {"dynamic": dim // 4, "decoupled": dim // 5}.get(layer, 0)
    generated = dim * hidden + hidden + hidden * dim * offsets + dim * offsets
    own = {
        "depthwise": dim * offsets,
        "dynamic": generated + 2 * hidden,
        "decoupled": generated + (dim + 1) * offsets + 2 + 2 * dim,
    }[layer]
    assert sum(parameter.numel() for parameter in made.parameters()) == ends + own
