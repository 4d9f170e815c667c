"""ELSA-VOLO: sizes, timm's options, names of parameters."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from timm.models.volo import VOLO
from torch import nn

import attngraft
import attngraft.models  # registers the models
from attngraft.errors import GraftSpecError
from attngraft.mechanisms.local.hadamard import HadamardAttention
from attngraft.models.elsa.registration import FINE_TUNED, VOLO_VARIANTS
from attngraft.models.elsa.volo import ElsaVolo
from attngraft.tensors import meta_device
from tests.seeding import seed

TINY: dict[str, Any] = {
    "img_size": 48,
    "layers": (2, 1, 1),
    "embed_dims": (16, 24, 24),
    "num_heads": (2, 3, 3),
    "stem_hidden_dim": 8,
    "num_classes": 5,
    "kernel_size": 3,
}


def tiny(**changes: Any) -> Any:
    seed(0)
    return timm.create_model("elsa_volo_d1", **(TINY | changes)).eval()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("elsa_volo_d1", 27_044_712),
        ("elsa_volo_d2", 59_540_320),
        ("elsa_volo_d3", 87_474_384),
        ("elsa_volo_d4", 194_507_760),
        ("elsa_volo_d5", 297_774_944),
    ],
)
def test_sizes(name: str, parameters: int) -> None:
    with meta_device():
        model = timm.create_model(name)
        volo = timm.create_model(name.removeprefix("elsa_") + "_224")
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    ours, theirs = ({key for key in each.state_dict() if not key.startswith("network.0.")} for each in (model, volo))
    assert ours == theirs


def test_all_are_registered() -> None:
    names = set(VOLO_VARIANTS) | {f"{name}_{size}" for name, sizes in FINE_TUNED.items() for size, _ in sizes}
    assert set(timm.list_models("elsa_volo_*")) == names
    assert len(names) == 11


@pytest.mark.parametrize(("name", "size", "crop"), [("elsa_volo_d1_384", 384, 1.0), ("elsa_volo_d5_512", 512, 1.15)])
def test_sizes_to_fine_tune_on(name: str, size: int, crop: float) -> None:
    with meta_device():
        model = timm.create_model(name)
    assert model.pretrained_cfg["input_size"] == (3, size, size)
    assert model.pretrained_cfg["crop_pct"] == crop
    assert model.pos_embed.shape[1:3] == (size // 16, size // 16)


def test_the_first_stage_has_hadamard_attention_and_no_outlooks() -> None:
    model = tiny()
    assert isinstance(model, ElsaVolo)
    found = [name for name, module in model.named_modules() if isinstance(module, HadamardAttention)]
    assert found == ["network.0.0.attn", "network.0.1.attn"]
    assert "network.0.0.attn.ghost_head" in model.state_dict()
    assert "network.0.0.attn.pre_proj.bias" not in model.state_dict()


def test_the_options_are_timms() -> None:
    images = torch.randn(2, 3, 48, 48)
    model = tiny()
    logits = model(images)
    assert logits.shape == (2, 5)
    model.set_grad_checkpointing()
    model.train()
    assert model(images).shape == logits.shape
    model(images).sum().backward()
    assert model.network[0][0].attn.ghost_head.grad is not None
    model.reset_classifier(3)
    assert model(images).shape == (2, 3)
    assert isinstance(model.get_classifier(), nn.Linear)
    assert tiny(num_classes=0)(images).shape == (2, 24)
    assert tiny(in_chans=1)(torch.randn(2, 1, 48, 48)).shape == (2, 5)
    assert tiny(img_size=64)(torch.randn(2, 3, 64, 64)).shape == (2, 5)


def test_checkpointing_gives_the_same_gradients() -> None:
    model, images, results = tiny().train(), torch.randn(2, 3, 48, 48), []
    for checkpointed in (False, True):
        model.set_grad_checkpointing(checkpointed)
        results.append(torch.autograd.grad(model(images).square().sum(), list(model.parameters())))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def drop_paths(model: Any) -> list[list[float]]:
    """Of the blocks of every stage."""
    stages = (stage for stage in model.network if isinstance(stage, nn.Sequential))
    return [[getattr(block.drop_path1, "drop_prob", 0.0) for block in stage] for stage in stages]


def test_drop_paths_grow_behind_the_first_stage_which_has_none() -> None:
    """As in VOLO, which counts its blocks from the first outlooker and gives these none."""
    model = tiny(layers=(2, 1, 2), drop_path_rate=0.4)
    first, *others = drop_paths(model)
    assert first == [0, 0]
    assert [rate for stage in others for rate in stage] == pytest.approx([0.2, 0.3, 0.4])
    sizes = {name: value for name, value in TINY.items() if name not in ("layers", "kernel_size")}
    assert drop_paths(model) == drop_paths(VOLO((2, 1, 2), **sizes, drop_path_rate=0.4))
    images = torch.randn(8, 3, 48, 48)
    assert not torch.equal(model.train()(images), model(images))


def test_its_later_stages_are_a_host_as_volos() -> None:
    report = attngraft.graft(tiny(), "horizontal")
    sites = [entry.site for entry in report.entries]
    assert sites
    assert not any(site.startswith("network.0.") for site in sites)
    with pytest.raises(GraftSpecError, match="computes its filters without a product"):
        attngraft.plan(tiny(), "horizontal@network.0")


def test_features_only() -> None:
    model = tiny(features_only=True)
    shapes = [tuple(feature.shape) for feature in model(torch.randn(1, 3, 48, 48))]
    assert shapes == [(1, 16, 6, 6), (1, 24, 3, 3), (1, 24, 3, 3)]


def test_mix_token_training_gives_tokens_and_their_box() -> None:
    model = tiny(use_mix_token=True).train()
    features, auxiliary, box = model.forward_train(torch.randn(2, 3, 48, 48))
    assert features.shape == (2, 24)  # the class token's, before the head
    assert auxiliary.shape == (2, 9, 5)
    assert len(box) == 4
