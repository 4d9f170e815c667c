"""timm's ViT and EVA called with a mask over pairs of tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.models.eva import Eva, EvaBlock, EvaBlockPostNorm
from timm.models.vision_transformer import Block, ResPostBlock, VisionTransformer
from torch import Tensor, nn

import attngraft
from attngraft.errors import UsageError
from tests.contract.tester import randomize

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
SEEN = torch.tensor([True, True, True, False, True])
MASKS: dict[str, dict[str, Any]] = {
    "boolean": {"attn_mask": SEEN.expand(1, 1, 5, 5)},
    "float": {"attn_mask": torch.zeros(5, 5).masked_fill(~SEEN, float("-inf"))},
    "causal": {"is_causal": True},
}


def make(block: type[nn.Module] = Block) -> Any:
    sizes: dict[str, Any] = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
    torch.manual_seed(0)
    if block in (Block, ResPostBlock):
        return VisionTransformer(**sizes, num_classes=5, block_fn=block).eval()
    return Eva(**sizes, num_classes=5, use_post_norm=block is EvaBlockPostNorm, use_rot_pos_emb=True).eval()


def features(model: Any, **given: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.forward_features(IMAGES, **given)
    return found


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("spec", ["cb", "cb_s(init=1, position=front)", "se(reduction=2)", "cb(at=attention)"])
@pytest.mark.parametrize("block", [Block, ResPostBlock, EvaBlock, EvaBlockPostNorm])
def test_what_averages_over_tokens_refuses_a_mask(block: type[nn.Module], spec: str, mask: str) -> None:
    model = make(block)
    expected, plain = features(model, **MASKS[mask]), features(model)
    attngraft.graft(model, spec)
    assert not torch.equal(features(model), plain)
    with pytest.raises(UsageError, match="with a mask over pairs of tokens"):
        features(model, **MASKS[mask])
    attngraft.ungraft(model)
    assert all(type(each) is block for each in model.blocks)
    assert torch.equal(features(model, **MASKS[mask]), expected)


@pytest.mark.parametrize(
    "spec", ["horizontal + vertical", "uniform_heads", "bisa", "toy_scale(start=0.5, stage='mlp.mid')"]
)
def test_hidden_tokens_take_no_part_in_the_others(spec: str) -> None:
    model = make()
    attngraft.graft(model, spec)
    randomize(model, only_grafts=True)
    hidden = {"attn_mask": (SEEN.unsqueeze(0) & SEEN.unsqueeze(1)).view(1, 1, 5, 5) | torch.eye(5, dtype=torch.bool)}
    found = features(model, **hidden)
    with torch.no_grad():
        model.pos_embed[:, 3] += 1
    torch.testing.assert_close(features(model, **hidden)[:, SEEN], found[:, SEEN])


@pytest.mark.parametrize("way", ["boolean", "float", "given by name"])
@pytest.mark.parametrize("block", [Block, EvaBlock])
def test_what_hides_later_tokens_is_refused_for_the_softmax_over_queries(block: type[nn.Module], way: str) -> None:
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    added = torch.zeros(5, 5).masked_fill(~seen, float("-inf"))
    given: dict[str, Any] = {"boolean": {"attn_mask": seen}, "float": {"attn_mask": added}}.get(way, MASKS["causal"])
    model = make(block)
    attngraft.graft(model, "bisa@first:1")
    with pytest.raises(UsageError, match="softmax over queries"):
        features(model, **given)
    attngraft.ungraft(model)
    attngraft.graft(model, "horizontal")
    assert features(model, **given).isfinite().all()
