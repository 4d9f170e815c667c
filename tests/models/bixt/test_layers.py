"""Blocks and layers: equations, names, layer scale, drop paths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.layers import DropPath
from torch import Tensor

from attngraft.models.bixt.layers import CrossAttentionBlock, Layer, OneSidedBlock, latent_block

WIDTHS: dict[str, Any] = {"dim_attention": 12, "heads": 3}


def scrambled(module: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return module.eval()


def inputs(*, shared: bool = True) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(1 if shared else 2, 5, 8), torch.randn(2, 6, 10)


def layer(**changes: Any) -> Layer:
    made: Any = scrambled(Layer(8, 10, dim_attention=12, sa_heads=2, ca_heads=3, **changes))
    return made


@pytest.mark.parametrize("scale", [None, 0.5])
def test_a_two_way_block_is_its_equation(scale: float | None) -> None:
    block: Any = scrambled(CrossAttentionBlock(8, 10, layer_scale=scale, **WIDTHS))
    latents, tokens = given = inputs()
    for_latents, for_tokens = block.attn(block.norm1_lat(latents), block.norm1_pat(tokens))  # both of the old ones
    latents = latents + block.ls1_lat(for_latents)
    latents = latents + block.ls2_lat(block.mlp_lat(block.norm2_lat(latents)))
    tokens = tokens + block.ls1_pat(for_tokens)
    tokens = tokens + block.ls2_pat(block.mlp_pat(block.norm2_pat(tokens)))
    out = block(*given)
    torch.testing.assert_close(out, (latents, tokens))
    assert out[0].shape == (2, 5, 8)
    scales = {name for name in block.state_dict() if name.endswith("gamma")}
    assert scales == ({f"ls{i}_{side}.gamma" for i in (1, 2) for side in ("lat", "pat")} if scale else set())


def test_local_interaction_stands_between_attention_and_mlp() -> None:
    block: Any = scrambled(CrossAttentionBlock(8, 10, local=True, layer_scale=0.5, **WIDTHS))
    latents, tokens = inputs()
    _, found = block(latents, tokens, (2, 3))
    tokens = tokens + block.ls1_pat(block.attn(block.norm1_lat(latents), block.norm1_pat(tokens))[1])
    tokens = tokens + block.ls_lpi(block.lpi(block.norm_lpi(tokens), (2, 3)))
    torch.testing.assert_close(found, tokens + block.ls2_pat(block.mlp_pat(block.norm2_pat(tokens))))
    assert not torch.allclose(found, block(latents, inputs()[1], (3, 2))[1])


def test_a_one_sided_block_is_its_equation() -> None:
    block: Any = scrambled(OneSidedBlock(8, 10, layer_scale=0.5, **WIDTHS))
    latents, tokens = given = inputs()
    latents = latents + block.ls1_lat(block.attn(block.norm1_lat(latents), block.norm1_pat(tokens)))
    torch.testing.assert_close(block(*given), latents + block.ls2_lat(block.mlp_lat(block.norm2_lat(latents))))
    assert not any(
        name in key for key in block.state_dict() for name in ("norm2_pat", "mlp_pat", "ls1_pat", "proj_pat")
    )


def test_a_latent_block_is_its_equation() -> None:
    block: Any = scrambled(latent_block(8, heads=2, layer_scale=0.5))
    x, _ = inputs()
    q, k, v = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    heads = ((q @ k.transpose(-2, -1) / 2).softmax(-1) @ v).transpose(1, 2).flatten(2)
    y = x + block.ls1(block.attn.proj(heads))
    torch.testing.assert_close(block(x), y + block.ls2(block.mlp(block.norm2(y))))
    assert {module.eps for module in block.modules() if isinstance(module, torch.nn.LayerNorm)} == {1e-6}


def test_a_layer_is_cross_attention_then_self_attention() -> None:
    both, given = layer(), inputs()
    latents, tokens = both.cross_attention_latents_token(*given)
    out = both(*given)
    torch.testing.assert_close(out, (both.self_attention_latents(latents), tokens))
    assert both.self_attention_latents.attn.num_heads == 2
    assert both.cross_attention_latents_token.attn.heads == 3
    assert both.self_attention_latents.attn.qkv.weight.shape == (24, 8)  # as wide as the latents


def test_a_one_sided_layer_gives_no_tokens() -> None:
    latents, tokens = layer(one_sided=True)(*inputs(), (2, 3))
    assert latents.shape == (2, 5, 8)
    assert tokens is None


def test_without_biases() -> None:
    names = set(layer(qkv_bias=False, rv_bias=False).state_dict())
    assert not {name for name in names if "rv_" in name and name.endswith("bias")}
    assert "self_attention_latents.attn.qkv.bias" not in names
    assert "self_attention_latents.attn.proj.bias" in names
    assert "cross_attention_latents_token.attn.proj_pat.bias" in names


def test_drop_paths_of_self_and_cross_attention() -> None:
    made = layer(sa_drop_path=0.25, ca_drop_path=0.5)
    rates = {name: module.drop_prob for name, module in made.named_modules() if isinstance(module, DropPath)}
    assert rates == {
        "cross_attention_latents_token.drop_path": 0.5,
        "self_attention_latents.drop_path1": 0.25,
        "self_attention_latents.drop_path2": 0.25,
    }


def test_dropped_paths_are_dropped_image_by_image() -> None:
    """Nearly all are dropped: of each image the whole branch, so that latents and tokens leave as they came."""
    made = layer(sa_drop_path=0.999, ca_drop_path=0.999).train()
    latents, tokens = inputs(shared=False)
    torch.manual_seed(0)
    out = made(latents, tokens)
    torch.testing.assert_close(out, (latents, tokens), rtol=0, atol=0)
    shared, _ = inputs()
    assert torch.equal(made(shared, tokens)[0], shared.expand(2, -1, -1))
