"""Horizontal and vertical attention as layers and grafts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import attngraft
from attngraft.attention import AttentionGeometry
from attngraft.errors import UsageError
from attngraft.mechanisms.horizontal_vertical import HorizontalAttention, VerticalAttention
from attngraft.mechanisms.registry import graft_types
from attngraft.timing.macs import activation_bytes
from tests.conformance.attention import Attention, key_padding
from tests.listening import Heard


def site(dim: int, heads: int, **changes: object) -> AttentionGeometry:
    return AttentionGeometry(dim=dim, heads=heads, key_width=dim // heads, value_width=dim // heads, **changes)


def built(name: str, geometry: AttentionGeometry, **options: object) -> nn.Module:
    graft_type = graft_types()[name]
    return graft_type.build(geometry, graft_type.hook_points(graft_type.Options())[0], graft_type.Options(**options))


def parameters(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


SWIN_T = [(96, 3)] * 2 + [(192, 6)] * 2 + [(384, 12)] * 6 + [(768, 24)] * 2


@pytest.mark.parametrize(
    ("sites", "horizontal", "vertical"),
    [
        ([(192, 3)] * 12, 197_388, 334_080),  # ViT-Ti
        ([(384, 6)] * 12, 344_844, 1_331_712),  # ViT-S
        ([(768, 12)] * 12, 639_756, 5_317_632),  # ViT-B
        (SWIN_T, 153_996, 1_621_824),
        ([(512, 8)] * 18, 664_722, 3_548_160),  # translation
    ],
)
def test_added_parameters(sites: list[tuple[int, int]], horizontal: int, vertical: int) -> None:
    with torch.device("meta"):
        assert parameters(*(built("horizontal", site(*sizes)) for sizes in sites)) == horizontal
        assert parameters(*(built("vertical", site(*sizes)) for sizes in sites)) == vertical


def test_a_width_that_four_does_not_divide_is_rounded_down() -> None:
    assert built("vertical", site(30, 3)).context.out_features == 7
    assert built("vertical", site(2, 1)).context.out_features == 1
    assert built("vertical", site(32, 4), reduction=8).context.out_features == 4
    with pytest.raises(ValueError, match="reduction must be 1 or more"):
        graft_types()["vertical"].Options(reduction=0)


@pytest.mark.parametrize("rule", ["trunc_normal", "xavier_uniform"])
@pytest.mark.parametrize("identity", [False, True])
def test_initial_values_follow_the_host(rule: str, identity: bool) -> None:
    torch.manual_seed(0)
    geometry = site(256, 4, init=rule)
    for name, last in (("horizontal", "score"), ("vertical", "gate")):
        module = built(name, geometry, identity=identity)
        for part, linear in module.named_children():
            assert linear.bias is None or not linear.bias.any()
            if part == last and identity:
                assert not linear.weight.any()
            elif rule == "trunc_normal":
                assert 0.01 < linear.weight.std() < 0.03
            else:
                bound = (6 / (linear.in_features + linear.out_features)) ** 0.5
                assert linear.weight.abs().max() <= bound
                assert linear.weight.std() > bound / 3


def test_what_plan_is_told() -> None:
    horizontal = graft_types()["horizontal"]
    paper, identity = horizontal.Options(), horizontal.Options(identity=True)
    assert horizontal.inert_parameters(site(32, 4), "heads", paper) == {"score.bias"}
    assert len(horizontal.inert_parameters(site(32, 1), "heads", paper)) == 4
    assert "there is nothing to learn" in horizontal.notes(site(32, 1), "heads", paper)[0]
    assert "about 4" in horizontal.notes(site(32, 4), "heads", paper)[0]
    assert horizontal.notes(site(32, 4), "heads", identity) == ()
    assert (horizontal.starts_as_identity(paper), horizontal.starts_as_identity(identity)) == (False, True)


def test_identity_learns_from_the_second_step() -> None:
    torch.manual_seed(0)
    module = HorizontalAttention(12, 4, identity=True)
    heads, x, target = torch.randn(2, 3, 5, 4), torch.randn(2, 5, 12), torch.randn(2, 3, 5, 4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    moved = []
    for _ in range(2):
        optimizer.zero_grad()
        (module(heads, x) * target).sum().backward()
        moved.append({name: bool(p.grad.any()) for name, p in module.named_parameters()})
        optimizer.step()
    assert moved[0] == {"head.weight": False, "context.weight": False, "score.weight": True, "score.bias": False}
    assert moved[1] == {"head.weight": True, "context.weight": True, "score.weight": True, "score.bias": False}


def test_alpha_and_beta_are_offered_to_a_recorder() -> None:
    model = attngraft.create_model(
        "vit_tiny_patch16_224", graft="horizontal + vertical", img_size=32, embed_dim=24, depth=1, num_heads=3
    ).eval()
    heard = Heard()
    for module in model.modules():
        if isinstance(module, (HorizontalAttention, VerticalAttention)):
            module.recorder = heard
    model(torch.randn(2, 3, 32, 32))
    assert heard["alpha"].shape == (2, 5, 3)
    assert heard["beta"].shape == (2, 5, 24)


def attention(**changes: object) -> Attention:
    mechanisms = {"horizontal": HorizontalAttention(24, 8), "vertical": VerticalAttention(24)}
    return Attention(24, 3, **{**mechanisms, **changes}).double().eval()


def test_causal_attention_stays_causal() -> None:
    module, x = attention(fused=True), torch.randn(2, 7, 24, dtype=torch.float64)
    changed = x.clone()
    changed[:, 5] += 1
    before, after = module(x, causal=True), module(changed, causal=True)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_padding_is_as_good_as_leaving_it_out() -> None:
    module, x = attention(), torch.randn(1, 7, 24, dtype=torch.float64)
    padded = module(x, visible=key_padding(torch.tensor([4]), 7))
    torch.testing.assert_close(padded[:, :4], module(x[:, :4]))
    joined = module(x, visible=key_padding(torch.tensor([4]), 7), causal=True)
    torch.testing.assert_close(joined[:, :4], module(x[:, :4], causal=True))


def test_incremental_decoding_needs_the_new_query_only() -> None:
    module, x = attention(), torch.randn(2, 7, 24, dtype=torch.float64)
    torch.testing.assert_close(module(x[:, -1:], x), module(x)[:, -1:])


def test_memory_slots_are_seen_by_every_query() -> None:
    module, x = attention(memory_slots=5), torch.randn(2, 7, 24, dtype=torch.float64)
    assert parameters(module) - parameters(attention()) == 2 * 5 * 24
    visible = key_padding(torch.tensor([3, 7]), 7)
    out = module(x, visible=visible, causal=True)
    assert torch.isfinite(out).all()
    nothing = torch.zeros(1, 1, 1, 7, dtype=torch.bool)  # no visible token: only the slots remain
    assert torch.isfinite(module(x, visible=nothing)).all()
    with torch.no_grad():
        module.memory_values.add_(1)
    assert not torch.equal(module(x, visible=visible, causal=True), out)


def test_attention_refuses() -> None:
    x = torch.randn(2, 7, 24, dtype=torch.float64)
    with pytest.raises(UsageError, match="not divisible by 5 heads"):
        Attention(24, 5)
    with pytest.raises(UsageError, match="fused=False"):
        attention(fused=True)(x, x)
    with pytest.raises(UsageError, match="causal=False"):
        attention()(x, x, causal=True)


def test_no_more_is_kept_for_the_backward_pass_than_plain_pytorch_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    heads, x = torch.randn(2, 50, 4, 8).transpose(1, 2).requires_grad_(), torch.randn(2, 50, 32, requires_grad=True)
    merged = torch.randn(2, 50, 32, requires_grad=True)
    kept = {}
    for backend in ("eager", "reference"):
        monkeypatch.setenv("ATTNGRAFT_BACKEND", backend)
        kept[backend] = [
            activation_bytes(HorizontalAttention(32, 8), heads, x),
            activation_bytes(VerticalAttention(32), merged, x),
        ]
    assert kept["eager"][0] <= kept["reference"][0]
    assert kept["eager"][1] <= kept["reference"][1]


@pytest.mark.parametrize("identity", [False, True])
def test_outputs_without_gradients_are_the_same_bit_for_bit(identity: bool) -> None:
    torch.manual_seed(0)
    heads, x = torch.randn(2, 3, 5, 8), torch.randn(2, 5, 24)
    horizontal, vertical = HorizontalAttention(24, 8, identity=identity), VerticalAttention(24, identity=identity)
    for parameter in (*horizontal.parameters(), *vertical.parameters()):
        nn.init.normal_(parameter)
    for module, tokens in ((horizontal, heads), (vertical, torch.randn(2, 5, 24))):
        expected = module(tokens, x)
        with torch.no_grad():
            assert torch.equal(module(tokens, x), expected) and expected.requires_grad
