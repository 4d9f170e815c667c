"""Grafted sites of ViT and LeViT against the equations, with the host's projections spelled out; Swin has its own file."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attngraft
from attngraft.mechanisms.bisa import reference
from tests.contract.timm.test_levit import TINY, unlike_at_first

SPECS = ["bisa", "misa", "bisa(norm=true)", "misa(norm=true)", "bisa(transform=mlp, weight=0.3)"]


def equation(
    mixer: Any, q: Tensor, k: Tensor, v: Tensor, q_hat: Tensor, v_hat: Tensor, *, bias: Tensor | None = None
) -> Tensor:
    """Compute Eq. 3 head by head, with scores scaled by 1 / sqrt(dk); return merged heads (B, N, H dv)."""
    transform, weight = mixer.inverse.transform, mixer.variant.weight
    attended = torch.softmax(reference.scores(q, k, bias=bias), -1) @ v
    if mixer.variant.transform == "hyper":
        isa = reference.inverse_attention(q, k, q_hat, v_hat, transform.weight, bias=bias)
    else:
        first, last = transform.expand, transform.contract
        layers = {"expand": first.weight, "expand_bias": first.bias}
        layers |= {"contract": last.weight, "contract_bias": last.bias}
        isa = reference.inverse_attention_mlp(q, k, q_hat, v_hat, **layers, bias=bias)
    if mixer.variant.norm:
        attended, isa = (
            (each - each.mean(2, keepdim=True)) / (each.var(2, keepdim=True, correction=0) + 1e-5).sqrt()
            for each in (attended, isa)
        )
    return (weight * attended + (1 - weight) * isa).transpose(1, 2).flatten(2)


def heads_of(tokens: Tensor, heads: int) -> Tensor:
    """Return (B, N, H d) as (B, H, N, d)."""
    return tokens.unflatten(-1, (heads, -1)).transpose(1, 2)


def batch_normed(tokens: Tensor, weight: Tensor, norm: Any, training: bool) -> Tensor:
    """Apply a matrix and the batch norm after it, over all tokens of the batch, to tokens (B, N, C)."""
    found = tokens @ weight.flatten(1).T
    variance, mean = torch.var_mean(found, (0, 1), correction=0)
    if not training:
        variance, mean = norm.running_var, norm.running_mean
    return (found - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


def levit_site(module: Any, graft: str, tokens: Tensor, training: bool) -> Tensor:
    """Compute a LeViT's attention on tokens (B, N, C): bias, batch norms, Hardswish (SiLU in size "d"), projection."""

    def through(layer: Any) -> Tensor:
        return batch_normed(tokens, layer.linear.weight, layer.bn, training)

    mixer, heads = module.grafts[graft], module.num_heads
    rows = through(module.qkv).unflatten(-1, (heads, -1))  # the rows of a head are contiguous: q, k, v
    q, k, v = (part.transpose(1, 2) for part in rows.split([module.key_dim, module.key_dim, module.val_dim], -1))
    q_hat, v_hat = (
        heads_of(F.gelu(batch_normed(tokens, each.linear.weight, each.norm, training)), heads)
        for each in (mixer.inverse.query, mixer.inverse.value)
    )
    bias = module.attention_biases[:, module.attention_bias_idxs].unsqueeze(0)
    merged = equation(mixer, q, k, v, q_hat, v_hat, bias=bias)
    hardswish, silu = merged * (merged + 3).clamp(0, 6) / 6, merged * torch.sigmoid(merged)
    activated = silu if isinstance(module.proj.act, nn.SiLU) else hardswish
    return batch_normed(activated, module.proj.ln.linear.weight, module.proj.ln.bn, training)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["levit_256d", "levit_conv_128s"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_site_of_levit_is_the_equation(spec: str, name: str, training: bool) -> None:
    torch.manual_seed(1)
    model = timm.create_model(name, **TINY)
    attngraft.graft(model, f"{spec}@stages.*.blocks")
    unlike_at_first(model).double()  # biases that matter, norms with running statistics
    site = model.stages[0].blocks[0].attn
    tokens = torch.randn(2, 9, 16, dtype=torch.float64)
    site.train(training)
    assert isinstance(site.proj.act, nn.SiLU if name.endswith("d") else nn.Hardswish)
    expected = levit_site(site, spec.partition("(")[0], tokens, training)
    maps = "conv" in name
    found = site(tokens.transpose(1, 2).unflatten(2, (3, 3)) if maps else tokens)
    found = found.flatten(2).transpose(1, 2) if maps else found
    torch.testing.assert_close(found, expected)
    assert_same_gradients(site, found, expected)


@pytest.mark.parametrize("spec", SPECS)
def test_a_site_of_vit_is_the_equation(spec: str) -> None:
    torch.manual_seed(1)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 1, "num_heads": 3, "num_classes": 5}
    model = timm.create_model("vit_tiny_patch16_224", **sizes).eval()
    attngraft.graft(model, spec)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    site = model.double().blocks[0].attn
    mixer = site.grafts[spec.partition("(")[0]]
    tokens = torch.randn(2, 17, 24, dtype=torch.float64)
    q, k, v = (heads_of(part, 3) for part in F.linear(tokens, site.qkv.weight, site.qkv.bias).chunk(3, -1))
    q_hat, v_hat = (
        heads_of(F.gelu(F.linear(tokens, each.linear.weight, each.linear.bias)), 3)
        for each in (mixer.inverse.query, mixer.inverse.value)
    )
    expected = F.linear(equation(mixer, q, k, v, q_hat, v_hat), site.proj.weight, site.proj.bias)
    found = site(tokens)
    torch.testing.assert_close(found, expected)
    assert_same_gradients(site, found, expected)


def assert_same_gradients(site: nn.Module, found: Tensor, expected: Tensor) -> None:
    trained = dict(site.named_parameters())
    cotangent = torch.randn_like(found)
    ours, theirs = (
        torch.autograd.grad(out, list(trained.values()), cotangent, materialize_grads=True) for out in (found, expected)
    )
    for name, one, other in zip(trained, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-8, rtol=1e-6, msg=lambda text, name=name: f"{name}: {text}")
    assert sum(bool(one.any()) for one in ours) > 8
