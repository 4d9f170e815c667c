"""T2T-ViT: shapes, equations, and the authors' names of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import group_parameters
from torch import Tensor

import attngraft
import attngraft.models
from attngraft.models.t2t_vit import Scaled, T2TViT, sinusoids
from attngraft.models.tokens_to_token import TokenPerformer, TokenTransformer
from attngraft.tensors import meta_device
from attngraft.training.optimizer import parameter_groups
from attngraft.training.recipe import OptimizerConfig
from tests.contract.timm.test_t2t_vit import TINY

#: trained values in millions, with 1000 classes, and tensors that are not trained
SIZES = {
    "t2t_vit_7": (4.3, 54_528),
    "t2t_vit_12": (6.9, 54_528),
    "t2t_vit_14": (21.5, 79_744),
    "t2t_vit_19": (39.1, 92_352),
    "t2t_vit_24": (64.0, 104_960),
    "t2t_vit_t_14": (21.5, 75_648),
    "t2t_vit_t_19": (39.1, 88_256),
    "t2t_vit_t_24": (64.0, 100_864),
}


def tiny(name: str = "t2t_vit_14", *, seed: int = 0, **changes: Any) -> T2TViT:
    torch.manual_seed(seed)
    model: T2TViT = timm.create_model(name, **{**TINY, **changes})
    return model.eval()


def official_shapes(blocks: int = 14, width: int = 384, hidden: int = 1152, classes: int = 1000) -> dict[str, tuple]:
    """Names and shapes in the authors' file of T2T-ViT-14."""
    shapes: dict[str, tuple] = {"cls_token": (1, 1, width), "pos_embed": (1, 197, width)}
    for number, dim in ((1, 147), (2, 576)):
        layers = {"norm1": (dim,), "kqv": (192, dim), "proj": (64, 64), "norm2": (64,)}
        layers |= {"mlp.0": (64, 64), "mlp.2": (64, 64)}
        shapes[f"tokens_to_token.attention{number}.w"] = (32, 64)
        shapes |= with_biases(layers, f"tokens_to_token.attention{number}.")
    shapes |= with_biases({"project": (width, 576)}, "tokens_to_token.")
    for index in range(blocks):
        shapes[f"blocks.{index}.attn.qkv.weight"] = (3 * width, width)
        layers = {"norm1": (width,), "attn.proj": (width, width), "norm2": (width,)}
        layers |= {"mlp.fc1": (hidden, width), "mlp.fc2": (width, hidden)}
        shapes |= with_biases(layers, f"blocks.{index}.")
    return shapes | with_biases({"norm": (width,), "head": (classes, width)}, "")


def with_biases(layers: dict[str, tuple], prefix: str) -> dict[str, tuple]:
    weights = {f"{prefix}{name}.weight": shape for name, shape in layers.items()}
    return weights | {f"{prefix}{name}.bias": shape[:1] for name, shape in layers.items()}


# -- sizes and names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(SIZES))
def test_sizes(name: str) -> None:
    with meta_device():
        model = timm.create_model(name)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == SIZES[name][0]
    assert sum(buffer.numel() for buffer in model.buffers()) == SIZES[name][1]
    assert set(timm.list_models("t2t_vit*")) == set(SIZES)


def test_names_and_shapes_are_the_authors() -> None:
    with meta_device():
        model = timm.create_model("t2t_vit_14")
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == official_shapes()


def test_a_file_with_the_authors_names_fills_the_model(tmp_path: Path) -> None:
    """As they save it: below `state_dict_ema`; positions of a 4 x 4 grid for a model of 2 x 2; a head of other classes."""
    donor = tiny(img_size=16, seed=1)
    path = tmp_path / "t2t.pth.tar"
    torch.save({"epoch": 3, "state_dict_ema": {f"module.{k}": v for k, v in donor.state_dict().items()}}, path)
    model = attngraft.create_model("t2t_vit_14", weights=path, **{**TINY, "num_classes": 7})
    own = model.state_dict()
    for name, value in donor.state_dict().items():
        if name.startswith("head.") or name == "pos_embed":
            continue
        assert torch.equal(own[name], value), name
    assert own["head.weight"].shape == (7, 24)
    assert own["pos_embed"].shape == (1, 5, 24)
    assert torch.equal(own["pos_embed"][:, 0], donor.pos_embed[:, 0])
    assert not torch.allclose(own["pos_embed"], tiny().pos_embed)  # theirs resampled, not ours
    same = attngraft.create_model("t2t_vit_14", weights=path, **{**TINY, "img_size": 16}).eval()
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(same(images), donor(images))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t2t.pth"
    torch.save(tiny(token_attention="transformer").state_dict(), path)
    with pytest.raises(attngraft.HostError, match=r"unexpected: tokens_to_token\.attention1\.attn"):
        attngraft.create_model("t2t_vit_14", weights=path, **TINY)


