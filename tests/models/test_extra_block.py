"""The ViTs with half a block more (CB, Fig. 2): what is counted, computed and initialized."""

from __future__ import annotations

import pytest
import timm
import torch

import attngraft
import attngraft.models  # registers them
from attngraft.errors import HostError
from attngraft.models.create import create_host

SMALL = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}


def parameters(name: str, **arguments: object) -> int:
    return sum(parameter.numel() for parameter in timm.create_model(name, **arguments).parameters())


def test_an_extra_mlp_has_as_many_parameters_more_as_the_paper_says() -> None:
    plain = parameters("vit_tiny_patch16_224", depth=8)
    attention = parameters("vit_tiny_patch16_224_extra_attention") - plain
    mlp = parameters("vit_tiny_patch16_224_extra_mlp") - plain
    assert (attention, mlp) == (148_608, 296_256)
    assert mlp - attention == 147_648  # printed as 0.15M


@pytest.mark.parametrize(("half", "branch"), [("attention", "attn"), ("mlp", "mlp")])
def test_it_is_that_half_of_a_block(half: str, branch: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(f"vit_tiny_patch16_224_extra_{half}", **SMALL).eval()
    whole = timm.create_model("vit_tiny_patch16_224", **{**SMALL, "depth": 3}).eval()
    weights = model.state_dict()
    number = "1" if branch == "attn" else "2"
    renamed = {
        name.replace("blocks.2.norm", f"blocks.2.norm{number}").replace("blocks.2.branch", f"blocks.2.{branch}"): value
        for name, value in weights.items()
    }
    missing, unexpected = whole.load_state_dict(renamed, strict=False)
    assert not unexpected
    other = whole.blocks[2].mlp.fc2 if branch == "attn" else whole.blocks[2].attn.proj
    with torch.no_grad():
        other.weight.zero_(), other.bias.zero_()  # the other half then adds nothing
        images = torch.randn(2, 3, 16, 16)
        assert torch.equal(model(images), whole(images))
    assert all(name.startswith("blocks.2.") for name in missing)


def test_its_blocks_are_a_host() -> None:
    model = timm.create_model("vit_tiny_patch16_224_extra_mlp", **SMALL)
    report = attngraft.graft(model, "cb_s")
    assert [entry.site for entry in report.entries] == ["blocks.0.mlp", "blocks.1.mlp"]
    model(torch.randn(1, 3, 16, 16)).sum().backward()


def test_there_are_no_weights() -> None:
    with pytest.raises(HostError, match="no published weights"):
        create_host("vit_tiny_patch16_224_extra_mlp", pretrained=True)
