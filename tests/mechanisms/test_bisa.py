"""Bi-directional attention's layer and grafts."""

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
from attngraft.anatomy import AttentionGeometry
from attngraft.anatomy.geometry import Projection
from attngraft.errors import GraftSpecError, HostError, UsageError
from attngraft.export.fold import fold
from attngraft.mechanisms.bisa import BidirectionalAttention, Variant, reference
from attngraft.mechanisms.bisa.mix import BidirectionalMix
from attngraft.mechanisms.bisa.transform import mlp_hidden
from attngraft.mechanisms.registry import graft_types
from tests.conformance.weights import input_value, weight

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


def layer(*, tokens: int = 6, **variant: Any) -> tuple[BidirectionalAttention, Tensor, Tensor]:
    """A layer of unequal widths at which nothing cancels, its input, and a bias with masked pairs; in float64."""
    torch.manual_seed(0)
    module = BidirectionalAttention(
        12, 2, key_dim=4, value_dim=5, hyper_dim=3, variant=Variant(**variant), dtype=torch.float64
    )
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    bias = torch.randn(1, 2, tokens, tokens, dtype=torch.float64)
    bias[..., 0, 2:4] = float("-inf")
    return module, torch.randn(3, tokens, 12, dtype=torch.float64), bias


def spelled_out(module: BidirectionalAttention, x: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
    """SA and MISA (B, H, N, dv) by the equations."""

    def heads(tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (2, -1)).transpose(1, 2)

    inverse = module.both.inverse
    q, k, v = (heads(part(x)) for part in (module.query, module.key, module.value))
    q_hat, v_hat = heads(F.gelu(inverse.query(x))), heads(F.gelu(inverse.value(x)))
    attended = reference.masked_softmax(reference.scores(q, k, bias=bias), -1) @ v
    if module.both.variant.transform == "hyper":
        found = reference.inverse_attention(q, k, q_hat, v_hat, inverse.transform.weight, bias=bias)
    else:
        found = reference.inverse_attention_mlp(
            q,
            k,
            q_hat,
            v_hat,
            expand=inverse.transform.expand.weight,
            expand_bias=inverse.transform.expand.bias,
            contract=inverse.transform.contract.weight,
            contract_bias=inverse.transform.contract.bias,
            bias=bias,
        )
    return {"self": attended, "inverse": found}


def merged(module: BidirectionalAttention, heads: Tensor) -> Tensor:
    return module.proj(heads.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"weight": 0.2},
        {"learned": True},
        {"transform": "mlp"},
        {"norm": True},
        {"identity": True},
        {"identity": True, "learned": True},
    ],
)
def test_the_layer_is_the_equations(variant: dict[str, Any], masked: bool) -> None:
    module, x, bias = layer(**variant)
    both = spelled_out(module, x, bias if masked else None)
    if variant.get("norm"):
        both = {name: F.instance_norm(heads.transpose(2, 3).flatten(1, 2)) for name, heads in both.items()}
        both = {name: heads.unflatten(1, (2, 5)).transpose(2, 3) for name, heads in both.items()}
    share = torch.sigmoid(module.both.logit) if variant.get("learned") else variant.get("weight", 0.5)
    expected = share * both["self"] + (1 - share) * both["inverse"]
    if variant.get("identity"):
        expected = expected / share
    torch.testing.assert_close(module(x, bias=bias if masked else None), merged(module, expected))


def test_lambda_one_is_plain_attention_and_lambda_zero_is_misa() -> None:
    module, x, bias = layer(weight=1.0)
    both = spelled_out(module, x, bias)
    torch.testing.assert_close(module(x, bias=bias), merged(module, both["self"]))
    alone = BidirectionalAttention(
        12, 2, key_dim=4, value_dim=5, hyper_dim=3, variant=Variant(weight=0.0), dtype=torch.float64
    )
    assert alone.value is None
    alone.load_state_dict({name: v for name, v in module.state_dict().items() if not name.startswith("value.")})
    torch.testing.assert_close(alone(x, bias=bias), merged(module, both["inverse"]))


def test_orders_send_one_branch_through_the_other() -> None:
    for order in ("inverse_then_self", "self_then_inverse"):
        torch.manual_seed(0)
        module = BidirectionalAttention(12, 2, variant=Variant(order=order), dtype=torch.float64)
        x = torch.randn(2, 5, 12, dtype=torch.float64)
        first, second = order.split("_then_")
        between = spelled_out(module, x, None)[first].transpose(1, 2).flatten(2)
        torch.testing.assert_close(module(x), merged(module, spelled_out(module, between, None)[second]))


