"""VOLO with token mixing in training, grafted or not."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import timm
import torch
from timm.models.volo import VOLO
from torch import nn

import attngraft
from attngraft.errors import HostError
from attngraft.models.token_mixing import mix_tokens_in_training


def volo(**more: object) -> nn.Module:
    return VOLO(
        [1, 1, 1, 1],
        img_size=64,
        num_classes=5,
        stem_hidden_dim=8,
        embed_dims=[24, 32, 32, 32],
        num_heads=[2, 2, 2, 2],
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("graft", [None, "elsa(kernel=3, group_width=4)@network.0 + cb + horizontal@network.2"])
def test_training_returns_logits_of_every_patch(graft: str | None) -> None:
    model = volo()
    if graft is not None:
        attngraft.graft(model, graft)
    images = torch.randn(3, 3, 64, 64)
    before = model.eval()(images)
    mix_tokens_in_training(model)
    assert torch.equal(model(images), before)
    for each in (model, copy.deepcopy(model)):
        logits, patches, box = each.train()(images)
        assert logits.shape == (3, 5)
        assert patches.shape == (3, 16, 5)
        assert len(box) == 4
        (logits.sum() + patches.sum()).backward()
        assert all(p.grad is not None for name, p in each.named_parameters() if p.requires_grad), each
    if graft is not None:
        attngraft.ungraft(model)
        assert model.eval()(images).shape == (3, 5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_its_own_model(copied: Callable[[nn.Module], nn.Module]) -> None:
    model = volo().train()
    mix_tokens_in_training(model)
    other = copied(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert all(not part.any() for part in other(torch.randn(2, 3, 64, 64))[:2])


def test_the_box_is_the_partners() -> None:
    """Patches stand where they were; those in the box were seen among the partner's, which only the class token mixes."""
    model = volo()
    mix_tokens_in_training(model)
    images = torch.randn(2, 3, 64, 64)
    for seed in range(5):
        torch.manual_seed(seed)
        logits, patches, (top, left, bottom, right) = model.train()(images)
        torch.manual_seed(seed)
        swapped = model(images.flip(0))
        assert swapped[2] == (top, left, bottom, right)
        torch.testing.assert_close(swapped[0], logits.flip(0))
        torch.testing.assert_close(swapped[1], patches.flip(0))
        assert 0 <= top <= bottom <= 4
        assert 0 <= left <= right <= 4


def test_without_a_box_it_is_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Class token plus half of the best patch is what evaluation says."""
    monkeypatch.setattr("attngraft.models.token_mixing.rand_bbox", lambda *_, **__: (1, 2, 1, 2))
    model, images = volo(), torch.randn(2, 3, 64, 64)
    expected = model.eval()(images)
    mix_tokens_in_training(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    model.training = True
    logits, patches, _ = model(images)
    torch.testing.assert_close(logits + 0.5 * patches.max(1)[0], expected)


@pytest.mark.parametrize(("name", "more"), [("vit_tiny_patch16_224", {}), ("volo_d1_224", {"use_aux_head": False})])
def test_others_are_refused(name: str, more: dict[str, bool]) -> None:
    with torch.device("meta"):
        model = timm.create_model(name, **more)
    with pytest.raises(
        HostError, match=rf"{type(model).__name__} has no logits for its patches; token labeling requires"
    ):
        mix_tokens_in_training(model)
