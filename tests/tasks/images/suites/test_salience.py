"""At which patches models look most."""

from __future__ import annotations

import pytest
import timm
import torch

import attngraft
from attngraft.tasks.images.suites.changes import AttackTarget, SalientDropped, UnsupportedCondition, patch_salience

ARGS = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 2, "num_classes": 4}


def test_the_class_tokens_row_of_the_last_map() -> None:
    torch.manual_seed(0)
    model, images = timm.create_model("vit_tiny_patch16_224", **ARGS).eval(), torch.rand(3, 3, 32, 32)
    attngraft.graft(model, "cb_s")
    found = patch_salience(model, lambda: model(images), size=(32, 32))
    attention = model.blocks[1].attn
    attention.fused_attn = False
    kept: list[torch.Tensor] = []
    handle = attention.attn_drop.register_forward_hook(lambda module, given, out: kept.append(out))
    with torch.no_grad():
        model(images)
    handle.remove()
    torch.testing.assert_close(found.scores, kept[0].mean(1)[:, 0, 1:])
    assert (found.patch, found.by) == (8, "the class token's row at blocks.1.attn")


def test_without_a_class_token_all_tokens_count() -> None:
    torch.manual_seed(0)
    swin = {"img_size": 32, "window_size": 4, "depths": (1, 1), "embed_dim": 12, "num_heads": (2, 2), "num_classes": 4}
    model, images = timm.create_model("swin_tiny_patch4_window7_224", **swin).eval(), torch.rand(2, 3, 32, 32)
    found = patch_salience(model, lambda: model(images), size=(32, 32))
    assert (found.patch, found.scores.shape) == (8, (2, 16))
    assert found.by == "the mean over all tokens at layers.1.blocks.0.attn"
    torch.testing.assert_close(found.scores.sum(1), torch.ones(2))


def test_what_is_dropped_is_what_is_looked_at_and_said() -> None:
    torch.manual_seed(0)
    model, images = timm.create_model("vit_tiny_patch16_224", **ARGS).eval(), torch.rand(2, 3, 32, 32)
    scores = patch_salience(model, lambda: model(images), size=(32, 32)).scores
    said: list[str] = []
    target = AttackTarget(
        model=model,
        outputs=model,
        losses=lambda x: x.sum((1, 2, 3)),
        indices=[0, 1],
        color=(0.5,) * 3,
        report=said.append,
    )
    dropped = SalientDropped(0.25)(images, target, noise_seed=0)
    gone = (dropped == 0.5).all(1)[:, ::8, ::8].flatten(1)
    assert gone.sum(1).tolist() == [4, 4]
    assert scores[gone].min() >= scores[~gone].min()
    for row in range(2):
        assert scores[row][gone[row]].min() >= scores[row][~gone[row]].max()
    assert said == ["salience: the class token's row at blocks.1.attn"]


@pytest.mark.parametrize("name", ["mixer_s32_224", "resnet18"])
def test_models_without_such_maps_say_why(name: str) -> None:
    model, images = timm.create_model(name, num_classes=4).eval(), torch.rand(1, 3, 224, 224)
    with pytest.raises(UnsupportedCondition, match="this model"):
        patch_salience(model, lambda: model(images), size=(224, 224))
