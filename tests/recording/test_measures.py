"""Measures of attention maps: by their definitions, at their bounds, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attngraft.errors import UsageError
from attngraft.recording import measures
from attngraft.recording.attention_maps import normalized_coordinates


def test_uniform_attention_has_the_largest_entropy_and_steepness() -> None:
    uniform = torch.full((2, 3, 196, 196), 1 / 196, dtype=torch.float64)
    assert math.isclose(measures.entropy(uniform).mean().item(), math.log(196))
    scores = torch.zeros(5, 196, dtype=torch.float64)
    expected = torch.full((5,), 2 * (1 - 1 / 196), dtype=torch.float64)
    torch.testing.assert_close(measures.steepness(scores, temperature=2.0), expected)
    assert measures.steepness(torch.randn(196), temperature=1.0) < 1 - 1 / 196


def test_steepness_is_the_nuclear_norm_of_the_jacobian() -> None:
    scores = torch.randn(7, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: torch.softmax(1.5 * s, -1), scores)
    expected = torch.linalg.matrix_norm(jacobian, ord="nuc")
    torch.testing.assert_close(measures.steepness(scores, temperature=1.5), expected)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 4), columns=st.integers(2, 4), seed=st.integers(0, 99))
def test_distance_by_the_definition(rows: int, columns: int, seed: int) -> None:
    tokens = rows * columns
    torch.manual_seed(seed)
    weights = torch.rand(2, tokens, tokens, dtype=torch.float64).softmax(-1)
    total = 0.0
    for i in range(tokens):
        for j in range(tokens):
            far = abs(i // columns - j // columns) / rows + abs(i % columns - j % columns) / columns
            total += weights[:, i, j].mean().item() * far
    pair = measures.relative_distance(weights, (rows, columns), normalize="pair_mean").mean().item()
    assert math.isclose(pair, total / (tokens * (tokens - 1)))
    assert math.isclose(measures.relative_distance(weights, (rows, columns)).mean().item(), total / tokens)


def test_distance_refuses_a_map_with_prefix_tokens() -> None:
    weights = torch.rand(2, 17, 17).softmax(-1)
    with pytest.raises(UsageError, match="does not fit a grid of 4 x 4"):
        measures.relative_distance(weights, (4, 4))
    spatial: Tensor = measures.without_prefix(weights)
    torch.testing.assert_close(spatial.sum(-1), torch.ones(2, 16))
    assert (measures.relative_distance(spatial, (4, 4)) > 0).all()


def test_scale_statistics() -> None:
    ratio, mean = measures.scale_statistics(torch.arange(-5.0, 6.0))
    assert (round(ratio.item(), 5), mean.item()) == (1.0, 0.0)


def test_distance_by_place_is_that_of_the_grid_and_leaves_out_what_stands_nowhere() -> None:
    weights = torch.rand(3, 1, 2, 6, 6, dtype=torch.float64).softmax(-1)  # images, windows, heads
    at = normalized_coordinates(torch.arange(6).view(2, 3), 6).double()
    torch.testing.assert_close(measures.windowed_distance(weights, at), measures.relative_distance(weights, (2, 3)))
    at = normalized_coordinates(torch.tensor([[0, 2], [5, 3]]), 6).double()  # 1 and 4 fill up
    found = measures.windowed_distance(weights, at)
    own = weights[..., [0, 2, 5, 3], :][..., [0, 2, 5, 3]]
    expected = measures.relative_distance(own / own.sum(-1, keepdim=True), (2, 2))
    torch.testing.assert_close(found[..., [0, 2, 5, 3]], expected)
    assert not found[..., [1, 4]].any()


def test_a_row_that_gives_everything_to_the_prefix_is_0() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.0, 0.25, 0.75]])
    assert measures.without_prefix(weights).tolist() == [[0, 0], [0.25, 0.75]]
    negative = torch.tensor([[1.0, 0, 0], [2.0, -3.0, 2.0], [0, 1, 0]])  # as talking heads may leave it
    assert measures.without_prefix(negative)[0].tolist() == [3, -2]


def test_distance_in_half_precision() -> None:
    weights = torch.randn(2, 3, 12, 12, dtype=torch.float64).softmax(-1)
    exact = measures.relative_distance(weights, (3, 4))
    assert exact.dtype == torch.float64
    for kind in (torch.bfloat16, torch.float16):
        half = measures.relative_distance(weights.to(kind), (3, 4))
        assert half.dtype == kind
        torch.testing.assert_close(half.double(), exact, rtol=0.03, atol=0)
