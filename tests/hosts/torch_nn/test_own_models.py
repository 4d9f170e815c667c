"""User models with torch's attentions and layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import attngraft
from attngraft.hosts import find_host
from attngraft.models.examine import examine


class Block(nn.Module):
    """A common form of user-defined block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(16), nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attn(y, y, y, need_weights=False)[0]


class Model(nn.Module):
    """A model with torch's attention in its own blocks, torch's layers, and an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 4, 24, 0.0, batch_first=True) for _ in range(2))
        self.stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24, 0.0, batch_first=True), 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(x)
        for layer in self.layers:
            x = layer(x)
        return self.stack(x)


X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


def test_all_that_a_model_holds_is_one_host(model: Model, tmp_path: Path) -> None:
    host = find_host(model)
    assert host.core is model
    assert [site.path for site in host.sites] == [
        "blocks.0.attn",
        "blocks.1.attn",
        *("layers.0.self_attn", "layers.0.linear1", "layers.1.self_attn", "layers.1.linear1"),
        *("stack.layers.0.self_attn", "stack.layers.0.linear1"),
    ]
    with torch.no_grad():
        expected = model(X)
        report = attngraft.graft(model, "horizontal@blocks.1,stack + cb_s(init=1)@layers + vertical")
        assert {entry.site for entry in report.entries if entry.graft == "horizontal"} == {
            "blocks.1.attn",
            "stack.layers.0.self_attn",
        }
        found = model(X)
        assert not torch.allclose(found, expected, atol=1e-3)
        path = attngraft.save_grafts(model, tmp_path / "own.safetensors")
        attngraft.ungraft(model)
        assert torch.equal(model(X), expected)
        attngraft.load_grafts(model, path)
        assert torch.equal(model(X), found)


def test_the_mlp_of_a_lone_attention_is_not_ours_to_see() -> None:
    with pytest.raises(attngraft.HostError, match="has no MLP; use at=attention"):
        attngraft.graft(nn.Sequential(Block(), Block()), "cb")


def test_nobody_knows_its_inputs(model: Model) -> None:
    with pytest.raises(attngraft.HostError, match="in a Model, whose inputs are unknown"):
        attngraft.plan(model, "horizontal", measure=True)
    assert attngraft.plan(model, "horizontal").macs is None


def test_hosts_of_several_kinds_are_grafted_one_by_one(model: Model) -> None:
    tiny = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 5}
    both = nn.ModuleDict({"model": model, "vit": timm.create_model("vit_tiny_patch16_224", **tiny)})
    with pytest.raises(attngraft.HostError, match="contains 6 hosts.*one by one"):
        attngraft.graft(both, "horizontal")
    attngraft.graft(both["model"], "horizontal")


def test_an_attention_alone_has_a_site_with_a_name() -> None:
    attention = nn.MultiheadAttention(16, 4)
    report = attngraft.graft(attention, "horizontal@attention")
    assert [entry.site for entry in report.entries] == ["attention"]
    assert attngraft.ungraft(attention) == ["grafts.horizontal"]
    assert type(attention) is nn.MultiheadAttention


def test_one_that_a_model_holds_has_the_path_that_it_has_there() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24), 1))
    assert [site.path for site in find_host(model).sites] == ["1.layers.0.self_attn", "1.layers.0.linear1"]
    found = examine(model)
    assert found.adapter == "torch.nn"
    assert [site.module for site in found.sites] == ["MultiheadAttention", "TransformerEncoderLayer"]


@pytest.mark.parametrize("spec", ["horizontal + vertical + cb(at=both)", pytest.param("bisa", marks=pytest.mark.slow)])
def test_grafted_layers_compile_and_export(spec: str) -> None:
    model = nn.Sequential(
        Block(), nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), 1)
    ).eval()
    attngraft.graft(model, spec)
    with torch.no_grad():
        expected = model(X)
        compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(X), expected)
        program = torch.export.export(model, (X,))
        torch.testing.assert_close(program.module()(X), expected)
