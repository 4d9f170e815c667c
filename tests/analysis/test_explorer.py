"""What a page of looks is made of, against what is recorded."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import attngraft
import attngraft.models  # registers BiXT
from attngraft.analysis.explorer import QuantizedTensor, explorer_data
from attngraft.errors import RecordError, UsageError
from attngraft.recording.reductions import REDUCTIONS, TokenLayout


def vit(**changes: Any) -> nn.Module:
    shape = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", **shape | changes)


def swin(size: int = 32) -> nn.Module:
    return timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=size,
        window_size=4,
        depths=(2, 2),
        embed_dim=24,
        num_heads=(1, 2),
    )


def image(size: int = 32) -> Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("numbers", [torch.rand(3, 50), torch.randn(3, 50), torch.zeros(4), torch.empty(0)])
def test_bytes_keep_numbers_to_a_part_of_the_root_of_the_largest(numbers: Tensor) -> None:
    kept = QuantizedTensor.of(numbers, "attn")
    assert kept.bytes.dtype == torch.int8
    largest = float(numbers.abs().max()) if len(numbers) else 0.0
    assert kept.largest == largest
    allowed = (largest * numbers.abs()).sqrt() / 127 + largest / 4 / 127**2
    assert ((kept.numbers() - numbers).abs() <= allowed + 1e-7).all()


def test_a_vit() -> None:
    model = vit(class_token=True, reg_tokens=1)
    with torch.no_grad(), attngraft.record(model.eval(), "weights") as recording:
        recording.reduce("entropy", "distance")
        model(image())
    found = explorer_data(model, image())
    assert [layer.site for layer in found.layers] == ["blocks.0.attn", "blocks.1.attn"]
    assert found.skipped == {}
    for layer in found.layers:
        assert (layer.kind, layer.heads, layer.token_indices.shape) == ("maps", 2, (4, 4))
        assert layer.prefix == recording.prefix(layer.site) == ("class", "register 1")
        assert layer.numbers[0].bytes.shape == (1, 2, 18, 18)
        assert layer.entropy == pytest.approx(recording[layer.site]["entropy"].mean(1).tolist(), rel=1e-5)
        assert layer.distance == pytest.approx(recording[layer.site]["distance"].mean(1).tolist(), rel=1e-5)
        assert layer.ceiling == pytest.approx(math.log(18))


def test_windows_that_are_shifted_and_filled_up() -> None:
    model = swin(56).eval()  # maps of 14 and 7, windows of 4
    found = explorer_data(model, image(56)).layers
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        model(image(56))
    for layer in found:
        assert torch.equal(layer.token_indices, recording.token_indices(layer.site))
        weights = recording[layer.site]["weights"]
        assert (layer.numbers[0].numbers() - weights).abs().max() < 0.01 * weights.max()
        whole = recording.full_attention_map(layer.site)
        rows, columns = layer.token_indices.shape
        at = torch.stack(
            [torch.arange(rows).repeat_interleave(columns) / rows, torch.arange(columns).repeat(rows) / columns], 1
        )
        among = whole[0] / whole[0].sum(-1, keepdim=True)
        expected = (among * torch.cdist(at, at, p=1)).sum(2).mean(1)
        assert layer.distance == pytest.approx(expected.tolist(), rel=1e-4)
        spread = torch.special.entr(among).sum(2).mean(1)
        assert layer.entropy == pytest.approx(spread.tolist(), rel=1e-4), "what fills windows up does not count"


def test_the_ceiling_counts_the_places_of_a_window_and_not_what_fills_it_up() -> None:
    sides = {14: (4, 4, 4, 2), 7: (4, 3)}  # of windows of 4 on a map of 14, and of 7: places by row, and by column
    for layer in explorer_data(swin(56), image(56)).layers:
        grid = len(layer.token_indices)
        shapes = itertools.product(sides[grid], repeat=2)
        expected = sum(down * across * math.log(down * across) for down, across in shapes) / grid**2
        assert layer.ceiling == pytest.approx(expected)
        assert all(each <= layer.ceiling + 1e-6 for each in layer.entropy)


def test_what_looks_the_same_everywhere_reaches_the_ceiling() -> None:
    model = swin(56)
    for name, parameter in model.named_parameters():
        if "qkv" in name or "relative_position" in name:
            parameter.data.zero_()
    for layer in explorer_data(model, image(56), sites="layers.*.blocks.0").layers:  # those of no masks
        assert layer.entropy == pytest.approx([layer.ceiling] * layer.heads)


def test_a_row_that_looks_at_the_filling_alone() -> None:
    places = torch.tensor([[0, 1]])  # the third token of the window is none
    weights = torch.tensor([[[[0.0, 0.0, 1.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]]])
    found = REDUCTIONS["patch_entropy"](weights, TokenLayout(token_indices=places))
    torch.testing.assert_close(found, torch.tensor([[[0.0, math.log(2)]]]))


def test_what_grafts_put_in_its_place_or_beside() -> None:
    model = swin()
    attngraft.graft(model, "elsa(kernel=3)@layers.0.blocks.0 + bisa@layers.1.blocks.1")
    found = {layer.site: layer for layer in explorer_data(model, image()).layers}
    assert list(found) == [
        "layers.0.blocks.0.attn: elsa.local_filters",
        "layers.0.blocks.1.attn",
        "layers.1.blocks.0.attn",
        "layers.1.blocks.1.attn",
        "layers.1.blocks.1.attn: bisa.inverse_weights",
    ]
    filters = found["layers.0.blocks.0.attn: elsa.local_filters"]
    assert (filters.kind, filters.numbers[0].bytes.shape) == ("filters", (1, 9, 8, 8))
    around = (36 * math.log(9) + 24 * math.log(6) + 4 * math.log(4)) / 64  # in the middle, at the sides, in the corners
    assert filters.ceiling == pytest.approx(around), "neighbors beyond the map do not count"
    assert 0 < filters.distance[0] < 2 / 8
    inverse = found["layers.1.blocks.1.attn: bisa.inverse_weights"]
    assert (inverse.entropy, inverse.distance) == ((), ()), "its rows do not sum to 1"


def shapes(model: nn.Module, size: int) -> list[list[tuple[int, ...] | None]]:
    layers = explorer_data(model, image(size)).layers
    assert {layer.kind for layer in layers} == {"latents"}
    return [[None if each is None else tuple(each.bytes.shape) for each in layer.numbers] for layer in layers]


def test_latents() -> None:
    model = timm.create_model("bixt_ti_l64_p16", img_size=64, depth=2)
    last = [(6, 64, 16), None]  # the last layer's tokens attend to nothing
    assert shapes(model, 64) == [[(6, 64, 16), (6, 16, 64)], last]
    found = explorer_data(model, image(64))
    assert all(layer.token_indices.shape == (4, 4) for layer in found.layers)
    assert set(found.skipped) == {f"blocks.{block}.self_attention_latents.attn" for block in (0, 1)}
    assert all("they have no grid" in why for why in found.skipped.values())


def test_latents_and_tokens_that_attend_one_after_the_other() -> None:
    """As many latents as tokens, so that maps are square."""
    model = timm.create_model("sequential_d11", img_size=128, depth=2)
    assert shapes(model, 128) == [[(3, 64, 64), None], [None, (3, 64, 64)], [(3, 64, 64), None]]


def test_latents_that_attend_while_no_site_has_the_tokens_alone() -> None:
    found = explorer_data(timm.create_model("iterative_sa5_d8_k2", img_size=64), image(64))
    assert {layer.token_indices.shape for layer in found.layers} == {(4, 4)}
    assert {layer.kind for layer in found.layers} == {"latents"}


def test_neighbors_beyond_the_map_do_not_count() -> None:
    model = swin()
    attngraft.graft(model, "elsa(kernel=7)@layers.1")  # neighborhoods of 7 x 7 on a map of 4 x 4
    with torch.no_grad(), attngraft.record(model.eval(), "elsa") as recording:
        model(image())
    for layer in explorer_data(model, image(), sites="layers.1").layers:
        site = layer.site.split(": ")[0]
        whole = recording.full_attention_map(site, "elsa.local_filters")[0]
        among = whole / whole.sum(-1, keepdim=True)
        at = torch.tensor([[row / 4, column / 4] for row in range(4) for column in range(4)])
        assert layer.ceiling == pytest.approx(math.log(16))
        assert layer.entropy == pytest.approx(torch.special.entr(among).sum(-1).mean(1).tolist(), rel=1e-4)
        assert layer.distance == pytest.approx((among * torch.cdist(at, at, p=1)).sum(2).mean(1).tolist(), rel=1e-4)


def test_filters_that_are_no_shares_have_no_entropy() -> None:
    model = swin()
    attngraft.graft(model, "involution(kernel=3)@layers.0")
    (layer, *_) = explorer_data(model, image(), sites="layers.0").layers
    assert (layer.kind, layer.entropy, layer.distance) == ("filters", (), ())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    model = swin()
    attngraft.graft(model, "elsa(kernel=3)@layers.0.blocks.0")
    expected = explorer_data(model, image()).layers
    found = explorer_data(model.to(dtype), image().to(dtype)).layers
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.entropy == pytest.approx(theirs.entropy, rel=0.02)


@pytest.mark.parametrize("size", [(64, 64), (16, 64)], ids=str)
def test_an_image_of_another_size_than_the_models_has_its_own_map(size: tuple[int, int]) -> None:
    model, pixels = vit(dynamic_img_size=True), torch.randn(1, 3, *size)
    with torch.no_grad(), attngraft.record(model.eval(), "weights") as recording:
        recording.reduce("entropy", "distance")
        model(pixels)
    found = explorer_data(model, pixels)
    assert [tuple(layer.token_indices.shape) for layer in found.layers] == [(size[0] // 8, size[1] // 8)] * 2
    for layer in found.layers:
        assert layer.distance == pytest.approx(recording[layer.site]["distance"].mean(1).tolist(), rel=1e-5)


def test_sequences_that_lie_between_each_other() -> None:
    """MobileViT's, one for each pixel of its patches of 2 x 2."""
    found = explorer_data(timm.create_model("mobilevit_xxs"), image(256), sites="stages.2.1.transformer.0.attn")
    (layer,) = found.layers
    assert layer.token_indices.shape == (32, 32)
    assert layer.numbers[0].bytes.shape == (4, 4, 256, 256)
    assert layer.token_indices[:2, :3].tolist() == [[0, 256, 1], [512, 768, 513]]
    assert layer.ceiling == pytest.approx(math.log(256))


