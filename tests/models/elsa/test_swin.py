"""ELSA-Swin: published sizes, timm's interface, and images of any size."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from timm.models import group_parameters
from torch import Tensor

import attngraft
from attngraft.errors import HostError
from attngraft.models.elsa.blocks import WindowAttention
from attngraft.models.elsa.registration import VARIANTS
from attngraft.models.elsa.swin import ElsaSwin, ElsaSwinBackbone, checkpoint_filter_fn
from attngraft.tensors import meta_device

TINY: dict[str, Any] = {
    "img_size": 64,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": (1, 1, 1, 2),
    "num_heads": (1, 2, 2, 4),
    "kernel_size": 3,
    "window_size": 3,
    "num_classes": 5,
}
#: name -> parameters (facts, section 3)
PARAMETERS = {"elsa_swin_tiny": 29_140_978, "elsa_swin_small": 52_874_626, "elsa_swin_base": 92_682_464}


def tiny(name: str = "elsa_swin_small", *, seed: int = 0, **changes: Any) -> ElsaSwin:
    torch.manual_seed(seed)
    model: ElsaSwin = timm.create_model(name, **{**TINY, **changes})
    return model.eval()


def images(*, height: int = 64, width: int = 64, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(1))


def test_the_names_make_the_published_models() -> None:
    assert set(timm.list_models("elsa_swin_*")) == set(VARIANTS) == set(PARAMETERS)
    for name, count in PARAMETERS.items():
        with meta_device():
            model = timm.create_model(name)
        assert sum(p.numel() for p in model.parameters()) == count
        config = model.pretrained_cfg
        assert (config["input_size"], config["crop_pct"], config["interpolation"]) == ((3, 224, 224), 0.9, "bicubic")
        assert isinstance(model.get_submodule(config["first_conv"]), torch.nn.Conv2d)


def test_parameters_are_those_counted(shared: Path) -> None:
    text = (shared / "facts/elsa_counts.json").read_text()
    assert all(str(count) in text for count in PARAMETERS.values())
    assert json.loads(text)


def test_a_ghost_head_of_both_matrices_is_what_the_paper_did_not_use() -> None:
    """Its Table 4: 28,999,858 without, 29,140,978 with the addend; both would be 29,282,098."""
    for changes, count in (({"gamma": 0}, 28_999_858), ({"lam": 1}, 29_282_098)):
        with meta_device():
            model = timm.create_model("elsa_swin_tiny", **changes)
        assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("shape", [(64, 64), (32, 96), (61, 50), (224, 64), (9, 9)])
def test_images_of_any_size(shape: tuple[int, int]) -> None:
    model = tiny()
    assert model(images(height=shape[0], width=shape[1])).shape == (2, 5)


def test_images_do_not_mix_and_all_of_one_is_seen() -> None:
    model, pixels = tiny(), images().requires_grad_()
    model(pixels)[0].sum().backward()
    assert pixels.grad is not None
    assert (pixels.grad[0].abs().sum(0) > 0).all()
    assert not pixels.grad[1].any()


def test_the_windows_shift_in_every_second_block_where_the_map_is_larger() -> None:
    model = tiny()
    windows = [module for module in model.modules() if isinstance(module, WindowAttention)]
    assert [(each.window, each.shift) for each in windows] == [(3, 0), (3, 1)]
    assert [each.window for each in tiny(img_size=32).modules() if isinstance(each, WindowAttention)] == [2, 2]
    shifted, x = windows[1], torch.randn(1, 3, 3, 64)
    expected = shifted(x)
    shifted.shift = 0
    assert torch.equal(shifted(x), expected), "a map of one window is not shifted"
    shifted.shift, shifted.shift_small = 1, True
    assert not torch.allclose(shifted(x), expected)


@pytest.mark.parametrize("shift", [0, 1])
def test_windows_attend_as_if_each_had_an_axis_of_its_own(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64 but for rounding, gradients too: four axes may be given to another kernel, and are on some processors."""

    def on_five_axes(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    attention = WindowAttention(16, 2, window=3, shift=shift).double()
    torch.nn.init.normal_(attention.rb)
    x, weight = torch.randn(2, 8, 6, 16, requires_grad=True, dtype=torch.float64), torch.randn(2, 8, 6, 16)
    found = attention(x)
    gradients = torch.autograd.grad((found * weight).sum(), [x, *attention.parameters()])
    monkeypatch.setattr(attention, "_attended", on_five_axes)
    expected = attention(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    for ours, theirs in zip(
        gradients, torch.autograd.grad((expected * weight).sum(), [x, *attention.parameters()]), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


# -- as one of timm's models -------------------------------------------------------------------------------------------


def test_another_head() -> None:
    model = tiny(drop_rate=0.5)
    assert model.get_classifier() is model.head
    model.reset_classifier(3)
    assert (model.num_classes, model(images()).shape) == (3, (2, 3))
    pooled = model.forward_head(model.forward_features(images()), pre_logits=True)
    torch.testing.assert_close(pooled, model.forward_features(images()).mean((1, 2)))
    model.reset_classifier(0, "")
    assert model(images()).shape == (2, 4, 4, 64)
    with pytest.raises(ValueError, match="global_pool"):
        model.reset_classifier(3, "token")  # type: ignore[arg-type]


def test_intermediates() -> None:
    model = tiny()
    last, found = model.forward_intermediates(images())
    assert [each.shape for each in found] == [(2, 8, 32, 32), (2, 16, 16, 16), (2, 32, 8, 8), (2, 64, 4, 4)]
    assert torch.equal(last, model.forward_features(images()))
    (normed,) = model.forward_intermediates(images(), 1, norm=True, output_fmt="NHWC", intermediates_only=True)
    assert torch.equal(normed, last)
    (early,) = model.forward_intermediates(images(), [1], stop_early=True, intermediates_only=True)
    assert torch.equal(early, found[1])
    with pytest.raises(ValueError, match="NCHW or NHWC"):
        model.forward_intermediates(images(), output_fmt="NLC")
    assert model.prune_intermediate_layers([1], prune_norm=True) == [1]
    assert torch.equal(model.forward_intermediates(images(), [1], intermediates_only=True)[0], early)


def test_features_only() -> None:
    model = timm.create_model("elsa_swin_tiny", features_only=True, out_indices=(1, 3), **TINY)
    assert [each.shape for each in model(images())] == [(2, 16, 16, 16), (2, 64, 4, 4)]
    assert (model.feature_info.channels(), model.feature_info.reduction()) == ([16, 64], [4, 16])


def test_checkpointing_gives_the_same_gradients() -> None:
    model = tiny(drop_path_rate=0.0).train()
    results = []
    for checkpointed in (False, True):
        model.set_grad_checkpointing(checkpointed)
        results.append(torch.autograd.grad(model(images()).square().sum(), list(model.parameters())))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_drop_paths_grow_with_depth() -> None:
    model = tiny(drop_path_rate=0.4)
    rates = [block.drop_path1.drop_prob for stage in model._stages() for block in stage.blocks]  # type: ignore[union-attr]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert not torch.equal(model.train()(images()), model(images()))


def test_every_parameter_has_a_layer() -> None:
    model = tiny()
    groups = group_parameters(model, model.group_matcher(), reverse=True)
    assert set(groups) == {name for name, _ in model.named_parameters()}
    assert groups["patch_embed.proj.weight"] == 0 < groups["layers.0.blocks.0.mlp.fc1.weight"]
    assert groups["layers.3.blocks.1.mlp.fc1.weight"] > groups["layers.3.blocks.0.mlp.fc1.weight"]


def test_its_mlps_take_grafts() -> None:
    model = tiny()
    report = attngraft.graft(model, "cb_s@layers.3")
    assert [entry.site for entry in report.entries] == ["layers.3.blocks.0.mlp", "layers.3.blocks.1.mlp"]
    with pytest.raises(HostError, match="computes its filters without a product"):
        attngraft.plan(tiny(), "horizontal")


def test_copies_and_dtypes() -> None:
    model = tiny()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(images()), model(images()))
    half = copy.deepcopy(model).bfloat16()
    assert (half(images().bfloat16()) - model(images())).abs().max() < 0.1


# -- weights -----------------------------------------------------------------------------------------------------------


def published(model: ElsaSwin) -> dict[str, Tensor]:
    """As the authors' files are: with the buffers that their code saves."""
    state = dict(model.state_dict())
    for number in range(2):
        state[f"layers.3.blocks.{number}.attn.relative_id"] = torch.zeros(81, dtype=torch.int64)
    return {**state, "layers.3.blocks.1.attn_mask": torch.zeros(4, 9, 9)}


def test_published_files_load_as_they_are(tmp_path: Path) -> None:
    donor = tiny(seed=3)
    path = tmp_path / "elsa.safetensors"
    safetensors.torch.save_file(published(donor), path)
    model = attngraft.create_model("elsa_swin_small", weights=path, **TINY).eval()
    assert torch.equal(model(images()), donor(images()))


def test_windows_of_another_size_get_their_table_resampled() -> None:
    donor = tiny(seed=3)
    model = tiny(img_size=32)
    state = checkpoint_filter_fn(published(donor), model)
    model.load_state_dict(state)
    assert state["layers.3.blocks.0.attn.rb"].shape == (4, 9)
    assert donor.state_dict()["layers.3.blocks.0.attn.rb"].shape == (4, 25)
    assert model(images(height=32, width=32)).shape == (2, 5)


# -- dense use ---------------------------------------------------------------------------------------------------------


def test_the_backbone_gives_every_stage_normed() -> None:
    model = tiny(img_size=224)
    backbone = ElsaSwinBackbone(model)
    found = backbone(images(height=50, width=34))
    assert [each.shape for each in found] == [(2, 8, 25, 17), (2, 16, 13, 9), (2, 32, 7, 5), (2, 64, 4, 3)]
    torch.testing.assert_close(found[0].mean(1), torch.zeros(2, 25, 17), atol=1e-5, rtol=0)
    assert {"norm0.weight", "norm3.bias"} <= set(backbone.state_dict())
    assert backbone.train() is backbone, "training mode can be chained"
