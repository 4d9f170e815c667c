"""Effective receptive fields."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import attngraft
from attngraft.analysis.receptive_field import ANALYSIS, area_holding, pixel_gradient, receptive_field
from attngraft.errors import RecordError, UsageError
from attngraft.results.analysis import Curves, Pictures
from tests.analysis.requests import bixt, inputs, make_request, nest, rows_of, run_and_check, swin, vit


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
        (lambda x: x.mean((2, 3)), "must be a map"),
        (lambda x: x.movedim(1, -1)[:, :2], "outside the map"),
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


def gradient(model: nn.Module, layer: nn.Module, images: Tensor, at: tuple[int, ...]) -> Tensor:
    """Of what leaves `layer` at one place, one image at a time."""
    kept: list[Tensor] = []
    hook = layer.register_forward_hook(lambda module, given, output: kept.append(output))
    total = torch.zeros(images.shape[-2:])
    for image in images:
        pixels = image[None].clone().requires_grad_()
        model(pixels)
        (moved,) = torch.autograd.grad(kept.pop()[0][at].relu().sum(), pixels)
        total += moved[0].clamp_min(0).sum(0)
    hook.remove()
    return total / total.max()


def area(field: Tensor, share: float) -> float:
    """Of the smallest square around the middle that holds it."""
    for reach in range(len(field)):
        side = slice(max(0, 16 - reach), 16 + reach + 1)
        part = field[side, side]
        if part.sum() >= share * field.sum() * (1 - 1e-6):
            return part.numel() / field.numel()
    return 1.0


def test_against_gradients(tmp_path: Path) -> None:
    given = make_request(vit(), swin(), names=("ViT", "Swin"))
    with torch.no_grad():
        result = run_and_check(ANALYSIS, given, tmp_path)
    pictures, curves = result.panels
    assert isinstance(pictures, Pictures)
    layers = [given.models[0].model.blocks[2].mlp, given.models[1].model.layers[1].blocks[1].mlp]
    for place, (layer, at) in enumerate(zip(layers, [(1 + 2 * 4 + 2,), (2 * 4 + 2,)], strict=True)):
        subject = given.models[place]
        field = gradient(subject.model, layer, inputs(given, [0, 2, 4, 5, 7, 9], place), at)
        expected = np.log10(field.numpy().clip(1e-4))
        np.testing.assert_allclose(np.array(pictures.rows[0].pictures[place].values), expected, atol=1e-3)
        for share in (0.2, 0.3, 0.5, 0.99):
            (row,) = rows_of(result, model=subject.name, share=share)
            assert row["area"] == pytest.approx(area(field, share))
            assert row["stage"] == "mlp.end"
            assert result.numbers[f"{subject.name}: area that holds {share:.0%}"] == row["area"]
    assert isinstance(curves, Curves)
    assert [line.subject for line in curves.lines] == [0, 1, None]
    assert all(parameter.grad is None for subject in given.models for parameter in subject.model.parameters())


def test_the_last_layer_with_a_map(tmp_path: Path) -> None:
    model = swin()
    attngraft.graft(model, "elsa(kernel=3)@layers.0")
    given = make_request(bixt(), model, names=("BiXT", "elsa"), limit=2, sites="all")
    result = run_and_check(ANALYSIS, given, tmp_path)
    layers = {row["model"]: row["layer"] for row in rows_of(result)}
    assert layers == {
        "BiXT": "blocks.1.cross_attention_latents_token.mlp_pat",
        "elsa": "layers.1.blocks.1.mlp",
    }
    result = run_and_check(ANALYSIS, make_request(model, limit=2, sites="layers.0.blocks.0.attn"), tmp_path)
    (row, *_) = rows_of(result)
    assert (row["layer"], row["stage"]) == ("layers.0.blocks.0.attn", "attn.end")


def test_an_mlp_is_enough_and_what_has_no_map(tmp_path: Path) -> None:
    mixer = attngraft.create_model("small_mixer", num_blocks=2, embed_dim=16).eval()
    result = run_and_check(ANALYSIS, make_request(mixer, bixt(), limit=2, sites="all"), tmp_path)
    assert {row["model"] for row in rows_of(result)} == {"a", "b"}
    with pytest.raises(RecordError, match="no chosen layer has a map"):
        ANALYSIS(make_request(bixt(), limit=2, sites="blocks.2"))


def test_blocks_of_nest_are_put_back() -> None:
    """The middle of its last map but one is in the last of four blocks."""
    model = nest()
    given = make_request(model, limit=2, sites="levels.1")
    result = ANALYSIS(given)
    (row, *_) = rows_of(result)
    assert (row["layer"], row["stage"]) == ("levels.1.transformer_encoder.0.mlp", "mlp.end")
    field = gradient(model, model.levels[1].transformer_encoder[0].mlp, inputs(given, [0, 9]), (3, 0))
    (picture,) = result.panels[0].rows[0].pictures
    np.testing.assert_allclose(np.array(picture.values), np.log10(field.numpy().clip(1e-4)), atol=1e-3)
