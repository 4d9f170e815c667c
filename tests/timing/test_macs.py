"""Multiply-adds, parameters and activation bytes, against arithmetic and against the reference counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from attngraft.tensors import meta_device
from attngraft.timing.macs import activation_bytes, count_macs, count_parameters


def test_linear_convolution_and_attention_by_hand():
    assert count_macs(nn.Linear(8, 5, bias=True), torch.randn(3, 7, 8)) == 3 * 7 * 8 * 5
    assert count_macs(nn.Conv2d(4, 6, 3, padding=1, groups=2), torch.randn(2, 4, 5, 5)) == 2 * 6 * 25 * 2 * 9

    class Attend(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x)

    heads, tokens, width = 2, 9, 4
    assert count_macs(Attend(), torch.randn(1, heads, tokens, width)) == 2 * heads * tokens * tokens * width


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_same_on_both_devices(device: str):
    model = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32).to(device)
    tokens, dim = 5, 192
    layers = 4 * 16 * 16 * 3 * dim + tokens * (dim * 3 * dim + dim * dim + 8 * dim * dim) + dim * 1000
    attention = 2 * tokens * tokens * dim
    assert count_macs(model, torch.empty(1, 3, 32, 32, device=device)) == layers + attention


@pytest.mark.slow
def test_reference_counts(shared: Path):
    for name, expected in json.loads((shared / "facts" / "cb_counts.json").read_text())["models"].items():
        with meta_device():
            model = timm.create_model(name)
        assert count_parameters(model) == expected["params"], name
        assert count_macs(model, torch.empty(1, 3, 224, 224, device="meta")) == expected["macs"], name


def test_counting_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[2].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    count_macs(model, torch.randn(3, 4, generator=torch.Generator().manual_seed(1)))
    assert [module.training for module in model.modules()] == [True, True, True, False]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_training_flags_come_back_after_an_error():
    model = nn.Linear(4, 4)
    with pytest.raises(RuntimeError):
        count_macs(model, torch.randn(3, 5))
    assert model.training


def test_parameters_shared_and_frozen():
    first = nn.Linear(4, 3)
    second = nn.Linear(4, 3, bias=False)
    second.weight = first.weight
    first.bias.requires_grad_(False)
    model = nn.ModuleList([first, second])
    assert count_parameters(model) == 15
    assert count_parameters(model, trainable_only=True) == 12


def test_activations_by_hand():
    batch, width, hidden = 5, 8, 16
    model = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    x = torch.randn(batch, width)
    # the first linear keeps its input; ReLU keeps its output, which the second linear keeps again: one storage
    assert activation_bytes(model, x) == 4 * (batch * width + batch * hidden)
    assert activation_bytes(model.to("meta"), x.to("meta")) == 4 * (batch * width + batch * hidden)


def test_activations_of_frozen_layers_are_not_kept():
    model = nn.Linear(8, 8, bias=False).requires_grad_(False)
    assert activation_bytes(model, torch.randn(2, 8)) == 0


def test_checkpointing_keeps_less():
    plain = timm.create_model("vit_tiny_patch16_224", depth=4, img_size=32).train()
    images = torch.randn(2, 3, 32, 32)
    kept = activation_bytes(plain, images)
    plain.set_grad_checkpointing()
    assert activation_bytes(plain, images) < kept / 2
