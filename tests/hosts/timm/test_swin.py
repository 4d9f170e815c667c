"""Peculiarities of Swin: windows, the shift mask, zero padding."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attngraft
from attngraft.mechanisms.bisa import reference

SPECS = ["bisa", "misa", "bisa(norm=true)", "bisa(transform=mlp)", "misa(norm=true)"]


def make(size: int = 28, **changes: Any) -> nn.Module:
    """Create a Swin with two blocks, the second shifted by 2, on a map of `size` / 4 in windows of 4."""
    torch.manual_seed(1)
    sizes = {"img_size": size, "window_size": 4, "depths": (2,), "embed_dim": 16, "num_heads": (2,), "num_classes": 5}
    return timm.create_model("swin_tiny_patch4_window7_224", **(sizes | changes)).eval()


def unlike_at_first(model: nn.Module) -> nn.Module:
    """Enlarge the biases, so that window padding produces keys and values as large as any other."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.1 if parameter.dim() > 1 and "table" not in name else 0.7
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return model


def spelled_out(block: Any, graft: str, x: Tensor, *, fill_takes_part: bool = False) -> Tensor:
    """Compute the attention branch of a block on a map (B, H, W, C) by the equations, one window at a time.

    S includes the relative position bias and the shift mask. Self-attention attends to the padding, as in the host.
    """
    attention, mixer = block.attn, block.attn.grafts[graft]
    (height, width), (high, wide) = x.shape[1:3], block.window_size
    shift, heads, variant = block.shift_size, attention.num_heads, mixer.variant
    inverse, linear = mixer.inverse, F.linear
    x = torch.roll(x, (-shift[0], -shift[1]), (1, 2))
    whole = F.pad(x, (0, 0, 0, -width % wide, 0, -height % high))
    out = torch.zeros_like(whole)
    table = attention.relative_position_bias_table[attention.relative_position_index.view(-1)]
    table = table.view(high * wide, high * wide, heads).permute(2, 0, 1)
    columns = whole.shape[2] // wide
    for row in range(0, whole.shape[1], high):
        for column in range(0, whole.shape[2], wide):
            window = whole[:, row : row + high, column : column + wide].flatten(1, 2)
            there = torch.tensor(
                [r < height and c < width for r in range(row, row + high) for c in range(column, column + wide)]
            )
            keep = torch.ones_like(there) if fill_takes_part else there
            q, k, v = (
                part.unflatten(-1, (heads, -1)).transpose(1, 2)
                for part in linear(window, attention.qkv.weight, attention.qkv.bias).chunk(3, -1)
            )
            bias = table.unsqueeze(0)
            if block.attn_mask is not None:
                bias = bias + block.attn_mask[row // high * columns + column // wide]
            q_hat, v_hat = (
                F.gelu(linear(window, each.linear.weight, each.linear.bias)).unflatten(-1, (heads, -1)).transpose(1, 2)
                for each in (inverse.query, inverse.value)
            )
            attended = reference.masked_softmax(reference.scores(q, k, bias=bias), -1) @ v
            operands, masks = (q, k, q_hat, v_hat), {"bias": bias, "visible": keep.unsqueeze(1) & keep}
            if variant.transform == "hyper":
                isa = reference.inverse_attention(*operands, inverse.transform.weight, **masks)
            else:
                expand, contract = inverse.transform.expand, inverse.transform.contract
                isa = reference.inverse_attention_mlp(
                    *operands,
                    expand=expand.weight,
                    expand_bias=expand.bias,
                    contract=contract.weight,
                    contract_bias=contract.bias,
                    **masks,
                )
            if variant.norm:
                attended, isa = (normalized(each, keep) for each in (attended, isa))
            mixed = variant.weight * attended + (1 - variant.weight) * isa
            tokens = linear(mixed.transpose(1, 2).flatten(2), attention.proj.weight, attention.proj.bias)
            out[:, row : row + high, column : column + wide] = tokens.unflatten(1, (high, wide))
    return torch.roll(out[:, :height, :width], tuple(shift), (1, 2))


def normalized(heads: Tensor, there: Tensor) -> Tensor:
    """Normalize (B, H, N, dv) by mean and deviation of the tokens that are not padding."""
    deviation, mean = torch.var_mean(heads[:, :, there], 2, keepdim=True, correction=0)
    return (heads - mean) / (deviation + 1e-5).sqrt()


@pytest.mark.parametrize("size", [28, 32])
@pytest.mark.parametrize("spec", SPECS)
def test_bi_directional_attention_is_the_equation(spec: str, size: int) -> None:
    """Checks maps of 7 x 7 (padded to windows of 4) and 8 x 8, shifted or not."""
    model = make(size)
    attngraft.graft(model, spec)
    unlike_at_first(model).double()
    x = torch.randn(2, size // 4, size // 4, 16, dtype=torch.float64)
    name = spec.partition("(")[0]
    for block, shifted in zip(model.layers[0].blocks, (False, True), strict=True):
        assert (block.attn_mask is not None) == shifted
        found, expected = block._attn(x), spelled_out(block, name, x)
        torch.testing.assert_close(found, expected)
        differs = not torch.allclose(found, spelled_out(block, name, x, fill_takes_part=True))
        assert differs == (size == 28)
        trained = [p for key, p in block.attn.named_parameters() if p.requires_grad]
        gradients = (torch.autograd.grad(out.square().sum(), trained, allow_unused=True) for out in (found, expected))
        for ours, theirs in zip(*gradients, strict=True):
            assert (ours is None or not ours.any()) == (theirs is None or not theirs.any())
            if theirs is not None and ours is not None:
                torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "spec", ["bisa(separate=true)", "bisa(order=inverse_then_self)", "bisa(order=self_then_inverse)"]
)
def test_what_fills_up_a_window_takes_no_share_in_other_forms_either(spec: str) -> None:
    model = unlike_at_first(make())
    attngraft.graft(model, spec)
    with attngraft.record(model) as recording, torch.no_grad():
        model(torch.randn(2, 3, 28, 28))
    for block in (0, 1):
        share = recording[f"layers.0.blocks.{block}.attn"]["bisa.inverse_weights"] if "separate" in spec else None
        inverse = recording[f"layers.0.blocks.{block}.attn"]["bisa.inverse"]
        there = (
            F.pad(torch.ones(7, 7), (0, 1, 0, 1))
            .view(2, 4, 2, 4)
            .transpose(1, 2)
            .reshape(4, 1, 16, 1)
            .repeat(2, 1, 1, 1)
        )
        assert not inverse[(there == 0).expand_as(inverse)].any()
        assert inverse[(there == 1).expand_as(inverse)].all()
        if share is not None:
            torch.testing.assert_close(share.sum(-2), there.squeeze(-1).expand(-1, 2, -1))


def test_self_attention_stays_the_hosts_where_windows_are_filled_up() -> None:
    model, images = unlike_at_first(make()), torch.randn(2, 3, 28, 28)
    with torch.no_grad():
        expected = model(images)
        attngraft.graft(model, "bisa(identity=true)")
        torch.testing.assert_close(model(images), expected)
        attngraft.ungraft(model)
        assert torch.equal(model(images), expected)


def test_the_block_serves_its_attention_as_long_as_it_must() -> None:
    """The block stays patched while a graft needs its padding mask, and then gets its own class back."""
    model, images = unlike_at_first(make()), torch.randn(2, 3, 28, 28)
    plain = [type(module) for module in model.modules()]
    torch.manual_seed(2)
    attngraft.graft(model, "bisa")
    with torch.no_grad():
        expected = model(images)
        attngraft.graft(model, "cb(at=attention) + horizontal")
        assert not torch.equal(model(images), expected)
        attngraft.ungraft(model, ["cb", "horizontal"])
        assert torch.equal(model(images), expected)
        with attngraft.record(model):
            model(images)
        assert torch.equal(model(images), expected)
    attngraft.ungraft(model)
    assert [type(module) for module in model.modules()] == plain


def test_plan_names_the_sites_whose_windows_are_filled_up() -> None:
    padded = attngraft.plan(make(28), "bisa").to_dict()
    assert "a map of 7 x 7 does not divide into windows of 4 x 4" in str(padded)
    assert "does not divide" not in str(attngraft.plan(make(32), "misa").to_dict())
    assert "does not divide" in str(attngraft.plan(make(28), "misa").to_dict())


def test_another_size_of_image_is_filled_up_by_its_own_map() -> None:
    """With `strict_img_size=False` the input determines the size of the map."""
    model = make(32, strict_img_size=False)
    attngraft.graft(model, "bisa")
    unlike_at_first(model).double()
    x = torch.randn(1, 6, 7, 16, dtype=torch.float64)
    block = model.layers[0].blocks[0]
    torch.testing.assert_close(block._attn(x), spelled_out(block, "bisa", x))


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "swinv2_cr_tiny_224"])
@pytest.mark.parametrize("spec", ["bisa", "cb(at=attention)", "elsa", "horizontal"])
def test_timms_own_way_to_another_size_of_image_goes_on_working(name: str, spec: str, tmp_path: Path) -> None:
    small = {"window_size": 4, "depths": (2, 2), "embed_dim": 16, "num_heads": (2, 4), "num_classes": 5}
    torch.manual_seed(1)
    plain = timm.create_model(name, img_size=32, **small).eval()
    model = copy.deepcopy(plain)
    attngraft.graft(model, spec)
    attngraft.save_grafts(model, tmp_path / "grafts.safetensors")
    try:
        plain.set_input_size(img_size=(48, 48), window_size=(6, 6))
    except RuntimeError as error:  # timm 1.0.26 does not resize V2-CR's buffer
        pytest.skip(f"timm {timm.__version__} does not do it with its own {name}: {error}")
    model.set_input_size(img_size=(48, 48), window_size=(6, 6))
    attngraft.load_grafts(plain, tmp_path / "grafts.safetensors")
    images = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        assert torch.equal(model(images), plain(images))