def test_numbers_that_are_not_finite() -> None:
    model = vit()
    model.blocks[1].attn.qkv.weight.data.fill_(torch.nan)
    found = explorer_data(model, image())
    assert [layer.site for layer in found.layers] == ["blocks.0.attn"]
    assert "NaN or infinity" in found.skipped["blocks.1.attn"]


def test_a_compiled_model() -> None:
    model = vit()
    expected = explorer_data(model, image()).layers
    found = explorer_data(torch.compile(model, backend="eager"), image()).layers
    assert torch.equal(found[0].numbers[0].bytes, expected[0].numbers[0].bytes)


def test_the_model_is_left_as_it_was() -> None:
    model = vit(drop_rate=0.5).train()
    model.blocks[0].eval()
    before = {name: module.training for name, module in model.named_modules()}
    explorer_data(model, image(), sites="blocks.1")
    assert {name: module.training for name, module in model.named_modules()} == before
    assert type(model.blocks[1].attn).__module__.startswith("timm")


def test_what_cannot_be_shown() -> None:
    with pytest.raises(UsageError, match="image must have shape"):
        explorer_data(vit(), torch.randn(2, 3, 32, 32))
    with pytest.raises(
        RecordError, match="no chosen site attends to positions of the image: none of them is an attention"
    ):
        explorer_data(timm.create_model("mixer_s32_224", img_size=64), image(64))


