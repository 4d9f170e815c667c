"""Contract of BiXT and its baselines, and the maps that their cross-attention offers."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
import torch
from torch import Tensor, nn

import attngraft
import attngraft.models  # registers the models
from attngraft.hosts import find_host
from attngraft.mechanisms.bixt.layer import split_parts
from tests.contract.stirring import stir
from tests.contract.test_compile_export import check_compile, check_export, grafted
from tests.contract.tester import GRAFTS, ONE_PER_STAGE, HostContract, assert_same_host, snapshot
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS
from tests.slow import product_but

#: 8 tokens on 2 x 4, 3 latents
TINY: dict[str, Any] = {"img_size": (16, 32), "patch_size": 8, "stride": 8, "num_latents": 3, "embed_dim": 24}
TINY |= {"num_heads": 3, "num_classes": 5}
CROSS = "cross_attention_latents_token"
MAPS = ("latents_to_tokens", "tokens_to_latents")
SELF = {"bisa": "blocks.*.self_attention_latents", "misa": "blocks.*.self_attention_latents"}


class TestBixt(HostContract):
    """One bi-directional and one one-sided layer; all images share the initial latents."""

    layers = 4
    mlps = 5
    refused: ClassVar = (
        NO_WINDOWS | NO_CLASS_TOKEN | {"ghost": "are not on a grid|queries and keys are different tokens"}
    )
    where: ClassVar = SELF | {"uniform_heads(value=cb)": "blocks.*.self_attention_latents"}
    beside: ClassVar = "toy_other(start=0.5) + toy_other(start=0.25, stage='mlp.end')@first:1"
    name: ClassVar = "bixt_ti_l64_p16"
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads"]
    extras: ClassVar[dict[str, Any]] = {"depth": 2}

    def make(self) -> nn.Module:
        model: nn.Module = timm.create_model(self.name, **TINY, **self.extras)
        # a zero head would hide everything, and shared latents start alike
        return stir(model, lambda *_: True)


@pytest.mark.product
class TestBixtWithEveryGraft(TestBixt):
    """The bi-directional model with every graft."""

    specs: ClassVar = GRAFTS


@pytest.mark.slow
class TestBixtOneSidedFirst(TestBixt):
    """A single one-sided layer with shared latents, LayerScale, other widths, and no biases in the reference projections."""

    layers = 2
    mlps = 2
    extras: ClassVar = {"depth": 1, "token_dim": 16, "attention_dim": 12, "init_values": 0.1, "rv_bias": False}


@pytest.mark.product
class TestBixtDynamicPositions(TestBixt):
    """Dynamic positions, a convolutional tokenizer, local patch interaction, another number of heads for latents."""

    specs: ClassVar = ONE_PER_STAGE[:2]
    extras: ClassVar = {"depth": 2, "positions": "dynamic", "tokenizer": "conv", "local": True, "sa_heads": 2}


@pytest.mark.slow
class TestSequential(TestBixt):
    """The sequential baseline, where tokens attend to latents too."""

    layers = 5
    name: ClassVar = "sequential_d11"
    extras: ClassVar = {"depth": 2}


@pytest.mark.slow
class TestIterative(TestBixt):
    """The iterative baseline, whose second cross-attention runs twice."""

    layers = 2 + 3
    where: ClassVar = dict.fromkeys(SELF, "blocks")
    name: ClassVar = "iterative_sa5_d8_k2"
    extras: ClassVar = {"depth": 3, "self_layers": 1}


def made(contract: type[HostContract]) -> tuple[Any, Tensor]:
    torch.manual_seed(1)
    return contract().make().eval(), torch.randn(2, 3, 16, 32)


@torch.no_grad()
def maps_of(module: Any, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Compute both maps of a bi-directional cross-attention by the equation."""
    r_latents, _ = split_parts(module.rv_latents(latents), 2, module.heads)
    r_tokens, _ = split_parts(module.rv_patches(tokens), 2, module.heads)
    scores = r_latents @ r_tokens.transpose(-2, -1) / r_latents.shape[-1] ** 0.5
    return scores.softmax(dim=-1), scores.transpose(-2, -1).softmax(dim=-1)


@pytest.mark.parametrize("graft", [None, f"vertical + cb_s(init=1) + bisa@{SELF['bisa']}"])
@torch.no_grad()
def test_both_maps_are_recorded_per_layer_and_head(graft: str | None) -> None:
    model, images = made(TestBixt)
    if graft is not None:
        attngraft.graft(model, graft)
    entered: list[tuple[Tensor, Tensor]] = []
    module = model.blocks[0].cross_attention_latents_token.attn
    hook = module.register_forward_pre_hook(lambda _, arguments: entered.append(arguments))
    before, expected = snapshot(model), model(images)
    with attngraft.record(model, MAPS) as recording:
        found = model(images)
    hook.remove()
    assert torch.equal(found, expected)
    assert list(recording) == [f"blocks.{layer}.{CROSS}.attn" for layer in (0, 1)]
    both, one = (recording[path] for path in recording)
    assert {name: tuple(each.shape) for name, each in both.items()} == {MAPS[0]: (2, 3, 3, 8), MAPS[1]: (2, 3, 8, 3)}
    assert {name: tuple(each.shape) for name, each in one.items()} == {MAPS[0]: (2, 3, 3, 8)}  # no map for tokens there
    for each in (*both.values(), *one.values()):
        torch.testing.assert_close(each.sum(-1), torch.ones_like(each.sum(-1)))
    latents, tokens = entered[-1]
    assert latents.shape == (1, 3, 24)  # shared by the images, whose maps still differ
    for name, reference in zip(MAPS, maps_of(module, latents, tokens), strict=True):
        torch.testing.assert_close(both[name], reference)
        assert not torch.allclose(both[name][0], both[name][1])
    assert_same_host(model, before) if graft is None else None
    assert module.recorder is None


