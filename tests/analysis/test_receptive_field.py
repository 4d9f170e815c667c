"""Effective receptive fields."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor, nn

import attngraft
from attngraft.analysis.receptive_field import area_holding, pixel_gradient, receptive_field
from attngraft.errors import UsageError


def convolution(size: int) -> nn.Conv2d:
    layer = nn.Conv2d(2, 3, size, padding=size // 2)
    nn.init.constant_(layer.weight, 1)
    return layer


def test_a_convolution_sees_its_kernel() -> None:
    layer = convolution(3)
    field = receptive_field(lambda x: layer(x).movedim(1, -1), torch.rand(4, 2, 9, 9))
    expected = torch.zeros(9, 9)
    expected[3:6, 3:6] = 1
    torch.testing.assert_close(field, expected)
    assert layer.weight.grad is None
    corner = receptive_field(lambda x: layer(x).movedim(1, -1), torch.rand(4, 2, 9, 9), place=(0, 8))
    assert corner[:2, 7:].min() == 1
    assert corner.sum() == 4


def test_means_over_batches_are_taken_before_it_is_scaled() -> None:
    layer, images = convolution(3), torch.rand(3, 2, 9, 9)

    def features(x: Tensor) -> Tensor:
        return layer(x).square().movedim(1, -1)

    parts = 2 * pixel_gradient(features, images[:2]) + pixel_gradient(features, images[2:])
    torch.testing.assert_close(parts / parts.max(), receptive_field(features, images))


def test_what_lessens_the_features_does_not_count() -> None:
    layer = convolution(1)
    nn.init.constant_(layer.bias, 9)
    nn.init.constant_(layer.weight, -1)
    assert not receptive_field(lambda x: layer(x).movedim(1, -1), torch.rand(1, 2, 5, 5)).any()


def test_of_a_recorded_model_under_no_grad() -> None:
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, embed_dim=24, num_heads=2
    ).eval()

    def features(images: Tensor) -> Tensor:
        with attngraft.record(model, "mlp.end", sites="blocks.1", detach=False) as recording:
            model(images)
        return recording.on_map("blocks.1.mlp", "mlp.end")

    with torch.no_grad():
        field = receptive_field(features, torch.randn(3, 3, 32, 32))
    assert field.shape == (32, 32)
    assert (field.max(), field.min() >= 0) == (1, True)
    assert (field > 0).float().mean() > 0.9, "attention sees the whole image"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_area_that_holds_a_share() -> None:
    field = torch.zeros(9, 9)
    field[3:6, 3:6] = 1
    assert area_holding(field, 0.1) == pytest.approx(1 / 81)
    assert area_holding(field, 0.12) == pytest.approx(9 / 81)
    assert area_holding(field, 1) == pytest.approx(9 / 81)
    assert area_holding(torch.ones(4, 8), 1) == 1
    assert area_holding(torch.ones(9, 9), 0.99) == 1
    within = torch.zeros(101, 101)
    within[35:66, 35:66] = torch.rand(31, 31)
    assert area_holding(within, 1) == pytest.approx(31**2 / 101**2)
    assert area_holding(torch.ones(300, 300, dtype=torch.float16), 0.5) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (lambda x: x.mean((2, 3)), "are no map"),
        (lambda x: x.movedim(1, -1)[:, :2], "no place"),
        (lambda x: x.detach().movedim(1, -1), "detach=False"),
    ],
)
def test_what_has_no_field_says_why(features, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=message):
        receptive_field(features, torch.rand(1, 2, 6, 6), place=(3, 3))


@pytest.mark.parametrize(
    ("field", "share"), [(torch.zeros(3, 3), 0.5), (torch.ones(3, 3), 0.0), (torch.ones(3, 3), 1.5)]
)
def test_no_area(field: Tensor, share: float) -> None:
    with pytest.raises(UsageError, match="0 everywhere|between 0 and 1"):
        area_holding(field, share)
