"""The identity graft: outputs and gradients are unchanged, bit for bit, at every hook point."""

from __future__ import annotations

import typing

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.errors import GraftSpecError
from attngraft.mechanisms.identity.graft import IdentityOptions
from tests.contract.tester import outputs_and_gradients

HOOK_POINTS = typing.get_args(typing.get_type_hints(IdentityOptions)["stage"])


def swin() -> nn.Module:
    """Build a host that has every hook point, including that of windows."""
    torch.manual_seed(1)
    arguments = {"img_size": 28, "window_size": 4, "depths": (2, 1), "embed_dim": 16, "num_heads": (2, 4)}
    return timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, drop_path_rate=0.0, **arguments).eval()


@pytest.mark.parametrize("stage", HOOK_POINTS)
def test_it_stands_at_every_stage_and_changes_nothing(stage: str) -> None:
    """Exactly, except at `weights`, which selects the host's explicit path: there up to rounding."""
    host, images = swin(), torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    expected, gradients = outputs_and_gradients(host, (images,))
    state = list(host.state_dict())
    report = attngraft.graft(host, "identity", stage=stage)
    assert {entry.hook_point for entry in report.entries} == {stage}
    assert (report.parameters, report.macs, list(host.state_dict())) == (0, 0, state)
    found, found_gradients = outputs_and_gradients(host, (images,))
    if stage == "weights":
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert not report.entries[0].identity
        return
    assert torch.equal(found, expected)
    assert all(torch.equal(a, b) for a, b in zip(gradients, found_gradients, strict=True))


def test_at_the_weights_of_an_explicit_host_it_changes_nothing_either() -> None:
    host, images = swin(), torch.randn(2, 3, 28, 28)
    for module in host.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    expected = host(images)
    attngraft.graft(host, "identity(stage=weights)")
    assert torch.equal(host(images), expected)


@pytest.mark.parametrize("stage", ["mix", "space"])
def test_where_doing_nothing_would_be_the_attention_itself(stage: str) -> None:
    with pytest.raises(GraftSpecError, match="stage"):
        attngraft.graft(swin(), f"identity(stage={stage})")
