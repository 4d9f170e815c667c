"""Detection of softmaxes in a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
from torch import nn

from attngraft.models.attends import NOT_OVER_TOKENS, attends

TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}


def made(name: str, **arguments: object) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name, **arguments).eval()


def seen(model: nn.Module, size: int) -> list[tuple[str, str, str, str]]:
    found = attends(model, (torch.empty(1, 3, size, size, device="meta"),))
    return [(each.path, each.module, each.how, each.over) for each in found]


@pytest.mark.parametrize(("fused", "how"), [(True, "fused"), (False, "softmax")])
def test_both_ways_of_an_attention(fused: bool, how: str) -> None:
    model = made("vit_tiny_patch16_224", **TINY)
    for block in model.blocks:
        block.attn.fused_attn = fused
    assert seen(model, 16) == [(f"blocks.{i}.attn", "Attention", how, "tokens") for i in (0, 1)]


def test_a_softmax_module_counts_as_its_parent() -> None:
    model = made("swin_tiny_patch4_window7_224", img_size=16, window_size=2, depths=(1,), embed_dim=8, num_heads=(2,))
    model.layers[0].blocks[0].attn.fused_attn = False
    assert seen(model, 16) == [("layers.0.blocks.0.attn", "WindowAttention", "softmax", "tokens")]


def test_a_softmax_over_channels_does_not_count() -> None:
    found = seen(made("xcit_nano_12_p16_224", img_size=32, depth=1, cls_attn_layers=1, embed_dim=32, num_heads=2), 32)
    assert [(module, over) for _, module, _, over in found] == [("XCA", "channels"), ("ClassAttn", "tokens")]


def test_the_pass_can_end_at_the_first_softmax_over_tokens() -> None:
    model = made("xcit_nano_12_p16_224", img_size=32, depth=2, cls_attn_layers=2, embed_dim=32, num_heads=2)
    found = attends(model, (torch.empty(1, 3, 32, 32, device="meta"),), first=True)
    assert [(each.module, each.over_tokens) for each in found] == [("XCA", False), ("XCA", False), ("ClassAttn", True)]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "mixer_s32_224"])
def test_models_without_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not even run."""
    model = made(name)
    monkeypatch.setattr(model, "forward", lambda *arguments: pytest.fail("was run"))
    assert seen(model, 224) == []


@pytest.mark.parametrize(
    "attention",
    [
        lambda: nn.TransformerEncoderLayer(8, 2, dim_feedforward=8, batch_first=True),
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)),
    ],
    ids=["torch.nn", "nn.Softmax"],
)
def test_torchs_own_modules(attention: Callable[[], nn.Module]) -> None:
    model = attention().to("meta").train()
    hooks = [len(module._forward_hooks) for module in model.modules()]
    found = attends(model, (torch.empty(2, 5, 8, device="meta"),))
    assert len(found) == 1
    assert found[0].over_tokens
    assert [len(module._forward_hooks) for module in model.modules()] == hooks


def test_the_listed_classes_exist() -> None:
    for name in NOT_OVER_TOKENS:
        module, _, kind = name.rpartition(".")
        files = pytest.importorskip(module, reason="this timm has no such file")
        assert issubclass(getattr(files, kind), nn.Module)
