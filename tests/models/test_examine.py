"""What is found in a model."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.errors import HostError
from attngraft.models.examine import examine

LEVIT = {"img_size": 48, "stem_type": "s16", "embed_dim": (16, 24), "key_dim": 4, "depth": (1, 1), "num_heads": (2, 3)}
TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}


def made(name: str, **arguments: object) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, **arguments).eval()


def test_sites_stages_and_grafts() -> None:
    found = examine(made("levit_128s", **LEVIT))
    assert (found.model, found.adapter, found.refusal) == ("LevitDistilled", "timm.levit", None)
    sites = {site.path: site for site in found.sites}
    attention = sites["stages.0.blocks.0.attn"]
    assert (attention.kind, attention.module, attention.shape) == ("attention", "Attention", "9 tokens of 16, 2 heads")
    assert set(attention.stages) >= {"mix", "heads", "tokens", "attn.end"}
    assert "windows" in attention.missing["attn.window"]
    assert found.grafts is not None
    assert found.grafts["bisa"].taken == ("stages.0.blocks.0.attn", "stages.1.blocks.0.attn")
    assert "subsamples" in found.grafts["bisa"].refused["stages.1.downsample.attn_downsample"]
    assert str(found.grafts["horizontal"]) == "3 of 3"
    assert not found.unread


def test_each_graft_stands_where_it_is_said_to_fit() -> None:
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


def test_what_attends_and_is_no_site() -> None:
    """The pooling of a SigLIP tower attends, too; no graft stands there."""
    found = examine(made("vit_base_patch16_siglip_224", **TINY))
    assert len(found.sites) == 4
    assert [(each.path, each.module) for each in found.unread] == [("attn_pool", "AttentionPoolLatent")]
    assert "kv" in found.unread[0].children
    assert found.unread[0].arguments[0] == "x"


def test_a_model_that_no_adapter_reads() -> None:
    found = examine(made("shvit_s1"))
    assert found.adapter is None
    assert not found.sites
    assert found.refusal is not None
    assert "SHSA: its single head" in found.refusal
    assert "register_host" in found.refusal
    assert {(each.module, each.how) for each in found.unread} == {("SHSA", "softmax")}


def test_a_host_within_a_model() -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = made("vit_base_patch16_siglip_224", **TINY)

    found = examine(Wrapper())
    assert found.adapter == "timm.vit"
    assert found.unread[0].path == "tower.attn_pool"


def test_the_model_stays_as_it_is() -> None:
    model = timm.create_model("vit_tiny_patch16_224", **TINY)
    classes = [type(module) for module in model.modules()]
    values = {name: value.clone() for name, value in model.state_dict().items()}
    examine(model)
    assert [type(module) for module in model.modules()] == classes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, values[name]) for name, value in model.state_dict().items())
