"""Bi-directional attention as grafts."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attngraft
from attngraft.attention import AttentionGeometry
from attngraft.attention.geometry import Projection
from attngraft.errors import GraftSpecError, HostError, UsageError
from attngraft.export.fold import fold
from attngraft.mechanisms.bisa import BidirectionalAttention, MixVariant
from attngraft.mechanisms.bisa.mix import _over_tokens
from attngraft.mechanisms.registry import graft_types
from tests.conformance.weights import input_value, weight
from tests.contract.timm.test_levit import TINY as TINY_LEVIT
from tests.listening import Heard

SHARED = Path(os.environ.get("ATTNGRAFT_SHARED", "../shared"))
LEVIT = Projection(bias=False, norm="batch", activation="hard_swish")
TINY: dict[str, Any] = {
    "img_size": 16,
    "patch_size": 4,
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 3,
    "num_classes": 5,
}


def tiny_vit(**changes: Any) -> nn.Module:
    torch.manual_seed(1)
    return timm.create_model("vit_tiny_patch16_224", **(TINY | changes)).eval()


IMAGES = torch.linspace(-1, 1, 2 * 3 * 16 * 16).sin().reshape(2, 3, 16, 16)


def tiny_levit() -> nn.Module:
    return timm.create_model("levit_128s", **TINY_LEVIT)


def test_a_folded_levit_is_one_that_was_folded_before_it_was_grafted() -> None:
    torch.manual_seed(0)
    models = [tiny_levit() for _ in range(2)]
    images, spec = torch.randn(4, 3, 48, 48), "bisa(separate=true)@stages.*.blocks"
    attngraft.graft(models[0], spec)
    for _ in range(3):
        models[0].train()(images)
    expected = models[0].eval()(images)
    what = {entry.graft: entry.folded for entry in fold(models[0]).entries}
    assert what["bisa"] == "its batch norms are folded into its linear maps"
    fold(models[1].eval())
    attngraft.graft(models[1], spec)
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        torch.testing.assert_close(model.eval()(images), expected, atol=1e-5, rtol=1e-4)
    with pytest.raises(HostError, match="folded"):
        attngraft.ungraft(models[0])


@pytest.mark.parametrize(
    "spec",
    ["bisa(identity=true)", "bisa(identity=true, transform=mlp, weight=0.8)", "bisa(identity=true, separate=true)"],
)
def test_the_identity_form_starts_as_the_host_and_learns(spec: str) -> None:
    model = tiny_vit()
    expected = model(IMAGES)
    report = attngraft.graft(model, spec)
    found = model(IMAGES)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert "unchanged up to rounding" in " ".join(report.summary())
    found.square().sum().backward()
    last = "contract.weight" if "mlp" in spec else "transform.weight"
    moved = [p.grad for name, p in model.named_parameters() if name.endswith(last)]
    assert len(moved) == 2
    assert all(gradient.abs().max() > 0 for gradient in moved)


@pytest.mark.parametrize("transform", ["hyper", "mlp"])
def test_the_identity_form_starts_softly_behind_a_batch_norm_of_its_own(transform: str) -> None:
    torch.manual_seed(0)
    model, images = tiny_levit(), torch.randn(8, 3, 48, 48)
    expected = {mode: copy.deepcopy(model).train(mode)(images) for mode in (True, False)}
    attngraft.graft(model, f"bisa(identity=true, separate=true, transform={transform})@stages.*.blocks")
    for mode, value in expected.items():
        torch.testing.assert_close(copy.deepcopy(model).train(mode)(images), value)
    grafts = {name: parameter for name, parameter in model.named_parameters() if ".grafts." in name}
    model.train()(images).logsumexp(-1).square().sum().backward()
    first = {name: p for name, p in grafts.items() if p.grad.abs().max() > 0}
    assert set(first) == {name for name in grafts if name.endswith(("own.proj.norm.weight", "own.proj.norm.bias"))}
    torch.optim.SGD(grafts.values(), lr=0.1).step()  # a zero transform would need tiny steps
    moved = (model(images) - expected[True]).norm() / expected[True].norm()
    assert 1e-3 < moved < 0.2


def test_notes_say_what_batch_norm_makes_of_a_variant() -> None:
    kind = graft_types()["bisa"]
    plain = AttentionGeometry(dim=16, tokens=9, heads=2, key_width=4, value_width=8)
    normed = AttentionGeometry(dim=16, tokens=9, heads=2, key_width=4, value_width=8, projection=LEVIT)

    def notes(geometry: AttentionGeometry, **options: Any) -> str:
        return " ".join(kind.notes(geometry, "mix", kind.Options(**options)))

    assert "running statistics mix both" in notes(normed, order="self_then_inverse")
    assert "running statistics" not in notes(plain, order="self_then_inverse") + notes(normed)
    assert "with a zero hypernetwork" in notes(plain, identity=True, separate=True)
    assert "zero norm after the branch's own projection" in notes(normed, identity=True, separate=True)


def test_the_running_statistics_of_an_order_blend_both_branches() -> None:
    model, images = tiny_levit(), torch.randn(8, 3, 48, 48)
    attngraft.graft(model, "bisa(order=self_then_inverse)@stages.0.blocks.0.attn")
    attention = model.stages[0].blocks[0].attn
    seen: list[Tensor] = []
    attention.qkv.bn.register_forward_pre_hook(lambda module, args: seen.append(args[0].flatten(0, -2).mean(0)))
    model.train()(images)
    assert len(seen) == 2
    torch.testing.assert_close(attention.qkv.bn.running_mean, 0.9 * 0.1 * seen[0] + 0.1 * seen[1])


def test_the_graft_on_a_shifted_swin_block_is_the_layer_of_the_vector() -> None:
    path = SHARED / "conformance/vectors/bisa/bisa_swin_shifted_h3_n49.json"
    if not path.is_file():
        pytest.skip(f"no conformance vectors at {SHARED}")
    vector = json.loads(path.read_text())
    model = timm.models.swin_transformer.SwinTransformer(
        img_size=14, patch_size=1, embed_dim=96, depths=(2,), num_heads=(3,), window_size=7, num_classes=0
    ).eval()
    attngraft.graft(model, "bisa@layers.0.blocks.1")
    block = model.layers[0].blocks[1]
    attention, mixer = block.attn, block.attn.grafts["bisa"]
    places = {
        "query": (attention.qkv, slice(0, 96)),
        "key": (attention.qkv, slice(96, 192)),
        "value": (attention.qkv, slice(192, 288)),
        "proj": (attention.proj, slice(None)),
        "inverse_query": (mixer.inverse.query.linear, slice(None)),
        "inverse_value": (mixer.inverse.value.linear, slice(None)),
    }
    with torch.no_grad():
        for key, shape in vector["state_shapes"].items():
            name, _, kind = key.partition(".")
            value = torch.from_numpy(weight(key, tuple(shape)))
            if name in places:
                module, rows = places[name]
                getattr(module, kind)[rows] = value
            else:
                {
                    "hyper": mixer.inverse.transform.weight,
                    "position_bias_table": attention.relative_position_bias_table,
                }[name].copy_(value)
        for repeat in (1, 2):  # two images share the windows' masks
            tokens = torch.from_numpy(input_value("tokens", (4, 49, 96))).repeat(repeat, 1, 1)
            found = attention(tokens, mask=block.attn_mask)
            expected = vector["expected"]["tokens"]
            theirs = torch.tensor(expected["values"])
            for ours in found.split(4):
                torch.testing.assert_close(
                    ours.flatten()[:: expected["stride"]], theirs, atol=vector["atol"], rtol=1e-4
                )


@pytest.mark.parametrize("name", ["bisa", "misa"])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"causal": True}, "must not see later ones"),
        ({"padded": True}, "contain padding"),
        ({"cross": True}, "choose self-attention sites"),
        ({"query_tokens": 4}, "subsampled"),
    ],
)
def test_sites_that_refuse(name: str, changes: dict[str, Any], reason: str) -> None:
    kind = graft_types()[name]
    geometry = AttentionGeometry(dim=24, tokens=16, heads=3, key_width=8, value_width=8)
    assert kind.refusal(geometry, "mix", kind.Options()) is None
    refused = AttentionGeometry(dim=24, tokens=16, heads=3, key_width=8, value_width=8, **changes)
    assert reason in (kind.refusal(refused, "mix", kind.Options()) or "")


def test_orders_need_heads_as_wide_as_the_model() -> None:
    kind = graft_types()["bisa"]
    geometry = AttentionGeometry(dim=24, tokens=16, heads=3, key_width=8, value_width=16)
    assert kind.refusal(geometry, "mix", kind.Options()) is None
    assert "order=parallel" in (kind.refusal(geometry, "mix", kind.Options(order="self_then_inverse")) or "")


def test_specifications() -> None:
    with pytest.raises(GraftSpecError, match="weight=1 is the host's own attention"):
        attngraft.plan(tiny_vit(), "bisa(weight=1)")
    with pytest.raises(HostError, match="already has a graft at hook point mix"):
        attngraft.graft(tiny_vit(), "bisa + misa")
    report = attngraft.plan(tiny_vit(), "misa@first:1")
    assert report.entries[0].unused.rows == (("qkv.weight", 48, 72), ("qkv.bias", 48, 72))
    assert any("depends on all tokens" in line for line in report.summary())


def test_a_causal_call_is_refused() -> None:
    model = tiny_vit()
    attngraft.graft(model, "bisa@first:1")
    with pytest.raises(UsageError, match="cannot be causal"):
        model.blocks[0].attn(torch.randn(1, 5, 24), is_causal=True)


def test_a_mask_given_to_the_host_holds_in_both_directions() -> None:
    model = tiny_vit()
    attngraft.graft(model, "bisa@first:1")
    x, there = torch.randn(1, 5, 24), torch.tensor([True, True, True, False, False])
    visible = (there.unsqueeze(0) & there.unsqueeze(1)).view(1, 1, 5, 5)
    found = model.blocks[0].attn(x, attn_mask=visible)
    torch.testing.assert_close(found[:, :3], model.blocks[0].attn(x[:, :3]))


@pytest.mark.parametrize(
    "spec", ["bisa", "bisa(transform=mlp)", "bisa(separate=true)", "bisa(order=self_then_inverse)", "misa"]
)
def test_recording_hears_both_branches_and_changes_nothing(spec: str) -> None:
    model = tiny_vit()
    attngraft.graft(model, spec)
    expected = model(IMAGES)
    with attngraft.record(model, sites="blocks.0") as recording:
        assert torch.equal(model(IMAGES), expected)
    heard, name = recording["blocks.0.attn"], spec.partition("(")[0]
    assert ("weights" in heard) == (f"{name}.self" in heard) == (spec != "misa")
    share = heard[f"{name}.inverse_weights"]
    assert share.shape == (2, 3, 17, 17)
    torch.testing.assert_close(share.sum(-2), torch.ones(2, 3, 17))
    assert heard[f"{name}.inverse"].shape == (2, 3, 17, 8)
    if spec == "bisa":
        assert heard["bisa.lambda"].item() == 0.5
        both = 0.5 * heard["bisa.self"] + 0.5 * heard["bisa.inverse"]
        torch.testing.assert_close(heard["heads"], both)
        torch.testing.assert_close(
            heard["bisa.self"], heard["weights"] @ values(model.blocks[0].attn, model, IMAGES), atol=1e-5, rtol=1e-4
        )


def values(attention: nn.Module, model: nn.Module, images: Tensor) -> Tensor:
    seen: list[Tensor] = []
    hook = attention.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(images)
    hook.remove()
    return attention.qkv(seen[0])[..., 48:].unflatten(-1, (3, 8)).transpose(1, 2)


@pytest.mark.parametrize("spec", ["bisa", "bisa(transform=mlp)", "misa"])
def test_dropout_draws_anew_and_of_nothing_changes_nothing(spec: str) -> None:
    model = tiny_vit(attn_drop_rate=0.5)
    attngraft.graft(model, spec)
    plain = model(IMAGES)
    torch.testing.assert_close(model(IMAGES), plain)
    model.train()
    torch.manual_seed(2)
    first, second = model(IMAGES), model(IMAGES)
    assert not torch.allclose(first, second)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 1e-9  # the explicit path, with nothing dropped
    torch.testing.assert_close(model(IMAGES), plain, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("transform", ["hyper", "mlp"])
def test_both_directions_drop_a_half_and_draw_it_by_themselves(transform: str) -> None:
    """Each branch is linear in its map, so its outputs for unit values show the map that it used."""
    torch.manual_seed(0)
    tokens, heads = 16, 2
    module = BidirectionalAttention(
        32, heads, hyper_dim=tokens, mlp_hidden=tokens, variant=MixVariant(transform=transform), attn_drop=0.5
    )
    inverse, unit = module.both.inverse, torch.eye(tokens)
    inverse.queries = lambda x: torch.ones(len(x), heads, tokens, tokens)  # type: ignore[method-assign]
    inverse.values = lambda x: unit.expand(len(x), heads, tokens, tokens)  # type: ignore[method-assign]
    with torch.no_grad():
        if transform == "hyper":  # isa_i[c] = u_i[c]
            inverse.transform.weight.copy_(torch.eye(tokens).unsqueeze(1).expand(-1, tokens, -1) / tokens)
        else:  # GELU(v_hat_j) is the unit vector times GELU(1)
            for parameter in inverse.transform.parameters():
                parameter.zero_()
            inverse.transform.expand.weight[:, tokens:] = unit
            inverse.transform.contract.weight.copy_(unit / F.gelu(torch.ones(())))
        module.value.linear.weight.zero_()
    x = torch.randn(64, tokens, 32)
    values = torch.cat([unit, unit], 1)  # for both heads
    module.value.forward = lambda x: values.expand(len(x), -1, -1)  # type: ignore[method-assign]
    offered: dict[str, list[Tensor]] = {"self": [], "inverse": []}
    for _ in range(2):
        heard = Heard()
        module.both.recorder = heard
        with torch.no_grad():
            module.train()(x)
        for name, found in offered.items():
            found.append(heard[name] != 0)
    for kept in (*offered["self"], *offered["inverse"]):
        assert kept.shape == (64, heads, tokens, tokens)
        assert kept.float().mean().item() == pytest.approx(0.5, abs=0.02)
    pairs = [(offered["self"][0], offered["inverse"][0]), *(tuple(found) for found in offered.values())]
    for first, second in pairs:  # the two directions of a pass, and each in two passes
        assert (first & second).float().mean().item() == pytest.approx(0.25, abs=0.02)
        assert (first & second.mT).float().mean().item() == pytest.approx(0.25, abs=0.02)


def test_a_weights_graft_acts_on_self_attention_alone() -> None:
    model, other = tiny_vit(), tiny_vit()
    torch.manual_seed(3)
    attngraft.graft(model, "bisa@first:1")
    expected = model(IMAGES)
    attngraft.graft(model, "uniform_heads@first:1")
    with attngraft.record(model, sites="blocks.0") as recording:
        assert not torch.allclose(model(IMAGES), expected)
    branches = recording["blocks.0.attn"]
    torch.manual_seed(3)
    attngraft.graft(other, "bisa@first:1")
    with attngraft.record(other, sites="blocks.0") as recording:
        other(IMAGES)
    torch.testing.assert_close(branches["bisa.inverse"], recording["blocks.0.attn"]["bisa.inverse"])
    assert not torch.allclose(branches["bisa.self"], recording["blocks.0.attn"]["bisa.self"])


def test_equal_tokens_besides_padding_have_finite_gradients_in_float16() -> None:
    heads = torch.ones(1, 2, 5, 4, dtype=torch.float16, requires_grad=True)
    found = _over_tokens(heads, torch.tensor([[1, 1, 1, 1, 0]]))
    assert found.dtype == torch.float16 and not found.any()
    found.sum().backward()
    assert heads.grad is not None and torch.isfinite(heads.grad).all()


def test_the_value_rows_that_misa_leaves_unused_stay_still() -> None:
    model = tiny_vit()
    before = [block.attn.qkv.weight[48:].clone() for block in model.blocks]
    attngraft.graft(model, "misa")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    attngraft.pin_unused(optimizer, model)
    for _ in range(2):
        optimizer.zero_grad()
        model(IMAGES).square().sum().backward()
        assert not any(block.attn.qkv.weight.grad[48:].any() for block in model.blocks)
        optimizer.step()
    assert all(torch.equal(block.attn.qkv.weight[48:], rows) for block, rows in zip(model.blocks, before, strict=True))
    assert not torch.equal(model.blocks[0].attn.qkv.weight[:48], tiny_vit().blocks[0].attn.qkv.weight[:48])