def test_there_are_no_weights_to_download() -> None:
    with pytest.raises(attngraft.HostError, match="no weights for t2t_vit_14"):
        attngraft.create_model("t2t_vit_14", pretrained=True)


# -- equations ---------------------------------------------------------------------------------------------------------


def test_positions() -> None:
    table = sinusoids(7, 6).double()
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1]
    for place in range(7):
        for pair in range(3):
            angle = torch.tensor(place / 10000 ** (2 * pair / 6), dtype=torch.float64)
            torch.testing.assert_close(table[place, 2 * pair], angle.sin(), atol=1e-7, rtol=0)
            torch.testing.assert_close(table[place, 2 * pair + 1], angle.cos(), atol=1e-7, rtol=0)


def test_a_performer_is_its_equation() -> None:
    torch.manual_seed(0)
    layer = TokenPerformer(10, 8).double().eval()
    x = torch.randn(2, 6, 10, dtype=torch.float64)
    k, q, v = layer.kqv(layer.norm1(x)).split(8, dim=-1)  # in this order

    def phi(vector: Tensor) -> Tensor:
        return torch.exp(layer.w @ vector - vector.square().sum() / 2) / 2  # sqrt(m), m = 4

    y = torch.zeros_like(v)
    for image in range(2):
        for i in range(6):
            weights = torch.stack([phi(q[image, i]) @ phi(k[image, j]) for j in range(6)])
            y[image, i] = (weights[:, None] * v[image]).sum(0) / (weights.sum() + 1e-8)
    out = v + layer.proj(y)
    out = out + layer.mlp(layer.norm2(out))
    torch.testing.assert_close(layer(x), out)
    torch.testing.assert_close(layer.w @ layer.w.T, 4 * torch.eye(4, dtype=torch.float64), atol=1e-6, rtol=0)


def test_a_performers_features_stay_finite_in_half_precision() -> None:
    """exp(-|q|^2 / 2) of these queries is 1e-14: zero in half precision, and the quotient not a number."""
    layer = TokenPerformer(16, 8)
    q = torch.full((1, 3, 8), 2.8).half()
    assert torch.isfinite(layer.half().mix(q, q, q)).all()


@pytest.mark.slow
def test_a_performer_is_the_same_in_onnx(tmp_path: Path) -> None:
    """Also where its denominator is as small as its constant, which an exporter may take for zero."""
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    layer = TokenPerformer(10, 8).eval()
    with torch.no_grad():
        layer.kqv.weight.mul_(6)
        x = torch.randn(2, 6, 10)
        expected, phi = layer(x), layer.features(layer.kqv(layer.norm1(x))[..., 8:16])
    assert phi.min() < 1e-6
    torch.onnx.export(layer, (x,), dynamo=True, verbose=False).save(tmp_path / "layer.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "layer.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=1e-5)


def test_a_token_transformer_is_its_equation() -> None:
    torch.manual_seed(0)
    layer = TokenTransformer(10, 8).double()
    x = torch.randn(2, 6, 10, dtype=torch.float64)
    q, k, v = layer.attn.qkv(layer.norm1(x)).split(8, dim=-1)
    weights = (q @ k.transpose(1, 2) / 10**0.5).softmax(dim=-1)
    out = v + layer.attn.proj(weights @ v)
    torch.testing.assert_close(layer(x), out + layer.mlp(layer.norm2(out)))


@pytest.mark.parametrize("fused", [True, False])
def test_the_scale_of_the_scores(fused: bool) -> None:
    model = tiny(qk_scale=0.02)
    attention = model.blocks[0].attn
    attention.fused_attn = fused
    x = torch.randn(2, 5, 24)
    q, k, v = attention.qkv(x).unflatten(-1, (3, 3, 8)).permute(2, 0, 3, 1, 4)
    heads = (0.02 * q @ k.transpose(-2, -1)).softmax(dim=-1) @ v
    torch.testing.assert_close(attention(x), attention.proj(heads.transpose(1, 2).flatten(2)))
    assert list(tiny(qk_scale=0.02).state_dict()) == list(tiny().state_dict())
    assert not any(isinstance(module, Scaled) for module in tiny().modules())


