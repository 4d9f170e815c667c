"""The layer on groups that is computed on points equals the one on groups in memory."""

from __future__ import annotations

import copy

import pytest
import torch

from attngraft.errors import UsageError
from attngraft.models.points.layers import Normalize, Stage
from attngraft.models.points.neighborhoods import neighborhoods


@pytest.mark.parametrize("normalize", ["anchor", "center"])
@pytest.mark.parametrize("use_xyz", [False, True])
@pytest.mark.parametrize("blocks", [0, 1])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("anchors", [None, 20])
@pytest.mark.parametrize("bias", [False, True])
def test_it_equals_the_plain_form(
    normalize: Normalize, use_xyz: bool, blocks: int, train: bool, anchors: int | None, bias: bool
) -> None:
    """Outputs, gradients and running statistics."""
    torch.manual_seed(0)
    options = {"normalize": normalize, "use_xyz": use_xyz, "pre_blocks": blocks, "pos_blocks": 0, "bias": bias}
    fast = Stage(6, 8, anchors=anchors, neighbors=5, **options).double().train(train)
    with torch.no_grad():
        for parameter in fast.parameters():
            parameter.normal_()
    plain = copy.deepcopy(fast)
    xyz, features = torch.randn(3, 50, 3).double(), torch.randn(3, 50, 6).double()
    one, other = features.clone().requires_grad_(), features.clone().requires_grad_()
    found, expected = fast(xyz, one), plain.plain(xyz, other)
    torch.testing.assert_close(found, expected)
    gradient = torch.randn_like(found[1])
    found[1].backward(gradient)
    expected[1].backward(gradient)
    torch.testing.assert_close(one.grad, other.grad)
    for (name, a), b in zip(fast.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)
    for (name, a), b in zip(fast.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_without_gradients_maxima_are_the_same() -> None:
    values, points = torch.randn(2, 30, 4), torch.randn(2, 30, 3)
    near = neighborhoods(points, anchors=7, neighbors=5)
    with torch.no_grad():
        found = near.maxima(values)
    torch.testing.assert_close(found, near.maxima(values.requires_grad_()).detach())


def test_clouds_with_too_few_points_are_refused() -> None:
    with pytest.raises(UsageError, match="these clouds have 4 points, but 5 are needed"):
        neighborhoods(torch.randn(1, 4, 3), anchors=None, neighbors=5)
