"""`torchvision:` hosts."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torchvision import models

import attngraft
from attngraft.errors import HostError, UsageError
from attngraft.hosts import model_parts
from attngraft.models.create import create_host, start_host
from attngraft.models.host_input import host_input
from attngraft.training.build import build_initial_model
from attngraft.training.recipe import HostConfig, Recipe

SMALL = "torchvision:shufflenet_v2_x0_5"


@pytest.mark.parametrize(
    ("name", "classifier", "size", "interpolation"),
    [
        ("vit_b_32", "heads.head", 224, "bilinear"),
        ("swin_v2_t", "head", 256, "bicubic"),
        ("convnext_tiny", "classifier.2", 224, "bilinear"),
        ("regnet_x_400mf", "fc", 224, "bilinear"),  # is built on the CPU: it reads values
        ("vit_h_14", "heads.head", 518, "bicubic"),
    ],
)
def test_input_and_head(name: str, classifier: str, size: int, interpolation: str) -> None:
    expects = host_input(f"torchvision:{name}", {"num_classes": 7})
    assert (expects["input_size"], expects["interpolation"]) == ((3, size, size), interpolation)
    with torch.device("meta"):
        model = create_host(f"torchvision:{name}", num_classes=7)
    assert model_parts(model).head == (classifier,)
    assert model.get_submodule(classifier).out_features == 7


def test_arguments_have_timms_names() -> None:
    given = {"img_size": 64, "pretrained_cfg_overlay": {"mean": (0, 0, 0)}}
    expects = host_input("torchvision:vit_b_32", given)
    assert expects["input_size"] == (3, 64, 64) and expects["mean"] == (0, 0, 0)
    with torch.device("meta"):
        model = create_host("torchvision:vit_b_32", **given)
        swin = create_host("torchvision:swin_t", drop_path_rate=0.3)
    assert model.image_size == 64
    depths = [module.p for module in swin.modules() if type(module).__name__ == "StochasticDepth"]
    assert max(depths) == pytest.approx(0.3)
    with pytest.raises(UsageError, match="no stochastic depth; use --set train.drop_path=null"):
        create_host(SMALL, drop_path_rate=0.1)
    with pytest.raises(HostError, match=r"torchvision .* cannot create vit_b_32 with nonsense=1"):
        create_host("torchvision:vit_b_32", nonsense=1)


def test_pretrained_weights_and_a_new_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From torch's cache; another number of classes gets a head from the host's own stream."""
    weights = models.ShuffleNet_V2_X0_5_Weights.DEFAULT
    published = models.shufflenet_v2_x0_5()
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(type(weights), "get_state_dict", lambda *_, **__: published.state_dict())
    path = tmp_path / "checkpoints" / weights.url.rpartition("/")[2]
    whole = start_host(SMALL, {}, pretrained=True)
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(whole.model.eval()(images), published.eval()(images))
    assert whole.fitted is not None and whole.fitted.path == path and not whole.fitted.new
    recipe = Recipe(host=HostConfig(name=SMALL, pretrained=True))
    (first, start), (second, _) = (build_initial_model(recipe, {"num_classes": 5}) for _ in range(2))
    assert not start.whole and "a new head: fc.bias, fc.weight" in start.origin
    assert first.fc.weight.shape == (5, 1024) and torch.equal(first.fc.weight, second.fc.weight)
    assert torch.equal(first.conv1[0].weight, published.conv1[0].weight)
    untrained, _ = build_initial_model(recipe, {"num_classes": 5}, load_weights=False)
    assert torch.equal(first.fc.weight, untrained.fc.weight)


def test_positions_are_resampled_to_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.ViT_B_32_Weights, "get_state_dict", lambda *_, **__: published.state_dict())
    published = models.vit_b_32()
    model = create_host("torchvision:vit_b_32", pretrained=True, img_size=96)
    assert model.encoder.pos_embedding.shape == (1, 10, 768)
    assert torch.equal(model.encoder.pos_embedding[:, 0], published.encoder.pos_embedding[:, 0])


def test_without_a_network_the_message_says_where_to_put_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("socket.socket.connect", lambda *_: (_ for _ in ()).throw(OSError("no network")))
    with pytest.raises(HostError, match=r"weights of torchvision:shufflenet_v2_x0_5 are not in the cache.*copy it to"):
        create_host(SMALL, pretrained=True)


def test_grafted_copied_and_pickled() -> None:
    model = attngraft.create_model("torchvision:swin_t", "cb_s@features.1", num_classes=3, img_size=64).eval()
    images = torch.randn(1, 3, 64, 64)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(images), model(images)) and twin.pretrained_cfg == model.pretrained_cfg
    with pytest.raises(HostError, match="ShuffleNetV2 is not a supported host"):
        attngraft.create_model(SMALL, "cb_s")
