"""BiXT: forward order, timm's interface, dense use, initial values, and PyTorch's module operations."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import timm
import torch
from timm.layers import DropPath
from timm.models import group_parameters
from timm.optim import create_optimizer_v2
from torch import nn

from attngraft.errors import UsageError
from attngraft.models.bixt.model import BiXT
from attngraft.tensors import meta_device
from attngraft.training.optimizer import parameter_groups
from attngraft.training.recipe import OptimizerConfig
from tests.models.bixt.tiny import TINY, images, tiny

#: every argument off its default at least once
VARIED: dict[str, dict[str, Any]] = {
    "default": {},
    "scaled": {"init_values": 1e-5, "fc_norm": False},
    "dynamic": {"positions": "dynamic", "stride": 2},
    "convolutional": {"tokenizer": "conv", "rv_bias": False, "qkv_bias": False},
    "local": {"local": True},
    "widths": {"embed_dim": 32, "token_dim": 20, "attention_dim": 12, "sa_heads": 4, "ca_heads": 3},
    "dense": {"dense": True, "depth": 4},
    "many latents": {"num_latents": 19, "mlp_ratio": 2.0},
    "one layer": {"depth": 1},
}
varied = pytest.mark.parametrize("changes", VARIED.values(), ids=VARIED)


# -- forward -----------------------------------------------------------------------------------------------------------


@varied
def test_shapes(changes: dict[str, Any]) -> None:
    model = tiny(**changes)
    width, latents = model.embed_dim, model.latents.shape[1]
    assert model(images()).shape == (2, 5)
    assert model.forward_features(images()).shape == (2, latents, width)
    stride = model.patch_embed.stride
    assert model.embed(images()).shape == (2, (16 // stride) ** 2, model.token_dim)
    if changes.get("depth") != 1:
        assert model.forward_tokens(images()).shape == (2, model.token_dim, 16 // stride, 16 // stride)


def test_the_order() -> None:
    model = tiny()
    tokens = model.patch_embed(images()) + model.fourier_pos_encode(model.grid_size)
    latents = model.latents
    assert latents.shape == (1, 3, 16)
    for layer in model.blocks:
        latents, tokens = layer(latents, tokens)
    assert tokens is None  # the last layer is one-sided
    assert torch.equal(model.forward_features(images()), latents)
    torch.testing.assert_close(model(images()), model.head(model.fc_norm(latents.mean(1))))


def test_without_fc_norm_the_norm_stands_before_the_mean() -> None:
    model = tiny(fc_norm=False)
    assert "norm_lat.weight" in model.state_dict() and "fc_norm.weight" not in model.state_dict()
    latents = model._layers(images(), 3)[0]
    torch.testing.assert_close(model(images()), model.head(model.norm_lat(latents).mean(1)))


def test_images_do_not_mix() -> None:
    model = tiny(tokenizer="conv", local=True)
    both = model(images())
    torch.testing.assert_close(model(images()[1:]), both[1:])


def test_a_large_latent_reaches_every_token_and_back() -> None:
    """One step of the latents changes all tokens of the next layer, one pixel all latents: the flow is two-way."""
    model = tiny()
    pixel = images().requires_grad_()
    model(pixel)[0].sum().backward()
    assert (pixel.grad[0] != 0).all()
    assert not pixel.grad[1].any()


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_images_that_are_not_square() -> None:
    model = tiny(img_size=(8, 24), in_chans=1, num_classes=3, local=True)
    wide = images(height=8, width=24, channels=1)
    assert model.grid_size == (2, 6)
    assert model(wide).shape == (2, 3)
    assert model.forward_tokens(wide).shape == (2, 16, 2, 6)
    tokens = model._layers(wide, 2)[1]
    assert torch.equal(model.forward_tokens(wide)[0, :, 1, 3], tokens[0, 1 * 6 + 3])


def test_a_static_model_says_what_it_takes() -> None:
    with pytest.raises(UsageError, match="for images of 16 x 16, but these are 16 x 24; call set_input_size"):
        tiny()(images(width=24))
    with pytest.raises(UsageError, match="30 x 16 are not divisible by the stride 4"):
        tiny()(images(height=30))


def test_a_dynamic_model_takes_all_sizes() -> None:
    dynamic = tiny(positions="dynamic", local=True)
    static = tiny(img_size=(8, 24), local=True)
    dynamic.load_state_dict(static.state_dict())
    assert dynamic(images(height=4, width=4)).shape == (2, 5)
    torch.testing.assert_close(dynamic(images(height=8, width=24)), static(images(height=8, width=24)))


def test_another_input_size() -> None:
    model, other = tiny(), tiny(img_size=(8, 24))
    model.set_input_size((8, 24))
    torch.testing.assert_close(model(images(height=8, width=24)), other(images(height=8, width=24)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"img_size": 18}, "images of 18 x 18"),
        ({"stride": 3}, "patches of 4 at stride 3"),
        ({"num_heads": 3, "attention_dim": 16}, "not divisible by 3 heads"),
        ({"global_pool": "token"}, "global_pool of BiXT must be 'avg' or ''"),
        ({"positions": "learned"}, "positions of BiXT"),
        ({"weight_init": "moco"}, "weight_init of BiXT"),
        ({"tokenizer": "mlp"}, "tokenizer of BiXT"),
        ({"sa_heads": 3}, "the attention width 16 is not divisible by 3 heads"),
        ({"depth": 0}, "depth of BiXT must be 1 or more, not 0"),
        ({"num_latents": 0}, "num_latents of BiXT must be from 1 to 16,384, not 0"),
        ({"num_latents": 10**6}, "num_latents of BiXT must be from 1 to 16,384, not 1000000"),
        (
            {"depth": 1, "dense": True},
            "only layer of this model is one-sided and cannot be dropped; set depth to 2 or more",
        ),
    ],
)
def test_what_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BiXT(**{**TINY, "sa_heads": 2, **changes})


# -- as one of timm's models -------------------------------------------------------------------------------------------


def test_another_head() -> None:
    model = tiny()
    assert model.get_classifier() is model.head
    model.reset_classifier(3)
    assert (model.num_classes, model(images()).shape) == (3, (2, 3))
    assert not model.head.weight.any()  # as a model starts
    latents = model.forward_features(images())
    pooled = model.forward_head(latents, pre_logits=True)
    torch.testing.assert_close(pooled, model.fc_norm(latents.mean(1)))
    model.reset_classifier(0, "")
    assert torch.equal(model(images()), model.fc_norm(latents))
    with pytest.raises(UsageError, match="global_pool"):
        model.reset_classifier(3, "max")
    assert tiny(num_classes=0)(images()).shape == (2, 16)


def test_intermediates_are_maps_of_tokens() -> None:
    model = tiny(depth=4, fc_norm=False)
    latents, found = model.forward_intermediates(images())
    assert torch.equal(latents, model.forward_features(images()))
    assert [one.shape for one in found] == [(2, 16, 4, 4)] * 3  # the last layer has no tokens
    assert torch.equal(found[-1], model.forward_tokens(images()))
    pairs = model.forward_intermediates(
        images(), [0, 2], return_prefix_tokens=True, norm=True, intermediates_only=True, output_fmt="NLC"
    )
    behind, tokens = model._layers(images(), 3)
    assert torch.equal(pairs[1][0], tokens)
    assert torch.equal(pairs[1][1], model.norm_lat(behind))
    (early,) = model.forward_intermediates(images(), [1], stop_early=True, intermediates_only=True)
    assert torch.equal(early, found[1])
    with pytest.raises(ValueError, match="NCHW or NLC"):
        model.forward_intermediates(images(), output_fmt="NHWC")


def test_pruning() -> None:
    model = tiny(depth=4, fc_norm=False)
    before = model.forward_intermediates(images(), [1], intermediates_only=True)
    assert model.prune_intermediate_layers([1], prune_norm=True) == [1]
    assert len(model.blocks) == 2 and model.num_classes == 0
    torch.testing.assert_close(model.forward_intermediates(images(), 1, intermediates_only=True), before)
    assert model(images()).shape == (2, 3, 16)


def test_features_only() -> None:
    torch.manual_seed(0)
    model = timm.create_model("bixt_ti_l64_p16", features_only=True, out_indices=(0, 1), **TINY)
    assert [one.shape for one in model(images())] == [(2, 16, 4, 4)] * 2
    assert (model.feature_info.channels(), model.feature_info.reduction()) == ([16, 16], [4, 4])
    assert model.feature_info.module_name() == ["blocks.0", "blocks.1"]


def test_dense_use() -> None:
    """Train with 13 layers; the tokens of the first 12 are those that the whole model computes on its way."""
    model = tiny("bixt_ti_l64_d13_p16", depth=4)
    before = model.forward_tokens(images())
    model.drop_last_layer()
    assert len(model.blocks) == 3 and not any(layer.one_sided for layer in model.blocks)
    assert torch.equal(model.forward_tokens(images()), before)
    assert model(images()).shape == (2, 5)
    assert model.forward_intermediates(images(), 1, intermediates_only=True)[0].shape == (2, 16, 4, 4)
    with pytest.raises(UsageError, match="no one-sided layer to drop"):
        model.drop_last_layer()
    assert tiny("bixt_ti_l64_d13_p16", depth=4, dense=True).state_dict().keys() == model.state_dict().keys()


def test_what_timm_decays() -> None:
    """All that is no vector, the latents too, as in the paper's recipe; and what is nearer to the images learns slower."""
    model = tiny()
    assert model.no_weight_decay() == set()
    optimizer = create_optimizer_v2(model, "adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5)
    found = {
        id(p): (group["weight_decay"], group["lr_scale"]) for group in optimizer.param_groups for p in group["params"]
    }
    assert len(found) == len(list(model.parameters()))
    assert {decay for p in model.parameters() if p.ndim > 1 for decay in found[id(p)][:1]} == {0.1}
    assert {decay for p in model.parameters() if p.ndim == 1 for decay in found[id(p)][:1]} == {0.0}
    places = (
        model.latents,
        *(layer.self_attention_latents.mlp.fc1.weight for layer in model.blocks),
        model.head.weight,
    )
    assert [found[id(place)][1] for place in places] == [0.5**4, 0.5**3, 0.5**2, 0.5, 1]


def test_layers_for_decay() -> None:
    model = tiny(fc_norm=False)
    layers = group_parameters(model, model.group_matcher(), reverse=True)
    assert layers["latents"] == layers["patch_embed.proj.weight"] == 0
    assert layers["fourier_pos_encode.token_projection.weight"] == 0
    names = ("cross_attention_latents_token.attn.rv_patches.weight", "self_attention_latents.mlp.fc1.bias")
    assert [[layers[f"blocks.{index}.{name}"] for name in names] for index in range(2)] == [[1, 1], [2, 2]]
    assert layers["blocks.2.cross_attention_latents_token.attn.r_latents.weight"] == 3
    assert (layers["norm_lat.weight"], layers["head.weight"]) == (3, 4)
    groups = parameter_groups(model, OptimizerConfig(layer_decay=0.5, weight_decay=0.1))
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert scale[id(model.latents)] == 0.5**4
    assert decay[id(model.latents)] == 0.1  # as in the paper's recipe
    assert decay[id(model.patch_embed.proj.bias)] == 0


def test_drop_paths_grow_with_depth() -> None:
    def rates(model: BiXT, part: str) -> list[float]:
        paths = [
            [m.drop_prob for n, m in layer.named_modules() if part in n and isinstance(m, DropPath)]
            for layer in model.blocks
        ]
        return [max(found, default=0.0) for found in paths]

    model = tiny(sa_drop_path_rate=0.2, ca_drop_path_rate=0.4)
    assert rates(model, "self_attention") == pytest.approx([0, 0.1, 0.2])
    assert rates(model, "cross_attention") == pytest.approx([0, 0.2, 0.4])
    both = tiny(drop_path_rate=0.1, ca_drop_path_rate=0.0)
    assert rates(both, "self_attention") == pytest.approx([0, 0.05, 0.1])
    assert rates(both, "cross_attention") == [0, 0, 0]
    assert not any(isinstance(module, DropPath) for module in tiny("bixt_ti_cnv_l64_p16").modules())


def test_dropout_reaches_its_places() -> None:
    model = tiny(drop_rate=0.1, proj_drop_rate=0.2, attn_drop_rate=0.3)
    assert model.head_drop.p == 0.1
    cross, block = model.blocks[0].cross_attention_latents_token, model.blocks[0].self_attention_latents
    assert cross.attn.proj_drop.p == cross.mlp_pat.drop1.p == block.mlp.drop2.p == block.attn.proj_drop.p == 0.2
    assert cross.attn.attn_drop == block.attn.attn_drop.p == 0.3
    assert torch.equal(model(images()), tiny()(images()))  # in evaluation they do nothing


# -- initial values ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_initial_values() -> None:
    model = tiny(scramble=False, embed_dim=192, num_heads=6, num_latents=64, depth=2, local=True, tokenizer="conv")
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "head":
            bound = (6 / sum(module.weight.shape)) ** 0.5  # of the fused matrix
            assert bound * 0.99 < module.weight.abs().max() <= bound, name
            assert module.weight.mean().abs() < 0.02 * bound, name
        if isinstance(module, nn.Conv2d):
            fan_in = module.weight[0].numel()
            assert module.weight.std() == pytest.approx(fan_in**-0.5, rel=0.1), name
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            expected = 1e-6 if "mlp" in name else 0
            assert module.bias.std() == pytest.approx(expected, rel=0.2), name
    assert not model.head.weight.any()
    assert model.latents.std() == pytest.approx(0.02, rel=0.05)
    assert not model(images()).any()


@torch.no_grad()
def test_models_of_384_start_as_pytorch_has_it() -> None:
    model = tiny("bixt_ti_l64_p16_ft384", scramble=False, embed_dim=192, num_heads=6, num_latents=64, depth=1)
    assert model.latents.std() == pytest.approx(1, rel=0.05)
    assert model.head.weight.any()
    bound = 192**-0.5
    weight = model.blocks[0].cross_attention_latents_token.attn.rv_patches.weight
    assert bound * 0.99 < weight.abs().max() <= bound


# -- what PyTorch does with modules ------------------------------------------------------------------------------------


@varied
def test_a_step_moves_all_that_is_trained(changes: dict[str, Any]) -> None:
    model = tiny(**changes).train()
    torch.nn.functional.cross_entropy(model(images(batch=4)), torch.arange(4)).backward()
    still = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    if changes.get("dense"):  # what its last layer gives the tokens is for another head
        still -= {name for name in still if name.startswith("blocks.2.cross_attention_latents_token") and "pat" in name}
    assert not still


@varied
def test_recomputed_layers_are_the_same(changes: dict[str, Any]) -> None:
    """Outputs and gradients, with drop paths too."""
    found = []
    for recompute in (False, True):
        model = tiny(**changes, drop_path_rate=0.5, attn_drop_rate=0.1).train()
        model.set_grad_checkpointing(recompute)
        torch.manual_seed(0)
        out = model(images(batch=4))
        out.square().sum().backward()
        found.append([out, *(p.grad for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(found[1], found[0])


def test_copies() -> None:
    model = tiny(init_values=0.1, local=True)
    out = model(images())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(images()), out)


@varied
def test_made_without_memory(changes: dict[str, Any]) -> None:
    model = tiny(**changes)
    with meta_device():
        empty = tiny(**changes, scramble=False)
    assert all(value.is_meta for value in empty.state_dict().values())
    assert empty(torch.empty(2, 3, 16, 16, device="meta")).shape == (2, 5)
    empty.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(empty(images()), model(images()))


def test_weights_made_later() -> None:
    """`init_weights` fills a model that was made without memory, its position codes too."""
    with meta_device():
        model = tiny(scramble=False)
    model.to_empty(device="cpu")
    model.init_weights()
    assert torch.equal(model.fourier_pos_encode.pos, tiny().fourier_pos_encode.pos)


@varied
def test_low_precision(changes: dict[str, Any]) -> None:
    model = tiny(**changes)
    exact = model(images())
    low = copy.deepcopy(model).bfloat16()(images().bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), exact, atol=0.05 * exact.abs().max().item() + 0.02, rtol=0)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(images()).float(), exact, atol=0.05 * exact.abs().max().item() + 0.02, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "changes"),
    [
        ("inductor", {"num_latents": 16}),  # as many as tokens: what is compiled for one serves the other, too
        ("aot_eager", {"tokenizer": "conv", "local": True, "positions": "dynamic", "init_values": 0.1}),
    ],
)
def test_compiled(backend: str, changes: dict[str, Any]) -> None:
    """In one graph, forward and backward."""
    torch._dynamo.reset()
    plain, seen = (tiny(depth=2, **changes) for _ in range(2))
    expected, found = plain(images()), torch.compile(seen, fullgraph=True, backend=backend)(images())
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    for out in (expected, found):
        out.square().sum().backward()
    for ours, theirs in zip(seen.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"tokenizer": "conv", "local": True, "positions": "dynamic"}])
def test_exported(changes: dict[str, Any]) -> None:
    """With a batch of any size."""
    model = tiny(**changes)
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    program = torch.export.export(model, (images(),), dynamic_shapes=shapes)
    torch.testing.assert_close(program.module()(images(batch=5)), model(images(batch=5)))
