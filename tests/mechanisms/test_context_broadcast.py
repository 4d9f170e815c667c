"""Context broadcasting's layers, grafts and measures."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from timm.layers import Attention, Mlp
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import attngraft
from attngraft.attention import CLASS, AttentionGeometry, MlpGeometry
from attngraft.errors import UsageError
from attngraft.mechanisms import context_broadcast as package
from attngraft.mechanisms.registry import graft_types
from attngraft.timing.macs import activation_bytes
from tests.conformance.hosts import tiny_vit

MLP = MlpGeometry(dim=32, hidden=128, tokens=17, prefix=CLASS, grid=(4, 4))
MAP = MlpGeometry(dim=32, hidden=128, tokens=16, grid=(4, 4))


def built(name: str, stage: str, geometry: MlpGeometry | AttentionGeometry = MLP, **options: object) -> nn.Module:
    graft_type = graft_types()[name]
    return graft_type.build(geometry, stage, graft_type.Options(**options))


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# -- grafts ------------------------------------------------------------------------------------------------------------


def test_where_the_forms_stand() -> None:
    cb = graft_types()["cb"]
    assert cb.hook_points(cb.Options()) == ("mlp.end",)
    assert cb.hook_points(cb.Options(position="mid")) == ("mlp.mid",)
    assert cb.hook_points(cb.Options(at="attention")) == ("attn.end",)
    assert cb.hook_points(cb.Options(at="both", position="front", scope="window")) == ("attn.window", "mlp.front")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": "attention", "position": "mid"}, "position=mid is in the MLP"),
        ({"scope": "window"}, "scope=window"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        graft_types()["cb"].Options(**options)


@pytest.mark.parametrize("name", ["cb", "cb_gate", "cb_hybrid"])
def test_no_parameters(name: str) -> None:
    assert parameters(built(name, "mlp.end")) == 0


def test_scale_has_the_width_of_its_place() -> None:
    assert parameters(built("cb_s", "mlp.end")) == 32
    assert parameters(built("cb_s", "mlp.mid")) == 128


def test_squeeze_excitation_counts() -> None:
    """ViT-S: 221,184 in 12 blocks, 226,080 with biases."""
    site = MlpGeometry(dim=384, hidden=1536)
    assert 12 * parameters(built("se", "mlp.end", site)) == 221_184
    assert 12 * parameters(built("se", "mlp.end", site, bias=True)) == 226_080


@pytest.mark.parametrize(("name", "options"), [("cb", {"context": "class"}), ("cb_gate", {}), ("cb_hybrid", {})])
def test_a_class_token_is_needed(name: str, options: dict[str, str]) -> None:
    graft_type = graft_types()[name]
    assert "no class token" in graft_type.refusal(MAP, "mlp.end", graft_type.Options(**options))
    assert graft_type.refusal(MLP, "mlp.end", graft_type.Options(**options)) is None


@pytest.mark.parametrize("name", ["cb", "cb_s", "cb_gate", "cb_hybrid", "se"])
@pytest.mark.parametrize("kind", ["causal", "padded"])
def test_causal_and_padded_hosts_are_refused(name: str, kind: str) -> None:
    site = MlpGeometry(dim=32, hidden=128, prefix=CLASS, **{kind: True})
    graft_type = graft_types()[name]
    assert "use horizontal or vertical, which do not mix tokens" in graft_type.refusal(
        site, "mlp.end", graft_type.Options()
    )


def test_a_class_token_alone_is_its_own_context() -> None:
    """As in CaiT's last blocks."""
    alone = MlpGeometry(dim=32, hidden=128, tokens=1, prefix=CLASS)
    asking = AttentionGeometry(dim=32, heads=2, key_width=16, value_width=16, tokens=17, query_tokens=1, prefix=CLASS)
    for name in ("cb", "cb_s"):
        graft_type = graft_types()[name]
        for geometry, stage in ((alone, "mlp.end"), (asking, "attn.end")):
            assert graft_type.refusal(geometry, stage, graft_type.Options()) is None
            assert "a single token" in graft_type.notes(geometry, stage, graft_type.Options())[0]
            refused = graft_type.refusal(geometry, stage, graft_type.Options(tokens="patches"))
            assert refused is not None and "only prefix tokens" in refused
        assert not any("single token" in note for note in graft_type.notes(MLP, "mlp.end", graft_type.Options()))


