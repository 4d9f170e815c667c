"""Where the class token looks."""

from __future__ import annotations

import pytest
import timm
import torch

import attngraft
from attngraft.analysis.class_token import class_token_attention
from attngraft.errors import RecordError


def recorded(name: str = "vit_tiny_patch16_224", **changes: object) -> attngraft.Recording:
    model = timm.create_model(name, img_size=32, patch_size=8, depth=3, embed_dim=24, num_heads=2, **changes).eval()
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        model(torch.randn(2, 3, 32, 32))
    return recording


@pytest.mark.parametrize(("name", "tokens"), [("vit_tiny_patch16_224", 17), ("deit_tiny_distilled_patch16_224", 18)])
def test_depth_down_tokens_across(name: str, tokens: int) -> None:
    recording = recorded(name)
    found = class_token_attention(recording)
    assert found.shape == (2, 3, tokens)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 3))
    torch.testing.assert_close(found[:, 2], recording["blocks.2.attn"]["weights"].mean(1)[:, 0])


def test_without_a_class_token() -> None:
    with pytest.raises(RecordError, match=r"'blocks.0.attn' has no class token \(no prefix tokens\)"):
        class_token_attention(recorded(class_token=False, global_pool="avg"))


def test_layers_that_see_other_tokens() -> None:
    """CaiT's class token stands in its last blocks alone; those before have none."""
    model = timm.create_model("cait_xxs24_224", img_size=32, depth=1, embed_dim=24, num_heads=2).eval()
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        model(torch.randn(1, 3, 32, 32))
    with pytest.raises(RecordError, match="has no class token"):
        class_token_attention(recording)


def test_the_old_name_still_works() -> None:
    with pytest.warns(DeprecationWarning, match="use class_token_attention"):
        from attngraft.analysis.class_token import class_looks
    assert class_looks is class_token_attention