# -- as one of timm's models -------------------------------------------------------------------------------------------


def test_images_that_are_not_square() -> None:
    model = tiny(img_size=(8, 16), in_chans=1, num_classes=3)
    assert model.tokens_to_token.grid_size == (2, 4)
    assert model(torch.randn(2, 1, 8, 16)).shape == (2, 3)
    (features,) = model.forward_intermediates(torch.randn(2, 1, 8, 16), indices=1, intermediates_only=True)
    assert features.shape == (2, 24, 2, 4)
    with pytest.raises(AssertionError, match="takes images of"):
        model(torch.randn(2, 1, 16, 8))


def test_another_head() -> None:
    model = tiny()
    images = torch.randn(2, 3, 8, 8)
    assert model.get_classifier() is model.head
    model.reset_classifier(3, "avg")
    assert model(images).shape == (2, 3)
    assert model.num_classes == 3
    tokens = model.forward_features(images)
    torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), tokens[:, 1:].mean(1))
    model.reset_classifier(0, "")
    assert torch.equal(model(images), tokens)


def test_intermediates() -> None:
    model = tiny(depth=3)
    images = torch.randn(2, 3, 8, 8)
    tokens, found = model.forward_intermediates(images, indices=[0, 2], norm=True, return_prefix_tokens=True)
    assert torch.equal(tokens, model.forward_features(images))
    assert len(found) == 2
    last, prefix = found[1]
    assert torch.equal(last.flatten(2).transpose(1, 2), tokens[:, 1:])
    assert torch.equal(prefix, tokens[:, :1])
    (early,) = model.forward_intermediates(images, [0], stop_early=True, output_fmt="NLC", intermediates_only=True)
    model.prune_intermediate_layers([0], prune_norm=True)
    assert torch.equal(model(images)[:, 1:], early)
    with pytest.raises(ValueError, match="NCHW or NLC"):
        model.forward_intermediates(images, output_fmt="NHWC")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"splits": [[3, 2, 1]]}, "three entries"),
        ({"token_attention": "performers"}, "'performer' or 'transformer'"),
        ({"token_width": 5}, "even number"),
        ({"img_size": 1, "splits": ((3, 2, 0),) * 3}, "too small"),
        ({"global_pool": "max"}, "global_pool"),
    ],
)
def test_what_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(attngraft.HostError, match=message):
        attngraft.create_model("t2t_vit_14", **{**TINY, **arguments})


def test_layers_for_decay() -> None:
    model = tiny(depth=3)
    attngraft.graft(model, "horizontal")
    groups = parameter_groups(model, OptimizerConfig(layer_decay=0.5, weight_decay=0.1))
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    named = dict(model.named_parameters())
    layers = group_parameters(tiny(depth=3), model.group_matcher(), reverse=True)
    assert layers["cls_token"] == layers["tokens_to_token.attention1.kqv.weight"] == 0
    assert [layers[f"blocks.{index}.attn.qkv.weight"] for index in range(3)] == [1, 2, 3]
    assert (layers["norm.weight"], layers["head.weight"]) == (3, 4)
    assert scale[id(named["cls_token"])] == 0.5**4
    assert scale[id(named["blocks.2.attn.grafts.horizontal.context.weight"])] == 0.5
    assert decay[id(named["cls_token"])] == 0
    assert decay[id(named["blocks.0.attn.qkv.weight"])] == 0.1


@pytest.mark.parametrize("kind", ["performer", "transformer"])
def test_a_step_moves_all_that_is_trained_and_nothing_else(kind: str) -> None:
    model = tiny(token_attention=kind, token_drop_rate=0.1, drop_path_rate=0.1).train()
    attngraft.graft(model, "horizontal + vertical + cb_s(init=0.1)")
    before = {name: value.clone() for name, value in model.named_buffers()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 3, 8, 8)), torch.arange(8) % 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.isfinite(loss)
    unmoved = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
    assert all(name.endswith("horizontal.score.bias") for name in unmoved)  # a shift common to all heads
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