def test_tokens_option_leaves_the_prefix_alone() -> None:
    x = torch.randn(2, 17, 32)
    assert torch.equal(built("cb", "mlp.end", tokens="patches")(x)[:, 0], x[:, 0])
    assert not torch.equal(built("cb", "mlp.end")(x)[:, 0], x[:, 0])


def test_identity_at_start() -> None:
    cb_s = graft_types()["cb_s"]
    assert cb_s.starts_as_identity(cb_s.Options())
    assert not cb_s.starts_as_identity(cb_s.Options(init=1.0))
    assert not graft_types()["cb"].starts_as_identity(graft_types()["cb"].Options())
    x = torch.randn(2, 17, 32)
    assert torch.equal(built("cb_s", "mlp.end")(x), x)
    torch.testing.assert_close(built("cb_s", "mlp.end", init=1.0)(x), 2 * built("cb", "mlp.end")(x))


def test_uniform_heads_name_their_rows_and_the_tables_count() -> None:
    model = VisionTransformer(img_size=16, patch_size=8, embed_dim=32, depth=1, num_heads=4, num_classes=3)
    report = attngraft.plan(model, "uniform_heads(count=2)")
    (entry,) = report.entries
    assert set(entry.unused.rows) == {
        ("qkv.weight", 16, 32), ("qkv.bias", 16, 32), ("qkv.weight", 48, 64), ("qkv.bias", 48, 64),
    }  # fmt: skip
    assert not entry.unused.parameters
    assert f"{2 * 16 * 33:,} parameters fewer" in entry.notes[0]
    with pytest.raises(attngraft.HostError, match="it has 4 heads; use count=4 or less"):
        attngraft.graft(model, "uniform_heads(count=5)")


def test_all_heads_uniform_leave_qk_norms_unused() -> None:
    model = VisionTransformer(img_size=16, patch_size=8, embed_dim=32, depth=1, num_heads=4, qk_norm=True)
    attngraft.graft(model, "uniform_heads(count=4)")
    assert not any(p.requires_grad for name, p in model.named_parameters() if "q_norm" in name or "k_norm" in name)


def test_mid_and_end_are_the_same_function_for_linear_forms() -> None:
    """fc2 is affine, so it commutes with averaging and with the class context, but not with maxima or gates."""
    torch.manual_seed(1)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    for same, name, options in (
        (True, "cb", ""),
        (True, "cb", ", context=class"),
        (False, "cb", ", context=max"),
        (False, "cb_gate", ""),
    ):
        mlps = {}
        for position in ("mid", "end"):
            host = tiny_vit(8, 32, depth=1, num_heads=1).double()
            attngraft.graft(host, f"{name}(position={position}{options})")
            mlps[position] = host.blocks[0].mlp
        mlps["mid"].load_state_dict(mlps["end"].state_dict())
        assert torch.allclose(mlps["mid"](x), mlps["end"](x), atol=1e-12) == same, (name, options)


def test_halving_folds_into_fc2() -> None:
    mlp = Mlp(8, 32)
    x = torch.randn(2, 9, 8)
    expected = package.ContextBroadcast()(mlp(x))
    with torch.no_grad():
        mlp.fc2.weight /= 2
        mlp.fc2.bias /= 2
    torch.testing.assert_close(mlp(x) + mlp(x).mean(1, keepdim=True), expected)


# -- attention with uniform heads -----------------------------------------------------------------------------------------