def test_separate_has_scores_and_a_projection_of_its_own() -> None:
    module, x, bias = layer(separate=True, weight=0.25)
    own = module.both.own
    attended = merged(module, spelled_out(module, x, bias)["self"])
    q, k = own.scored(x, x)
    q_hat, v_hat = module.both.inverse.queries(x), module.both.inverse.values(x)
    inverse = reference.inverse_attention(q, k, q_hat, v_hat, module.both.inverse.transform.weight, bias=bias)
    expected = 0.25 * attended + 0.75 * own.proj(inverse.transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(x, bias=bias), expected)


def test_batch_norms_behind_the_maps_fold_into_them() -> None:
    torch.manual_seed(0)
    kind = graft_types()["bisa"]
    geometry = AttentionGeometry(dim=16, tokens=9, heads=2, key_width=4, value_width=8, projection=LEVIT, init="torch")
    made = kind.build(geometry, "mix", kind.Options(separate=True)).double()
    x = torch.randn(4, 9, 16, dtype=torch.float64)
    for _ in range(3):  # statistics of its own
        made.inverse.queries(x), made.inverse.values(3 * x + 1), made.own.scored(x, 2 - x), made.own.merge(x)
    made.eval()
    calls = (made.inverse.queries, made.inverse.values, made.own.merge, lambda x: torch.cat(made.own.scored(x, x)))
    expected = [call(x) for call in calls]
    assert made.fold(before=None, after=None) is made
    for call, value in zip(calls, expected, strict=True):
        torch.testing.assert_close(call(x), value)
    plain = AttentionGeometry(
        dim=16, tokens=9, heads=2, key_width=4, value_width=8, projection=Projection(activation="hard_swish")
    )
    rebuilt = kind.build(plain, "mix", kind.Options(separate=True))
    assert {k: v.shape for k, v in rebuilt.state_dict().items()} == {k: v.shape for k, v in made.state_dict().items()}
    assert isinstance(rebuilt.fold(before=None, after=None), str)


def tiny_levit() -> nn.Module:
    return timm.create_model(
        "levit_128s",
        num_classes=5,
        drop_path_rate=0.0,
        img_size=48,
        stem_type="s16",
        embed_dim=(16, 24),
        key_dim=4,
        depth=(1, 1),
        num_heads=(2, 3),
    )


def test_a_folded_levit_is_one_that_was_folded_before_it_was_grafted() -> None:
    torch.manual_seed(0)
    models = [tiny_levit() for _ in range(2)]
    images, spec = torch.randn(4, 3, 48, 48), "bisa(separate=true)@stages.*.blocks"
    attngraft.graft(models[0], spec)
    for _ in range(3):
        models[0].train()(images)
    expected = models[0].eval()(images)
    what = {entry.graft: entry.folded for entry in fold(models[0]).entries}
    assert what["bisa"] == "its batch norms stand in its linear maps"
    fold(models[1].eval())
    attngraft.graft(models[1], spec)
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        torch.testing.assert_close(model.eval()(images), expected, atol=1e-5, rtol=1e-4)
    with pytest.raises(HostError, match="folded"):
        attngraft.ungraft(models[0])


def test_one_token() -> None:
    module, x, _ = layer(tokens=1)
    hats = module.both.inverse
    both = {
        "self": module.value(x).unflatten(-1, (2, -1)).transpose(1, 2),
        "inverse": reference.hyper_transform(hats.values(x), hats.queries(x), hats.transform.weight),
    }
    torch.testing.assert_close(module(x), merged(module, 0.5 * both["self"] + 0.5 * both["inverse"]))
    module, x, _ = layer(tokens=1, norm=True)
    torch.testing.assert_close(module(x), module.proj.linear.bias.expand_as(x))


@pytest.mark.parametrize("options", [{"separate": True}, {"norm": True}, {}])
@pytest.mark.parametrize("tokens", [1, 6])
def test_parameters_said_to_be_inert_are_and_no_others(tokens: int, options: dict[str, Any]) -> None:
    kind = graft_types()["bisa"]
    geometry = AttentionGeometry(dim=12, tokens=tokens, heads=2, key_width=4, value_width=5)
    inert = kind.inert_parameters(geometry, "mix", kind.Options(**options))
    module, x, _ = layer(tokens=tokens, **options)
    module(x).square().sum().backward()
    still = {name for name, p in module.both.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-12}
    assert still == inert


def test_padding_masked_on_both_sides_changes_nothing() -> None:
    module, x, _ = layer(tokens=6)
    there = torch.tensor([True] * 4 + [False] * 2)
    visible = (there.unsqueeze(0) & there.unsqueeze(1)).view(1, 1, 6, 6)
    found = module(x, bias=visible)
    torch.testing.assert_close(found[:, :4], module(x[:, :4]))
    assert torch.isfinite(found).all()
    assert not torch.allclose(module(x, bias=there.view(1, 1, 1, 6).expand(1, 1, 6, 6))[:, :4], found[:, :4])