# --- structure --------------------------------------------------------------------------------------------------------


def test_the_structure_is_what_lacks_to_uniform_attention_among_patches() -> None:
    model = vit(reg_tokens=1)
    with torch.no_grad(), attngraft.record(model.eval(), "weights") as recording:
        model(image())
    for layer in explorer_data(model, image()).layers:
        among = recording[layer.site]["weights"][0, :, 2:, 2:]  # without the class token and the register
        share = among.sum(-1)
        spread = torch.special.entr(among / share[..., None]).sum(-1)
        expected = share * (1 - spread / math.log(16))
        torch.testing.assert_close(layer.structure, expected.view(2, 4, 4), atol=1e-5, rtol=1e-4)


def test_the_structure_of_windows_filters_and_latents() -> None:
    model = swin(56)
    attngraft.graft(model, "elsa(kernel=3)@layers.0.blocks.0 + bisa@layers.1.blocks.1")
    for layer in explorer_data(model, image(56)).layers:
        if "inverse" in layer.site:
            assert layer.structure.numel() == 0, "its rows do not sum to 1"
            continue
        assert layer.structure.shape == (layer.heads, *layer.token_indices.shape)
        assert 0 <= layer.structure.min() <= layer.structure.max() <= 1
    bixt = timm.create_model("bixt_ti_l64_p16", img_size=64, depth=2)
    first, last = explorer_data(bixt, image(64)).layers
    assert (first.structure.shape, last.structure.shape) == ((6, 4, 4), (0,)), (
        "the last layer's tokens attend to nothing"
    )


def test_the_opening_is_the_most_structured_head_and_patch() -> None:
    model = vit(depth=3)
    for block in model.blocks:
        block.attn.qkv.weight.data.zero_()
        block.attn.qkv.bias.data.zero_()
    found = explorer_data(model, image())
    opening = found.opening({"blocks.0.attn", "blocks.1.attn", "blocks.2.attn"})
    assert opening is not None
    assert (opening.layer, opening.head, opening.row, opening.column) == (0, 0, 0, 0), "uniform: the first of all"
    assert opening.structure == pytest.approx(0, abs=1e-6)
    generator = torch.Generator().manual_seed(0)
    weight = model.blocks[1].attn.qkv.weight.data
    for start in (12, 36):  # queries and keys of the second head, 12 wide
        weight[start : start + 12] = torch.randn(12, 24, generator=generator)
    found = explorer_data(model, image())
    opening = found.opening({"blocks.0.attn", "blocks.1.attn", "blocks.2.attn"})
    assert opening is not None
    assert (opening.layer, opening.head) == (1, 1)
    patches = found.layers[1].structure[1]
    assert patches[opening.row, opening.column] == patches.max()
    other = found.opening({"blocks.2.attn"})
    assert other is not None
    assert other.layer == 2
    assert found.opening(set()) is None