@torch.no_grad()
def test_the_maps_act_as_they_are_recorded() -> None:
    """The layer returns the projected averages of the values under the recorded maps."""
    model, images = made(TestBixt)
    module = model.blocks[0].cross_attention_latents_token.attn
    seen: list[Any] = []
    hook = module.register_forward_hook(lambda _, arguments, output: seen.extend((arguments, output)))
    with attngraft.record(model, MAPS, sites="blocks.0") as recording:
        model(images)
    hook.remove()
    (latents, tokens), (for_latents, for_tokens) = seen
    _, v_latents = split_parts(module.rv_latents(latents), 2, module.heads)
    _, v_tokens = split_parts(module.rv_patches(tokens), 2, module.heads)
    recorded = recording[f"blocks.0.{CROSS}.attn"]
    read = (recorded[MAPS[0]] @ v_tokens).transpose(1, 2).flatten(2)
    torch.testing.assert_close(module.proj_lat(read), for_latents)
    read = (recorded[MAPS[1]] @ v_latents).transpose(1, 2).flatten(2)
    torch.testing.assert_close(module.proj_pat(read), for_tokens)


@torch.no_grad()
def test_the_baselines_offer_their_maps_under_the_same_names() -> None:
    model, images = made(TestSequential)
    with attngraft.record(model, MAPS) as recording:
        model(images)
    shapes = {f"{path} {name}": tuple(each.shape) for path in recording for name, each in recording[path].items()}
    assert shapes == {
        f"blocks.0.{CROSS}.attn {MAPS[0]}": (2, 3, 3, 8),
        f"blocks.0.{CROSS}.attn_pat {MAPS[1]}": (2, 3, 8, 3),
        f"blocks.1.{CROSS}.attn {MAPS[0]}": (2, 3, 3, 8),
    }
    model, images = made(TestIterative)
    with attngraft.record(model) as recording:
        model(images)
    assert [len(recording.calls(f"cross_attention.{index}.attn", MAPS[0])) for index in (0, 1)] == [1, 2]
    place = recording["cross_attention.1.attn"]
    assert torch.equal(place[MAPS[0]], place["weights"])


def test_gradients_flow_through_recorded_maps() -> None:
    """Gradients of the maps with respect to their inputs."""
    model, images = made(TestBixt)
    with attngraft.record(model, MAPS, sites="blocks.0", detach=False) as recording:
        model(images)
    entropy = torch.special.entr(recording[f"blocks.0.{CROSS}.attn"][MAPS[1]]).sum()
    (gradient,) = torch.autograd.grad(entropy, model.latents)
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("spec", [f"horizontal@blocks.0.{CROSS}.attn", f"cb(at=attention)@blocks.0.{CROSS}.attn"])
def test_the_attention_in_both_directions_takes_no_graft(spec: str) -> None:
    model, _ = made(TestBixt)
    with pytest.raises(
        attngraft.GraftSpecError,
        match=r"one similarity serves both directions.*maps can be recorded.*self_attention_latents",
    ):
        attngraft.graft(model, spec)


def test_a_graft_everywhere_passes_it_over_and_says_so() -> None:
    with torch.device("meta"):
        model = timm.create_model("bixt_ti_l64_p16")
    report = attngraft.plan(model, "horizontal")
    paths = [entry.site for entry in report.entries]
    assert paths == [*(f"blocks.{index}.self_attention_latents.attn" for index in range(11)), *paths[11:]]
    assert paths[11:] == [f"blocks.11.{CROSS}.attn", "blocks.11.self_attention_latents.attn"]
    assert report.warnings == (
        "horizontal skips 11 of 24 attention sites: one similarity serves both directions here, so neither is a branch "
        "that a graft could change separately.",
    )


def test_grafts_that_need_keys_of_the_queries_name_where_they_fit() -> None:
    model, _ = made(TestBixt)
    with pytest.raises(
        attngraft.HostError, match=r"keys and queries come from different tokens.*@blocks\.\*?.*self_attention_latents"
    ):
        attngraft.graft(model, "bisa")


def test_a_shared_cross_attention_counts_as_often_as_it_runs() -> None:
    model, _ = made(TestIterative)
    sites = {site.path: site for site in find_host(model).sites}
    assert list(sites)[:4] == [
        "cross_attention.0.attn",
        "cross_attention.0.mlp_lat",
        "blocks.0.0.attn",
        "blocks.0.0.mlp",
    ]
    once, twice = attngraft.plan(model, "vertical@cross_attention").entries
    assert twice.macs == 2 * (once.macs or 0) > 0


def test_a_feature_getter_takes_grafts() -> None:
    model = timm.create_model("bixt_ti_l64_p16", features_only=True, out_indices=(0,), depth=2, **TINY).eval()
    images = torch.randn(2, 3, 16, 32)
    before = model(images)
    attngraft.graft(model, f"cb@blocks.0.{CROSS}.mlp_pat")
    (after,) = model(images)
    assert after.shape == (2, 24, 2, 4)
    assert not torch.equal(after, before[0])


@pytest.mark.parametrize("contract", product_but([TestBixt, TestSequential, TestIterative], [TestBixt]))
def test_it_exports(contract: type[HostContract]) -> None:
    check_export(grafted(contract, f"bisa@{contract.where['bisa']} + vertical + cb(at=both)"))


@pytest.mark.product
def test_it_compiles() -> None:
    check_compile(grafted(TestBixt, "horizontal + cb_s(init=0.5)"))
