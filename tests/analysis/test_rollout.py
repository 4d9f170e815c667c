"""Attention through the layers."""

from __future__ import annotations

import pytest
import torch

from attngraft.analysis.rollout import rollout
from attngraft.errors import UsageError


def maps(layers: int, tokens: int = 5) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, tokens, tokens).softmax(-1) for _ in range(layers)]


def test_it_is_the_product_layer_by_layer() -> None:
    given = maps(3)
    expected = torch.eye(5)
    for weights in given:
        expected = (0.5 * weights.mean(1) + 0.5 * torch.eye(5)) @ expected
    torch.testing.assert_close(rollout(given), expected)
    torch.testing.assert_close(rollout(given).sum(-1), torch.ones(2, 5))


@pytest.mark.parametrize("fuse", ["max", "min"])
def test_other_ways_to_fuse_heads_keep_rows(fuse) -> None:  # type: ignore[no-untyped-def]
    found = rollout(maps(2), fuse=fuse, residual=0.25)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 5))
    first = maps(1)[0]
    fused = getattr(first, f"a{fuse}")(1)
    mixed = 0.75 * fused + 0.25 * torch.eye(5)
    torch.testing.assert_close(rollout([first], fuse=fuse, residual=0.25), mixed / mixed.sum(-1, keepdim=True))


def test_small_entries_can_be_left_out_but_not_the_class_tokens() -> None:
    weights = torch.tensor([[0.1, 0.3, 0.6], [0.2, 0.7, 0.1], [0.05, 0.15, 0.8]]).expand(1, 1, 3, 3)
    found = rollout([weights], discard=0.5, residual=0)  # the four smallest are 0.05, 0.1 twice and 0.15
    expected = torch.tensor([[[0.1, 0.3, 0.6], [0.2, 0.7, 0.0], [0.05, 0.0, 0.8]]])
    torch.testing.assert_close(found, expected / expected.sum(-1, keepdim=True))


def test_no_maps_and_maps_of_other_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="must not be empty"):
        rollout([])
    with pytest.raises(UsageError, match="must have the same shape"):
        rollout([*maps(1), *maps(1, tokens=4)])
