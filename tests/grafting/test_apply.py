"""Grafting and ungrafting: names, repeated grafts, wrapped models, features_only, all or nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.errors import HostError, UsageError
from tests.contract.tester import assert_same_host, snapshot
from tests.grafting import toys


def tiny_vit(**kwargs: object) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=3, num_heads=3, num_classes=5, **kwargs
    ).eval()


def tiny_swin(**kwargs: object) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"img_size": 28, "window_size": 4, "depths": (2, 1), "embed_dim": 12, "num_heads": (2, 3)}
    return timm.create_model("swin_tiny_patch4_window7_224", **sizes, **kwargs).eval()


def test_repeated_grafts_at_one_site_are_numbered() -> None:
    model = tiny_vit()
    report = attngraft.graft(model, "toy_scale + toy_scale@blocks.0")
    assert report.names == ("toy_scale", "toy_scale_2")
    report = attngraft.graft(model, "toy_scale@blocks.0")
    assert report.names == ("toy_scale_3",)
    assert "blocks.0.attn.grafts.toy_scale_3.scale" in model.state_dict()
    removed = attngraft.ungraft(model, "toy_scale_2")
    assert removed == ["blocks.0.attn.grafts.toy_scale_2"]
    assert attngraft.graft(model, "toy_scale@blocks.0").names == ("toy_scale_2",)


def test_a_repeated_graft_is_told(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_vit()
    assert not attngraft.graft(model, "cb + cb@blocks.0").warnings
    assert not attngraft.graft(model, "cb_s").warnings
    assert caplog.messages == []
    assert "already has cb at" in attngraft.plan(model, "cb@blocks.0").warnings[0]
    report = attngraft.graft(model, "cb@blocks.0")
    assert caplog.messages == list(report.warnings)
    assert caplog.messages[0].endswith("call attngraft.ungraft(model, ['cb', 'cb_2']) first.")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("vit_tiny", r"not the name 'vit_tiny'; .*attngraft\.create_model\('vit_tiny'\)"),
        (nn.Linear, "not the class Linear; pass an instance"),
        ({"weights": 1}, r"must be a model \(torch\.nn\.Module\), not dict"),
    ],
)
def test_what_is_no_model_is_refused(model: Any, words: str) -> None:
    for call in (attngraft.graft, attngraft.plan, attngraft.ungraft, attngraft.save_grafts):
        with pytest.raises(UsageError, match=words):
            call(model, "cb")
    with pytest.raises(UsageError, match=words), attngraft.record(model):
        pass


def test_options_separate_from_the_specification() -> None:
    model = tiny_vit()
    report = attngraft.graft(model, "toy_scale@blocks.1", start=0.5)
    assert report.entries[0].options["start"] == 0.5
    with pytest.raises(attngraft.GraftSpecError, match="unknown option 'strat'.*did you mean start"):
        attngraft.graft(model, "toy_scale", strat=0.5)
    with pytest.raises(attngraft.GraftSpecError, match="single graft"):
        attngraft.graft(model, "toy_scale + cb", start=0.5)


def test_nothing_is_changed_if_the_last_graft_is_refused() -> None:
    model = tiny_swin()
    before = snapshot(model)
    with pytest.raises(attngraft.HostError, match="class token"):
        attngraft.graft(model, "horizontal + cb(context=class)")
    assert_same_host(model, before)


def test_a_graft_type_that_builds_no_graft_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toys.ToyScale, "build", lambda *_: nn.Linear(2, 2))
    model = tiny_vit()
    before = snapshot(model)
    with pytest.raises(UsageError, match=r"toy_scale: `build` must return an .*Graft, not Linear"):
        attngraft.graft(model, "toy_scale")
    assert_same_host(model, before)


def test_no_graft_is_a_graft() -> None:
    model = tiny_vit()
    before = snapshot(model)
    report = attngraft.graft(model, "none")
    assert (report.parameters, report.macs, report.names) == (0, 0, ())
    assert_same_host(model, before)


@pytest.mark.parametrize("change", ["deleted", "replaced"])
@pytest.mark.parametrize("spec", ["cb_s", "horizontal", "uniform_heads", "vertical + cb_s"])
def test_what_was_not_deleted_or_replaced_is_restored(change: str, spec: str, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("attn", "mlp"):
        model = tiny_vit()
        plain = {path: (type(module), module.training) for path, module in model.named_modules()}
        flags = {path: parameter.requires_grad for path, parameter in model.named_parameters()}
        attngraft.graft(model, spec)
        delattr(model.blocks[1], name)
        if change == "replaced":
            setattr(model.blocks[1], name, nn.Identity())
        caplog.clear()
        removed = attngraft.ungraft(model)
        assert removed
        assert not any(path.startswith(f"blocks.1.{name}") for path in removed)
        gone = f"blocks.1.{name}"
        for path, module in model.named_modules():
            assert path == gone or (type(module), module.training) == plain[path]
        for path, parameter in model.named_parameters():
            assert parameter.requires_grad == flags[path]
        assert all(text.startswith("blocks.1: a part of this module was deleted") for text in caplog.messages)


def test_a_module_without_a_part_is_named(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_vit()
    attngraft.graft(model, "cb_s")
    del model.blocks[1].mlp
    assert len(attngraft.ungraft(model)) == 2
    assert "blocks.1: a part of this module was deleted or replaced" in caplog.text


def test_parameters_that_were_replaced_are_not_needed() -> None:
    model = tiny_vit()
    attngraft.graft(model, "uniform_heads")
    model.blocks[1].attn.qkv = nn.Identity()
    assert len(attngraft.ungraft(model)) == 3


def test_without_its_grafts_a_module_cannot_be_restored() -> None:
    model = tiny_vit()
    attngraft.graft(model, "horizontal")
    del model.blocks[1].attn.grafts
    with pytest.raises(HostError, match=r"^blocks\.1\.attn: its `grafts` were deleted or replaced"):
        attngraft.ungraft(model)
    assert len(model.blocks[0].attn.grafts) == 1


def test_ungraft_by_an_unknown_name_lists_the_known_ones() -> None:
    model = tiny_vit()
    attngraft.graft(model, "toy_scale")
    with pytest.raises(attngraft.GraftSpecError, match="no graft named 'cb'; its grafts: toy_scale"):
        attngraft.ungraft(model, ["toy_scale", "cb"])
    assert "blocks.0.attn.grafts.toy_scale.scale" in model.state_dict()


@pytest.mark.parametrize(
    ("wrap", "word"),
    [
        (lambda model: torch.compile(model), "torch.compile"),
        (lambda model: nn.DataParallel(model), "DataParallel"),
        (lambda model: nn.Sequential(torch.compile(model)), "torch.compile"),
        (lambda model: torch.jit.trace(model, torch.zeros(1, 3, 16, 16)), "torch.jit"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_wrapped_models_are_refused(wrap, word: str) -> None:
    with pytest.raises(attngraft.HostError, match=f"{word}.*graft the plain model first"):
        attngraft.graft(wrap(tiny_vit()), "cb")


def test_parametrized_models_are_refused() -> None:
    model = tiny_vit()
    nn.utils.parametrizations.weight_norm(model.blocks[0].attn.qkv)
    with pytest.raises(attngraft.HostError, match=r"blocks\.0\.attn\.qkv.*parametrize"):
        attngraft.graft(model, "cb")


def test_a_forward_of_its_own_is_refused() -> None:
    model = tiny_vit()
    before = snapshot(model)
    attention = model.get_submodule("blocks.1.attn")
    attention.forward = lambda x, **_: x  # type: ignore[method-assign]
    with pytest.raises(HostError, match="Attention in the model has a forward of its own"):
        attngraft.graft(model, "toy_scale")
    attngraft.graft(model, "toy_scale@blocks.0")
    attngraft.ungraft(model)
    del attention.forward
    assert_same_host(model, before)


def test_a_host_inside_a_custom_model() -> None:
    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = tiny_vit()
            self.boxes = nn.Linear(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.boxes(self.backbone(x))

    model = Detector().eval()
    x = torch.randn(2, 3, 16, 16)
    expected = model(x)
    report = attngraft.graft(model, "cb@blocks.1")
    assert [entry.site for entry in report.entries] == ["blocks.1.mlp"]
    assert not torch.equal(model(x), expected)
    attngraft.ungraft(model)
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("make", [tiny_vit, tiny_swin])
def test_features_only_uses_the_hosts_own_paths(make, tmp_path) -> None:
    plain, features = make(), make(features_only=True)
    spec = "vertical + cb_s(init=0.5)@last:1"
    torch.manual_seed(5)
    attngraft.graft(plain, spec)
    path = attngraft.save_grafts(plain, tmp_path / "g.safetensors")
    x = torch.randn(1, 3, *((28, 28) if make is tiny_swin else (16, 16)))
    before = features(x)
    report = attngraft.load_grafts(features, path)
    assert {entry.site for entry in report.entries} == {entry.site for entry in attngraft.plan(make(), spec).entries}
    after = features(x)
    assert not torch.equal(after[-1], before[-1])
    attngraft.ungraft(features)
    assert all(torch.equal(a, b) for a, b in zip(features(x), before, strict=True))


@pytest.mark.parametrize("kind", ["fx", "hook"])
def test_a_feature_extractor_without_the_model_is_refused(kind: str) -> None:
    features = tiny_swin(features_only=True, feature_cls=kind)
    with pytest.raises(attngraft.HostError, match=r"without features_only and graft it first"):
        attngraft.graft(features, "cb")


def test_an_unknown_model_is_refused_with_a_remedy() -> None:
    with pytest.raises(attngraft.HostError, match=r"register_host\(adapter\)\. attngraft list hosts"):
        attngraft.graft(nn.Linear(2, 2), "cb")


def test_unknown_subclasses_are_refused() -> None:
    class MyViT(timm.models.vision_transformer.VisionTransformer):
        pass

    with pytest.raises(attngraft.HostError, match="MyViT"):
        attngraft.graft(MyViT(img_size=16, patch_size=8, embed_dim=24, depth=1, num_heads=3), "cb")


def test_two_hosts_in_one_model_are_refused() -> None:
    with pytest.raises(attngraft.HostError, match=r"contains 2 hosts \(0, 1\)"):
        attngraft.graft(nn.Sequential(tiny_vit(), tiny_vit()), "cb")


def test_a_parameter_frozen_by_two_grafts_is_unfrozen_with_the_last() -> None:
    model = tiny_vit(qk_norm=True)
    attngraft.graft(model, "toy_values_only + toy_values_only")
    weight = model.blocks[0].attn.q_norm.weight
    attngraft.ungraft(model, "toy_values_only")
    assert not weight.requires_grad
    attngraft.ungraft(model)
    assert weight.requires_grad


def test_what_the_user_froze_stays_frozen() -> None:
    model = tiny_vit(qk_norm=True)
    model.blocks[0].attn.q_norm.weight.requires_grad_(False)
    attngraft.graft(model, "toy_values_only")
    attngraft.ungraft(model)
    assert not model.blocks[0].attn.q_norm.weight.requires_grad
    assert model.blocks[1].attn.q_norm.weight.requires_grad


def test_copies_are_independent() -> None:
    model = tiny_vit()
    attngraft.graft(model, "toy_scale(start=0.5)")
    other = copy.deepcopy(model)
    attngraft.ungraft(other)
    assert "blocks.0.attn.grafts.toy_scale.scale" in model.state_dict()


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_pinned_rows_do_not_move(optimizer) -> None:
    model = tiny_vit()
    attngraft.graft(model, "uniform_heads")
    stepper = optimizer(model.parameters(), lr=0.1, weight_decay=0.5)
    attngraft.pin_unused(stepper, model)
    before = model.blocks[0].attn.qkv.weight.detach().clone()
    for _ in range(2):
        model(torch.randn(2, 3, 16, 16)).square().sum().backward()
        stepper.step()
        stepper.zero_grad()
    moved = (model.blocks[0].attn.qkv.weight != before).any(dim=1)
    unused = torch.zeros(72, dtype=torch.bool)
    unused[16:24] = unused[40:48] = True  # q and k rows of the last of 3 heads of 8
    assert torch.equal(moved, ~unused)


def test_pinned_columns_of_a_bias_table_do_not_move() -> None:
    model = tiny_swin()
    attngraft.graft(model, "uniform_heads")
    stepper = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    attngraft.pin_unused(stepper, model)
    table = model.layers[0].blocks[0].attn.relative_position_bias_table
    before = table.detach().clone()
    model(torch.randn(2, 3, 28, 28)).square().sum().backward()
    stepper.step()
    assert torch.equal(table[:, 1], before[:, 1])
    assert not torch.equal(table[:, 0], before[:, 0])


def test_create_model_gives_every_variant_the_same_host() -> None:
    models = []
    for spec in (None, "horizontal", "cb_s + vertical"):
        torch.manual_seed(7)
        models.append(attngraft.create_model("vit_tiny_patch16_224", graft=spec, img_size=16, patch_size=8, depth=1))
    plain = models[0].state_dict()
    assert all(torch.equal(model.state_dict()[name], value) for model in models[1:] for name, value in plain.items())


@pytest.mark.parametrize("spec", ["vertical", "cb_s", "bisa"])
def test_grafts_are_on_the_hosts_device_whatever_the_default_is(spec: str) -> None:
    expected, model = tiny_vit(), tiny_vit()
    torch.manual_seed(0)
    attngraft.graft(expected, spec)
    torch.manual_seed(0)
    with torch.device("meta"):
        attngraft.graft(model, spec)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), expected.parameters(), strict=True))