def vit(**changes: object) -> VisionTransformer:
    """Build ViT-S on the meta device, with changes."""
    with torch.device("meta"):
        return VisionTransformer(
            **{"embed_dim": 384, "num_heads": 6, "attn_layer": package.UniformHeadAttention, **changes}
        )


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"attn_layer": Attention}, 22_050_664),
        ({}, 21_459_304),  # Replc.
        ({"mlp_ratio": 1600 / 384}, 22_049_896),  # Comp.
        ({"embed_dim": 448, "num_heads": 7}, 29_164_712),  # Att.
    ],
)
def test_models_of_table_one(changes: dict[str, object], count: int) -> None:
    assert parameters(vit(**changes)) == count


def same_attention(uniform: package.UniformHeadAttention, plain: Attention) -> None:
    """Copy to `uniform` the rows of `plain` that it has."""
    width, kept = plain.attn_dim, uniform.attending * uniform.head_dim
    q, k, v = plain.qkv.weight.split(width)
    q_bias, k_bias, v_bias = plain.qkv.bias.split(width)
    with torch.no_grad():
        uniform.qkv.weight.copy_(torch.cat([q[:kept], k[:kept], v]))
        uniform.qkv.bias.copy_(torch.cat([q_bias[:kept], k_bias[:kept], v_bias]))
    uniform.proj.load_state_dict(plain.proj.state_dict())


@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "float", "per head"])
@pytest.mark.parametrize(("count", "value"), [(1, "average"), (2, "cb"), (4, "average")])
def test_the_layer_is_the_graft(mask: str, count: int, value: str) -> None:
    """The layer, built without the rows, is the same function as the graft on a host that has them."""
    host = (
        VisionTransformer(img_size=16, patch_size=8, embed_dim=32, depth=1, num_heads=4, num_classes=0).double().eval()
    )
    attngraft.graft(host, "uniform_heads", count=count, value=value)
    plain = host.blocks[0].attn
    uniform = package.UniformHeadAttention(32, 4, qkv_bias=True, uniform_heads=count, uniform_value=value).double()
    same_attention(uniform, plain)
    x, seen = torch.randn(2, 5, 32, dtype=torch.float64), torch.rand(2, 1, 5, 5) > 0.4
    seen |= torch.eye(5, dtype=torch.bool)
    masks: dict[str, dict[str, object]] = {
        "none": {},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": seen},
        "float": {"attn_mask": torch.zeros(2, 1, 5, 5, dtype=torch.float64).masked_fill(~seen, float("-inf"))},
        "per head": {"attn_mask": torch.cat([seen, seen | seen.mT, seen, seen | seen.mT], dim=1)},
    }
    torch.testing.assert_close(uniform(x, **masks[mask]), plain(x, **masks[mask]))


def test_the_layer_takes_timms_arguments() -> None:
    model = VisionTransformer(
        img_size=16, patch_size=8, embed_dim=32, depth=2, num_heads=4, num_classes=3, qk_norm=True, scale_attn_norm=True,
        norm_layer=partial(nn.LayerNorm, eps=1e-6), proj_drop_rate=0.1, attn_drop_rate=0.1,
        attn_layer=package.UniformHeadAttention,
    )  # fmt: skip
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert missing == []
    with pytest.raises(UsageError, match="uniform_heads must be between 1 and the number of heads, 4, not 5"):
        package.UniformHeadAttention(32, 4, uniform_heads=5)
    with pytest.raises(UsageError, match="not divisible by 3 heads"):
        package.UniformHeadAttention(32, 3)


# -- memory ---------------------------------------------------------------------------------------------------------------


def test_what_is_kept_for_the_backward_pass() -> None:
    """CB saves nothing and CB_S the mean token; neither saves the tokens."""
    x = torch.randn(2, 50, 32, requires_grad=True)
    assert activation_bytes(package.ContextBroadcast(), x) == 0
    assert activation_bytes(package.ScaledContextBroadcast(32), x) == 4 * 2 * 32