def test_a_bias_is_shared_by_entries_of_the_batch_in_turn() -> None:
    module, x, _ = layer()
    x = torch.cat([x, x])[:4]
    bias = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(module(x, bias=bias), module(x, bias=bias.repeat(2, 1, 1, 1)))
    with pytest.raises(UsageError, match="bias is"):
        module(x, bias=bias[0])


@pytest.mark.parametrize("variant", [{}, {"norm": True}, {"transform": "mlp"}, {"separate": True}, {"weight": 0.0}])
def test_a_boolean_bias_is_shared_by_entries_of_the_batch_in_turn(variant: dict[str, Any]) -> None:
    module, x, _ = layer(**variant)
    x, visible = torch.cat([x, x])[:4], torch.rand(2, 1, 6, 6) > 0.3
    expected = module(x, bias=visible.repeat(2, 1, 1, 1))
    torch.testing.assert_close(module(x, bias=visible), expected)
    assert not torch.allclose(module(x, bias=visible.repeat_interleave(2, 0)), expected)
    module.attn_drop.p = 1e-12  # the explicit path, with nothing dropped
    torch.testing.assert_close(module.train()(x, bias=visible), expected)
    with pytest.raises(UsageError, match="bias is .* divisor of B = 4"):
        module(x, bias=visible[[0, 1, 1]])


def test_a_bias_of_other_tokens_is_refused_before_anything_is_computed() -> None:
    module, x, bias = layer(norm=True)
    for wrong in (bias[..., :5], bias[:, :, :5], bias.repeat(1, 2, 1, 1), bias[0]):
        with pytest.raises(UsageError, match="bias is"):
            module(x, bias=wrong)


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("sizes", "projection", "variant", "expected"),
    [
        ((96, 3, 32, 32), Projection(), {}, 51_392),  # Swin-T, stage 1
        ((96, 3, 32, 32), Projection(), {"weight": 0.0}, 51_392),
        ((96, 3, 32, 32), Projection(), {"learned": True, "norm": True}, 51_393),
        ((96, 3, 32, 32), Projection(), {"transform": "mlp"}, 51_345),
        ((128, 4, 16, 32), LEVIT, {}, 66_048),  # LeViT-128S, stage 1
        ((128, 4, 16, 32), LEVIT, {"separate": True}, 98_304 + 1_024),
    ],
)
def test_added_parameters(sizes: tuple[int, ...], projection: Projection, variant: dict, expected: int) -> None:
    dim, heads, key_dim, value_dim = sizes
    made = BidirectionalMix(
        dim,
        heads,
        key_dim=key_dim,
        value_dim=value_dim,
        variant=Variant(**variant),
        projection=projection,
        device="meta",
    )
    assert parameters(made) == expected


def test_the_mlp_is_no_larger_than_the_hypernetwork() -> None:
    assert mlp_hidden(32, 32) == 337
    for s, dv in ((8, 8), (16, 12), (32, 32), (5, 7)):
        sizes = [m * (2 * s + 1) + (m + 1) * dv for m in (mlp_hidden(s, dv), mlp_hidden(s, dv) + 1)]
        assert sizes[0] <= s * s * dv < sizes[1]
    assert mlp_hidden(1, 1) == 1


@pytest.mark.parametrize(
    ("classes", "plain", "grafted"), [(100, 27_596_254, 27_699_038), (1000, 28_288_354, 28_391_138)]
)
def test_swin_t_as_the_paper_counts_it(classes: int, plain: int, grafted: int) -> None:
    with torch.device("meta"):
        model = timm.create_model("swin_tiny_patch4_window7_224", num_classes=classes)
    assert parameters(model) == plain
    report = attngraft.graft(model, "bisa@layers.0")
    assert parameters(model) == grafted
    assert len(report.entries) == 2


