"""Examination of models."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.errors import HostError
from attngraft.models.examine import examine
from attngraft.tensors import meta_device

LEVIT = {"img_size": 48, "stem_type": "s16", "embed_dim": (16, 24), "key_dim": 4, "depth": (1, 1), "num_heads": (2, 3)}
TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}


def made(name: str, **arguments: object) -> nn.Module:
    with meta_device():
        return timm.create_model(name, **arguments).eval()


def test_sites_hook_points_and_grafts() -> None:
    found = examine(made("levit_128s", **LEVIT))
    assert (found.model, found.adapter, found.refusal) == ("LevitDistilled", "timm.levit", None)
    sites = {site.path: site for site in found.sites}
    attention = sites["stages.0.blocks.0.attn"]
    assert (attention.kind, attention.module, attention.shape) == ("attention", "Attention", "9 tokens of 16, 2 heads")
    assert set(attention.hook_points) >= {"mix", "heads", "tokens", "attn.end"}
    assert "windows" in attention.missing["attn.window"]
    assert found.grafts is not None
    assert found.grafts["bisa"].taken == ("stages.0.blocks.0.attn", "stages.1.blocks.0.attn")
    assert "subsampled" in found.grafts["bisa"].refused["stages.1.downsample.attn_downsample"]
    assert str(found.grafts["horizontal"]) == "3 of 3"
    assert not found.unread


def test_a_graft_without_a_site_has_a_reason() -> None:
    model = made("mixer_s32_224")
    grafts = examine(model).grafts
    assert grafts is not None
    assert str(grafts["horizontal"]) == "0 of 0"
    assert "tokens are mixed by weights" in (grafts["horizontal"].nowhere or "")
    assert grafts["cb"].nowhere is None
    with pytest.raises(HostError, match="tokens are mixed by weights"):
        attngraft.plan(model, "horizontal")


def test_each_graft_fits_the_listed_sites() -> None:
    model = timm.create_model("vit_tiny_patch16_224", **TINY)
    grafts = examine(model).grafts
    assert grafts is not None
    for name, fit in grafts.items():
        if not fit.refused:
            placed = {entry.site for entry in attngraft.plan(model, name).entries}
            assert placed == set(fit.taken), name
        else:
            with pytest.raises(HostError):
                attngraft.plan(model, name)


def test_attention_without_a_site() -> None:
    """The pooling of a SigLIP tower attends, too; no graft stands there."""
    found = examine(made("vit_base_patch16_siglip_224", **TINY))
    assert len(found.sites) == 4
    assert [(each.path, each.module) for each in found.unread] == [("attn_pool", "AttentionPoolLatent")]
    assert "kv" in found.unread[0].children
    assert found.unread[0].arguments[0] == "x"


def test_a_model_without_an_adapter() -> None:
    found = examine(made("shvit_s1"))
    assert found.adapter is None
    assert not found.sites
    assert found.refusal is not None
    assert "SHSA: its single head" in found.refusal
    assert "register_host" in found.refusal
    assert {(each.module, each.how) for each in found.unread} == {("SHSA", "softmax")}


class Attention(nn.Module):
    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.mix(*self.qkv(x).chunk(3, dim=-1)))

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT).softmax(dim=-1) @ v


class Words(nn.Module):
    """It takes numbers of words and a bias, so no image will do."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(5, 8), nn.ModuleList(Attention() for _ in range(2))

    def forward(self, numbers: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = self.words(numbers) + bias
        for block in self.blocks:
            x = x + block(x)
        return x


def test_a_model_with_unknown_inputs() -> None:
    model = Words()
    found = examine(model)
    assert found.adapter is None
    assert found.not_run is not None
    assert "TypeError" in found.not_run
    assert "bias" in found.not_run
    assert [(each.path, each.how) for each in found.unread] == [("blocks.0", "not run"), ("blocks.1", "not run")]
    assert found.unread[0].arguments == ("x",)
    assert found.unread[0].children == ("qkv", "out")
    assert model.training
    found = examine(model, (torch.zeros(1, 3, dtype=torch.long), torch.zeros(8)))
    assert found.not_run is None
    assert [(each.path, each.how) for each in found.unread] == [("blocks.0", "softmax"), ("blocks.1", "softmax")]


def test_a_model_without_parameters() -> None:
    found = examine(nn.Sequential(nn.Softmax(dim=-1)))
    assert found.not_run is not None
    assert found.refusal is not None
    assert [each.path for each in found.unread] == ["the model itself"]


def test_models_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 20, "max_position_embeddings": 8, "hidden_size": 16, "num_layers": 2, "num_heads": 2}
    found = examine(transformers.GPTNeoModel(transformers.GPTNeoConfig(**sizes, attention_types=[[["global"], 2]])))
    assert (found.adapter, found.sites) == (None, ())
    assert [(each.path, each.module) for each in found.unread] == [
        (f"h.{i}.attn.attention", "GPTNeoSelfAttention") for i in (0, 1)
    ]
    sizes = {"vocab_size": 20, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    with meta_device():
        t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))
    found = examine(t5)
    assert found.adapter == "hf.t5"
    assert len([site for site in found.sites if site.kind == "attention"]) == 3
    assert not found.unread


def test_running_statistics_are_not_changed() -> None:
    model = timm.create_model("levit_128s", **LEVIT).train()
    values = {name: value.clone() for name, value in model.state_dict().items()}
    assert examine(model).not_run is None
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())


def test_attention_of_a_site_is_not_listed_twice() -> None:
    model = made("xcit_nano_12_p16_224", img_size=32, depth=1, cls_attn_layers=1, embed_dim=32, num_heads=2)
    found = examine(model)
    assert not found.unread
    sites = {site.path: site for site in found.sites}
    assert sites["blocks.0.attn"].hook_points == ()
    assert "heads" not in sites["blocks.0.attn"].shape
    assert "2 heads" in sites["cls_attn_blocks.0.attn"].shape


def test_a_host_within_a_model() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = made("vit_base_patch16_siglip_224", **TINY)

    found = examine(Wrapper())
    assert found.adapter == "timm.vit"
    assert found.unread[0].path == "tower.attn_pool"


def test_the_model_is_not_changed() -> None:
    model = timm.create_model("vit_tiny_patch16_224", **TINY)
    classes = [type(module) for module in model.modules()]
    values = {name: value.clone() for name, value in model.state_dict().items()}
    examine(model)
    assert [type(module) for module in model.modules()] == classes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
