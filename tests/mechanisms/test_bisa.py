"""Bi-directional attention as a layer."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attngraft
from attngraft.attention import AttentionGeometry
from attngraft.attention.geometry import Projection
from attngraft.errors import UsageError
from attngraft.mechanisms.bisa import BidirectionalAttention, MixVariant, reference
from attngraft.mechanisms.bisa.branch import mlp_hidden
from attngraft.mechanisms.bisa.mix import BidirectionalMix
from attngraft.mechanisms.registry import graft_types
from attngraft.tensors import meta_device

LEVIT = Projection(bias=False, norm="batch", activation="hard_swish")


def layer(*, tokens: int = 6, **variant: Any) -> tuple[BidirectionalAttention, Tensor, Tensor]:
    """Return a float64 layer with unequal widths and random weights, its input, and a bias with masked pairs."""
    torch.manual_seed(0)
    module = BidirectionalAttention(
        12, 2, key_dim=4, value_dim=5, hyper_dim=3, variant=MixVariant(**variant), dtype=torch.float64
    )
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    bias = torch.randn(1, 2, tokens, tokens, dtype=torch.float64)
    bias[..., 0, 2:4] = float("-inf")
    return module, torch.randn(3, tokens, 12, dtype=torch.float64), bias


def spelled_out(module: BidirectionalAttention, x: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
    """Compute SA and MISA (B, H, N, dv) by the equations."""

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
        12, 2, key_dim=4, value_dim=5, hyper_dim=3, variant=MixVariant(weight=0.0), dtype=torch.float64
    )
    assert alone.value is None
    alone.load_state_dict({name: v for name, v in module.state_dict().items() if not name.startswith("value.")})
    torch.testing.assert_close(alone(x, bias=bias), merged(module, both["inverse"]))


def test_orders_send_one_branch_through_the_other() -> None:
    for order in ("inverse_then_self", "self_then_inverse"):
        torch.manual_seed(0)
        module = BidirectionalAttention(12, 2, variant=MixVariant(order=order), dtype=torch.float64)
        x = torch.randn(2, 5, 12, dtype=torch.float64)
        first, second = order.split("_then_")
        between = spelled_out(module, x, None)[first].transpose(1, 2).flatten(2)
        torch.testing.assert_close(module(x), merged(module, spelled_out(module, between, None)[second]))


def test_separate_has_scores_and_a_projection_of_its_own() -> None:
    module, x, bias = layer(separate=True, weight=0.25)
    own = module.both.own
    attended = merged(module, spelled_out(module, x, bias)["self"])
    q, k = own.queries_and_keys(x, x)
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
    for _ in range(3):  # so that running statistics differ from their initial values
        made.inverse.queries(x), made.inverse.values(3 * x + 1), made.own.queries_and_keys(x, 2 - x), made.own.merge(x)
    made.eval()
    calls = (
        made.inverse.queries,
        made.inverse.values,
        made.own.merge,
        lambda x: torch.cat(made.own.queries_and_keys(x, x)),
    )
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
    with pytest.raises(UsageError, match="bias must be"):
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
    with pytest.raises(UsageError, match="bias must be .* divisor of B = 4"):
        module(x, bias=visible[[0, 1, 1]])


def test_a_bias_of_other_tokens_is_refused_before_anything_is_computed() -> None:
    module, x, bias = layer(norm=True)
    for wrong in (bias[..., :5], bias[:, :, :5], bias.repeat(1, 2, 1, 1), bias[0]):
        with pytest.raises(UsageError, match="bias must be"):
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
        variant=MixVariant(**variant),
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
    with meta_device():
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
    learned = BidirectionalMix(96, 3, key_dim=32, value_dim=32, variant=MixVariant(weight=0.2, learned=True))
    torch.testing.assert_close(learned.logit.sigmoid(), torch.tensor([0.2]))


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ({"weight": 1.5}, "weight \\(lambda\\)"),
        ({"weight": 0.0, "learned": True}, "cannot start at weight=0"),
        ({"identity": True, "norm": True}, "mutually exclusive"),
        ({"identity": True, "weight": 0.0}, "weight=0 omits"),
        ({"separate": True, "weight": 0.0}, "leaves nothing of the host's attention"),
        ({"order": "inverse_then_self", "identity": True}, "identity .* does not mix them"),
        ({"order": "self_then_inverse", "weight": 0.3}, "weight .* does not mix them"),
        ({"order": "self_then_inverse", "norm": True}, "norm .* does not mix them"),
        (
            {"order": "inverse-then-self"},
            "order must be one of parallel, inverse_then_self, .* not 'inverse-then-self'",
        ),
        ({"transform": "Hyper"}, "transform must be one of hyper, mlp, not 'Hyper'"),
    ],
)
def test_choices_that_do_not_go_together(variant: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        MixVariant(**variant)


def test_widths_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="the width 12 is not divisible by 5 heads"):
        BidirectionalAttention(12, 5)
    with pytest.raises(UsageError, match="do not add up to the width 12"):
        BidirectionalAttention(12, 2, value_dim=5, variant=MixVariant(order="self_then_inverse"))