def test_initial_values() -> None:
    torch.manual_seed(0)
    made = BidirectionalMix(96, 3, key_dim=32, value_dim=32)
    assert made.inverse.transform.weight.std().item() == pytest.approx(1 / 32, rel=0.02)
    assert made.inverse.query.linear.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert not made.inverse.value.linear.bias.any()
    made = BidirectionalMix(96, 3, key_dim=32, value_dim=32, projection=LEVIT, init="torch")
    assert made.inverse.query.linear.weight.abs().max() <= 96**-0.5
    assert made.inverse.query.norm.weight.eq(1).all()
    learned = BidirectionalMix(96, 3, key_dim=32, value_dim=32, variant=Variant(weight=0.2, learned=True))
    torch.testing.assert_close(learned.logit.sigmoid(), torch.tensor([0.2]))


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ({"weight": 1.5}, "weight is lambda"),
        ({"weight": 0.0, "learned": True}, "never is 0"),
        ({"identity": True, "norm": True}, "exclude each other"),
        ({"identity": True, "weight": 0.0}, "weight=0 has none"),
        ({"separate": True, "weight": 0.0}, "leave nothing of the host's attention"),
        ({"order": "inverse_then_self", "identity": True}, "identity .* nothing is mixed"),
        ({"order": "self_then_inverse", "weight": 0.3}, "weight .* nothing is mixed"),
        ({"order": "self_then_inverse", "norm": True}, "norm .* nothing is mixed"),
    ],
)
def test_choices_that_do_not_go_together(variant: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Variant(**variant)


def test_widths_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="5 heads do not divide the width 12"):
        BidirectionalAttention(12, 5)
    with pytest.raises(UsageError, match="do not make the width 12"):
        BidirectionalAttention(12, 2, value_dim=5, variant=Variant(order="self_then_inverse"))


# -- grafts ------------------------------------------------------------------------------------------------------------


def tiny_vit(**changes: Any) -> nn.Module:
    torch.manual_seed(1)
    return timm.create_model("vit_tiny_patch16_224", **(TINY | changes)).eval()


IMAGES = torch.linspace(-1, 1, 2 * 3 * 16 * 16).sin().reshape(2, 3, 16, 16)


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
    assert "unchanged to rounding" in " ".join(report.summary())
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
    torch.optim.SGD(grafts.values(), lr=0.1).step()  # with a zero transform instead, 1e-3 changes more than there was
    moved = (model(images) - expected[True]).norm() / expected[True].norm()
    assert 1e-3 < moved < 0.2


def test_notes_say_what_batch_norm_makes_of_a_variant() -> None:
    kind = graft_types()["bisa"]
    plain = AttentionGeometry(dim=16, tokens=9, heads=2, key_width=4, value_width=8)
    normed = AttentionGeometry(dim=16, tokens=9, heads=2, key_width=4, value_width=8, projection=LEVIT)

    def notes(geometry: AttentionGeometry, **options: Any) -> str:
        return " ".join(kind.notes(geometry, "mix", kind.Options(**options)))

    assert "running statistics blend both" in notes(normed, order="self_then_inverse")
    assert "running statistics" not in notes(plain, order="self_then_inverse") + notes(normed)
    assert "with a zero hypernetwork" in notes(plain, identity=True, separate=True)
    assert "zero norm behind the branch's own projection" in notes(normed, identity=True, separate=True)


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
        ({"padded": True}, "hold padding"),
        ({"cross": True}, "choose sites of self-attention"),
        ({"query_tokens": 4}, "subsamples"),
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
    with pytest.raises(HostError, match="a graft at stage mix already"):
        attngraft.graft(tiny_vit(), "bisa + misa")
    report = attngraft.plan(tiny_vit(), "misa@first:1")
    assert report.entries[0].unused.rows == (("qkv.weight", 48, 72), ("qkv.bias", 48, 72))
    assert any("whole set of tokens" in line for line in report.summary())


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
    with attngraft.record(model, where="blocks.0") as recording:
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
    """Each branch is linear in its map: from what it puts out for unit values the map that it used is read off."""
    torch.manual_seed(0)
    tokens, heads = 16, 2
    module = BidirectionalAttention(
        32, heads, hyper_dim=tokens, mlp_hidden=tokens, variant=Variant(transform=transform), attn_drop=0.5
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
    values = torch.cat([unit, unit], 1)  # of both heads
    module.value.forward = lambda x: values.expand(len(x), -1, -1)  # type: ignore[method-assign]
    offered: dict[str, list[Tensor]] = {"self": [], "inverse": []}
    for _ in range(2):
        heard: dict[str, Tensor] = {}
        module.both.listener = heard.__setitem__
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
    with attngraft.record(model, where="blocks.0") as recording:
        assert not torch.allclose(model(IMAGES), expected)
    branches = recording["blocks.0.attn"]
    torch.manual_seed(3)
    attngraft.graft(other, "bisa@first:1")
    with attngraft.record(other, where="blocks.0") as recording:
        other(IMAGES)
    torch.testing.assert_close(branches["bisa.inverse"], recording["blocks.0.attn"]["bisa.inverse"])
    assert not torch.allclose(branches["bisa.self"], recording["blocks.0.attn"]["bisa.self"])


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
