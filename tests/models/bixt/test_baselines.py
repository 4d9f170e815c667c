"""Iterative and sequential models: equations, shared modules, and timm's interface."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from timm.layers import DropPath
from timm.models import group_parameters
from torch import Tensor, nn

import attngraft
from attngraft.errors import HostError, UsageError
from attngraft.models.bixt.baselines import Iterative, Sequential
from attngraft.models.bixt.latent_model import LatentModel
from attngraft.models.bixt.registration import BASELINES
from attngraft.tensors import meta_device
from tests.listening import Heard

SMALL: dict[str, Any] = {
    "img_size": 16,
    "patch_size": 4,
    "in_chans": 2,
    "num_classes": 5,
    "num_latents": 3,
    "embed_dim": 16,
    "num_heads": 2,
}
ITERATIVE = {"depth": 3, "self_layers": 2, "cross_sets": 2}
KINDS = pytest.mark.parametrize(
    ("name", "args"),
    [
        ("iterative_sa5_d8_k1", {"depth": 3, "self_layers": 2}),
        ("iterative_sa5_d8_k2", {"depth": 3, "self_layers": 2}),
        ("sequential_d12", {"depth": 3}),
    ],
)
IMAGES = torch.randn(2, 2, 16, 16, generator=torch.Generator().manual_seed(0))


def small(name: str, *, seed: int = 0, **args: Any) -> Any:
    """A model whose head, which starts at zero, says something too."""
    torch.manual_seed(seed)
    model = timm.create_model(name, **{**SMALL, **args})
    if isinstance(model.head, nn.Linear):
        nn.init.normal_(model.head.weight)
    return model.eval()


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_all_are_registered():
    assert set(timm.list_models("iterative_*") + timm.list_models("sequential_*")) == set(BASELINES)
    assert len(BASELINES) == 14


@pytest.mark.parametrize(("layers", "depth"), [(5, 8), (1, 22)])
@pytest.mark.parametrize("sets", [1, 2])
def test_an_iterative_model_has_its_cross_attentions_once(layers: int, depth: int, sets: int):
    with meta_device():
        model = timm.create_model(f"iterative_sa{layers}_d{depth}_k{sets}")
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert numbers == 365_800 + sets * 445_248 + layers * depth * 444_864
    assert sum(value.numel() for name, value in model.state_dict().items() if "pos" not in name.split(".")) == numbers


@pytest.mark.parametrize("depth", [11, 12])
def test_a_sequential_layer_has_two_projections_more(depth: int):
    with meta_device():
        ours, bixt = timm.create_model(f"sequential_d{depth}"), timm.create_model("bixt_ti_h3_l64_p16", depth=depth)
    more = sum(p.numel() for p in ours.parameters()) - sum(p.numel() for p in bixt.parameters())
    assert more == (depth - 1) * 2 * (192 * 192 + 192)
    assert list(ours.blocks[-1].state_dict()) == list(bixt.blocks[-1].state_dict())


@KINDS
def test_without_positions(name: str, args: dict[str, int]):
    fixed, none = small(name, **args), small(name, positions="none", **args)
    projection = sum(p.numel() for p in fixed.fourier_pos_encode.parameters())
    assert projection == 64 * 16 + 16
    assert sum(p.numel() for p in fixed.parameters()) - sum(p.numel() for p in none.parameters()) == projection
    none.load_state_dict({key: value for key, value in fixed.state_dict().items() if "fourier" not in key})
    nn.init.zeros_(fixed.fourier_pos_encode.token_projection.weight)
    torch.testing.assert_close(none(IMAGES), fixed(IMAGES))


# -- equations ---------------------------------------------------------------------------------------------------------


def attend(queries: Tensor, memory: Tensor, attention: nn.Module) -> Tensor:
    """Plain cross-attention with the weights of a one-sided layer."""

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (SMALL["num_heads"], -1)).transpose(1, 2)

    query, (key, value) = attention.r_latents(queries), attention.rv_patches(memory).chunk(2, dim=-1)
    scores = heads(query) @ heads(key).transpose(-2, -1) * (SMALL["embed_dim"] // SMALL["num_heads"]) ** -0.5
    found: Tensor = attention.proj_lat((scores.softmax(dim=-1) @ heads(value)).transpose(1, 2).flatten(2))
    return found


def test_the_iterative_equation():
    model = small("iterative_sa5_d8_k2", **ITERATIVE)
    tokens = model.embed(IMAGES)
    latents = model.latents.expand(2, -1, -1)
    for index in range(3):
        cross = model.cross_attention[0 if index == 0 else 1]
        latents = latents + attend(cross.norm1_lat(latents), cross.norm1_pat(tokens), cross.attn)
        latents = latents + cross.mlp_lat(cross.norm2_lat(latents))
        for block in model.blocks[index]:
            latents = latents + block.attn(block.norm1(latents))
            latents = latents + block.mlp(block.norm2(latents))
    torch.testing.assert_close(model.forward_features(IMAGES), latents)
    torch.testing.assert_close(model(IMAGES), model.head(model.fc_norm(latents.mean(dim=1))))


def test_the_sequential_equation():
    """The tokens read the latents that have just read them."""
    model = small("sequential_d12", depth=3)
    tokens, latents = model.embed(IMAGES), model.latents.expand(2, -1, -1)
    for layer in model.blocks:
        cross, block = layer.cross_attention_latents_token, layer.self_attention_latents
        before = cross.norm1_pat(tokens)
        latents = latents + attend(cross.norm1_lat(latents), before, cross.attn)
        if not layer.one_sided:
            tokens = tokens + attend(before, cross.norm1_lat(latents), cross.attn_pat)
            tokens = tokens + cross.mlp_pat(cross.norm2_pat(tokens))
        latents = latents + cross.mlp_lat(cross.norm2_lat(latents))
        latents = block(latents)
    torch.testing.assert_close(model.forward_features(IMAGES), latents)
    torch.testing.assert_close(model.forward_tokens(IMAGES), tokens.transpose(1, 2).unflatten(2, (4, 4)))


def test_a_sequential_model_offers_both_maps():
    model, heard = small("sequential_d12", depth=3), Heard()
    cross = model.blocks[0].cross_attention_latents_token
    for attention in (cross.attn, cross.attn_pat):
        attention.recorder = heard
    model(IMAGES)
    assert {name: tuple(found.shape) for name, found in heard.items() if name != "scores"} == {
        "latents_to_tokens": (2, 2, 3, 16),
        "tokens_to_latents": (2, 2, 16, 3),
    }


def test_iterative_blocks_leave_the_tokens():
    model = small("iterative_sa5_d8_k1", **{**ITERATIVE, "cross_sets": 1})
    embedded = model.embed(IMAGES).transpose(1, 2).unflatten(2, (4, 4))
    _, maps = model.forward_intermediates(IMAGES)
    assert len(maps) == 3
    for each in (*maps, model.forward_tokens(IMAGES)):
        torch.testing.assert_close(each, embedded)


# -- sharing -----------------------------------------------------------------------------------------------------------


@KINDS
def test_saved_once_and_loaded(name: str, args: dict[str, int], tmp_path: Path):
    model, other = small(name, **args), small(name, seed=1, **args)
    state = model.state_dict()
    assert len({value.data_ptr() for value in state.values()}) == len(state)
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")  # refuses tensors that share memory
    assert not torch.equal(other(IMAGES), model(IMAGES))
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other(IMAGES), model(IMAGES))
    read = attngraft.create_model(name, weights=tmp_path / "model.safetensors", **{**SMALL, **args}).eval()
    assert torch.equal(read(IMAGES), model(IMAGES))


@pytest.mark.parametrize("sets", [1, 2, 3])
def test_a_copy_shares_what_the_original_does_and_nothing_with_it(sets: int):
    model = small("iterative_sa5_d8_k1", **{**ITERATIVE, "cross_sets": sets})
    before, copied = model(IMAGES), copy.deepcopy(model)
    assert torch.equal(copied(IMAGES), before)
    assert len(list(copied.parameters())) == len(list(model.parameters()))
    calls: list[int] = []
    for number, cross in enumerate(copied.cross_attention):
        cross.register_forward_hook(lambda *_, number=number: calls.append(number))
    for parameter in copied.cross_attention[-1].parameters():
        nn.init.zeros_(parameter)
    assert not torch.allclose(copied(IMAGES), before)
    assert calls == [min(index, sets - 1) for index in range(3)]
    assert torch.equal(model(IMAGES), before)


def test_a_shared_cross_attention_has_the_mean_drop_path_of_its_blocks():
    model = small("iterative_sa5_d8_k1", **ITERATIVE, drop_path_rate=0.2)
    cross = [each.drop_path for each in model.cross_attention]
    assert isinstance(cross[0], nn.Identity)
    assert cross[1].drop_prob == pytest.approx((0.1 + 0.2) / 2)
    rates = [each.drop_prob for each in model.blocks.modules() if isinstance(each, DropPath)]
    assert rates[0] == pytest.approx(0.2 / 5)
    assert rates[-1] == pytest.approx(0.2)


# -- as timm's models --------------------------------------------------------------------------------------------------


@KINDS
def test_gradient_checkpointing_changes_nothing(name: str, args: dict[str, int]):
    plain, kept = small(name, **args).train(), small(name, **args).train()
    kept.set_grad_checkpointing()
    for model in (plain, kept):
        model(IMAGES).square().sum().backward()
    for (key, one), other in zip(plain.named_parameters(), kept.parameters(), strict=True):
        assert one.grad is not None, key
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.slow
@KINDS
def test_compiled_in_one_graph(name: str, args: dict[str, int]):
    model = small(name, **args)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(IMAGES), model(IMAGES))


@KINDS
def test_every_parameter_is_in_a_layer_group(name: str, args: dict[str, int]):
    model = small(name, **args)
    groups = group_parameters(model, model.group_matcher())
    assert sum(len(group) for group in groups.values()) == len(list(model.parameters()))
    shared = [key for key, _ in model.named_parameters() if key.startswith("cross_attention.0.")]
    assert set(shared) <= set(groups[1])
    assert all(key.startswith(("latents", "patch_embed", "fourier_pos_encode")) for key in groups[0])


@KINDS
def test_the_interface(name: str, args: dict[str, int]):
    model = small(name, **args)
    assert isinstance(model, LatentModel)
    assert isinstance(model, Sequential if name.startswith("sequential") else Iterative)
    latents, maps = model.forward_intermediates(IMAGES, indices=1)
    torch.testing.assert_close(latents, model.forward_features(IMAGES))
    assert [each.shape for each in maps] == [(2, 16, 4, 4)]
    model.reset_classifier(7)
    assert model(IMAGES).shape == (2, 7)
    model.set_input_size((16, 24))
    assert model(torch.randn(1, 2, 16, 24)).shape == (1, 7)
    features = timm.create_model(name, features_only=True, out_indices=(0, -1), **{**SMALL, **args}).eval()
    assert [tuple(each.shape) for each in features(IMAGES)] == [(2, 16, 4, 4)] * 2


@KINDS
def test_other_sizes(name: str, args: dict[str, int]):
    model = small(name, **args, patch_size=8, stride=4, token_dim=8, attention_dim=12, init_values=1e-2)
    assert model(IMAGES).shape == (2, 5)
    assert model.forward_tokens(IMAGES).shape == (2, 8, 4, 4)


@pytest.mark.parametrize("sets", [1, 2, 3])
def test_pruning_takes_the_cross_attentions_that_serve_nobody(sets: int):
    """Else they would be parameters without gradients."""
    model = small("iterative_sa5_d8_k1", **{**ITERATIVE, "cross_sets": sets})
    latents, maps = model.forward_intermediates(IMAGES, [1], stop_early=True)
    assert model.prune_intermediate_layers([1]) == [1]
    assert (len(model.blocks), len(model.cross_attention)) == (2, min(sets, 2))
    found, kept = model.forward_intermediates(IMAGES, [1])
    assert torch.equal(found, latents)
    assert torch.equal(kept[0], maps[0])
    model(IMAGES).square().sum().backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]


@KINDS
def test_weights_of_other_heads_are_refused(name: str, args: dict[str, int], tmp_path: Path):
    """Shapes would fit; that the file was made with 2 heads is written in it."""
    saved = small(name, **args)
    facts = json.dumps({"architecture": name, "arguments": {**SMALL, **args}})
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(saved.state_dict(), path, metadata={"attngraft": facts})
    read = attngraft.create_model(name, weights=path, **{**SMALL, **args}).eval()
    assert torch.equal(read(IMAGES), saved(IMAGES))
    message = rf"is of {name}, whose attention has 2 heads, and this model's has 4 heads.*num_heads=2"
    with pytest.raises(HostError, match=message):
        attngraft.create_model(name, weights=path, **{**SMALL, **args, "num_heads": 4})
    safetensors.torch.save_file(saved.state_dict(), path, metadata={"attngraft": json.dumps({"architecture": name})})
    with pytest.raises(HostError, match="whose attention has 3 heads, and this model's has 2 heads"):
        attngraft.create_model(name, weights=path, **{**SMALL, **args})


@pytest.mark.parametrize("sets", [0, 4])
def test_more_cross_attentions_than_blocks_are_refused(sets: int):
    with pytest.raises(UsageError, match=r"cross_sets must be between 1 and the depth \(3\)"):
        Iterative(**SMALL, **{**ITERATIVE, "cross_sets": sets})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"self_layers": 0}, "self_layers must be 1 or more, not 0"),
        ({"num_heads": 3}, "the attention width 16 is not divisible by 3 heads"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(args: dict[str, int], message: str):
    with pytest.raises(UsageError, match=message):
        Iterative(**{**SMALL, **ITERATIVE, **args})


def test_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="no_such_argument"):
        Iterative(**SMALL, no_such_argument=1)
