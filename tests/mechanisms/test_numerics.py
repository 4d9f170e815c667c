"""Numerics of grafts at the limits of their inputs: huge logits, masked rows, one token, empty batches and sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import attngraft
from attngraft.errors import UsageError
from tests.contract.tester import GRAFTS, SPACE, randomize
from tests.seeding import seed

ALL = [spec for spec in (*GRAFTS, *SPACE) if not spec.startswith("toy_")]
SWIN = [*SPACE, "cb(at=attention, scope=window)"]
#: grafts that average over tokens, which refuse masks, and those that need a class token
REFUSING, CLASS = ("cb", "se"), ("cb(context=class)", "cb(tokens=patches)", "cb_gate", "cb_hybrid")
#: grafts at `weights` and `mix` that start as the identity
UNCHANGED = (
    "identity(stage=weights)",
    "ghost(identity=true)",
    "bisa(identity=true)",
    "bisa(identity=true, separate=true)",
)
AT_MAPS = (*UNCHANGED, *(spec for spec in ALL if spec.startswith(("bisa", "misa", "uniform", "ghost"))))

INFINITY = float("-inf")
LOWEST = torch.finfo(torch.float32).min
#: token 2 attends to no token and is visible to none
SEEN = torch.tensor([True, True, False, True, True])
PAIRS = SEEN.unsqueeze(0) & SEEN.unsqueeze(1)
MASKS = {
    "boolean": PAIRS,
    "infinite": torch.zeros(5, 5).masked_fill(~PAIRS, INFINITY),
    "lowest": torch.zeros(5, 5).masked_fill(~PAIRS, LOWEST),
    "-1e9": torch.zeros(5, 5).masked_fill(~PAIRS, -1e9),
    "all hidden": torch.zeros(5, 5, dtype=torch.bool),
    "all infinite": torch.full((5, 5), INFINITY),
    "all lowest": torch.full((5, 5), LOWEST),
    "all -1e9": torch.full((5, 5), -1e9),
}


def vit(*, fused: bool = True, **options: Any) -> Any:
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 3, "num_classes": 5}
    seed(0)
    model = VisionTransformer(**{**sizes, **options}).eval()
    for block in model.blocks:
        block.attn.fused_attn = fused
    return model


def swin(**options: Any) -> Any:
    sizes = {"img_size": 16, "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (2,), "num_heads": (2,)}
    seed(0)
    return SwinTransformer(**{**sizes, "num_classes": 5, **options}).eval()


def images(size: int = 16, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def grafted(model: Any, spec: str) -> Any:
    """Graft the model, with random values unless the graft is to start as the identity."""
    attngraft.graft(model, spec)
    if spec not in UNCHANGED:
        randomize(model, only_grafts=True)
    return model


def run(model: nn.Module, call: Callable[..., Tensor], x: Tensor, **given: Any) -> tuple[Tensor, list[Tensor]]:
    """Return the output, and the gradients of the input and of all parameters that have one."""
    x = x.clone().requires_grad_()
    output = call(model, x, **given)
    output.float().square().sum().backward()
    return output.detach(), [each.grad for each in (x, *model.parameters()) if each.grad is not None]


def check_finite(output: Tensor, gradients: list[Tensor]) -> None:
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)


def features(model: Any, x: Tensor, **given: Any) -> Tensor:
    found: Tensor = model.forward_features(x, **given)
    return found


def attended(model: Any, x: Tensor, mask: Tensor, *, need_weights: bool = False) -> Tensor:
    found: Tensor = model(x, x, x, attn_mask=~mask if mask.dtype == torch.bool else mask, need_weights=need_weights)[0]
    return found


def plainly(model: Any, x: Tensor) -> Tensor:
    found: Tensor = model(x)
    return found


# -- the table -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.product)],  # with float32's range
    ids=lambda dtype: str(dtype)[6:],
)
@pytest.mark.parametrize("case", ["huge logits", "masked rows", "one token", "empty batch"])
@pytest.mark.parametrize("spec", ALL)
def test_values_and_gradients_are_finite(spec: str, case: str, dtype: torch.dtype) -> None:
    model: Any
    if case == "one token" and spec in SWIN:
        model, x = swin(img_size=4, patch_size=4, window_size=1), images(4)
    elif case == "one token":
        prefix = {} if spec in CLASS else {"class_token": False, "global_pool": "avg"}  # the other token is the class
        model, x = vit(img_size=8, **prefix), images(8)
    elif spec in SWIN:
        model, x = swin(), images(batch=0 if case == "empty batch" else 2)
    else:
        model, x = vit(), images(batch=0 if case == "empty batch" else 2)
    if spec in SWIN and case == "masked rows":
        pytest.skip("windows take no mask")
    if spec in SWIN and case == "empty batch":
        with pytest.raises(RuntimeError):
            swin()(x)  # nor does the host
        pytest.skip("the host refuses an empty batch")
    if case == "huge logits":
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("qkv.weight"):
                    parameter[: 2 * parameter.shape[1]] *= 300
        with attngraft.record(model, ["scores"]) as recording, torch.no_grad():
            model(x)
        assert any(place["scores"].abs().max() > 1e3 for place in recording.values())
    model, x = grafted(model, spec).to(dtype), x.to(dtype)
    if case != "masked rows":
        output, gradients = run(model, plainly, x)
    elif spec.startswith(REFUSING):
        with pytest.raises(UsageError, match="with a mask over pairs of tokens"):
            features(model, x, attn_mask=PAIRS)
        return
    else:
        output, gradients = run(model, features, x, attn_mask=PAIRS)
    assert output.dtype == dtype
    assert len(output) == len(x)
    check_finite(output, gradients)


# -- masked rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("spec", AT_MAPS)
def test_queries_without_visible_keys(spec: str, fused: bool, mask: str) -> None:
    """They get what the host's fused kernel gives, also where the host's explicit attention gives NaN."""
    expected, _ = run(vit(), features, images(), attn_mask=MASKS[mask])
    output, gradients = run(grafted(vit(fused=fused), spec), features, images(), attn_mask=MASKS[mask])
    check_finite(output, gradients)
    if spec in UNCHANGED:
        torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("value", [-1e4, -1e9, LOWEST, INFINITY])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("spec", AT_MAPS)
def test_hidden_tokens_change_nothing(spec: str, fused: bool, value: float) -> None:
    """Any number with which hosts mask hides a token from all others, as a boolean mask does."""
    model = grafted(vit(fused=fused), spec)
    attend = model.blocks[0].attn
    tokens = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(2))
    changed = tokens.clone()
    changed[:, 2] = 3
    mask = torch.zeros(2, 1, 5, 5).masked_fill(~SEEN, value)
    with torch.no_grad():
        expected = attend(tokens, attn_mask=mask == 0)[:, SEEN]
        torch.testing.assert_close(attend(tokens, attn_mask=mask)[:, SEEN], expected)
        torch.testing.assert_close(attend(changed, attn_mask=mask)[:, SEEN], expected)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("spec", ["identity(stage=weights)", "uniform_heads"])
def test_queries_without_visible_keys_in_torchs_attention(spec: str, need_weights: bool, mask: str) -> None:
    seed(0)
    host = nn.MultiheadAttention(24, 3, batch_first=True).eval()
    tokens = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1))
    expected, _ = run(host, attended, tokens, mask=MASKS[mask])
    output, gradients = run(grafted(host, spec), attended, tokens, mask=MASKS[mask], need_weights=need_weights)
    check_finite(output, gradients)
    if spec in UNCHANGED:
        torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("spec", AT_MAPS)
def test_a_sequence_of_padding_in_a_transformer(spec: str, attention: str) -> None:
    """With `sdpa`, its queries attend to no token; with `eager`, to all equally."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'attngraft[hf]'")
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8, attn_implementation=attention)
    padding = torch.tensor([[1, 1, 0, 1, 1], [0, 0, 0, 0, 0]])

    def make() -> Any:
        seed(0)
        return transformers.ViTModel(config, add_pooling_layer=False).eval()

    def states(model: Any, x: Tensor) -> Tensor:
        found: Tensor = model(x, attention_mask=padding).last_hidden_state
        return found

    expected, _ = run(make(), states, images())
    output, gradients = run(grafted(make(), spec), states, images())
    check_finite(output, gradients)
    if spec in UNCHANGED:
        torch.testing.assert_close(output[padding > 0], expected[padding > 0])
        torch.testing.assert_close(output[1], expected[1])


def test_recorded_maps_have_values_at_queries_without_visible_keys() -> None:
    model = vit()
    with attngraft.record(model, ["weights"]) as recording:
        features(model, images(), attn_mask=PAIRS)
    assert recording["blocks.0.attn"]["weights"].isfinite().all()


# -- empty sequences -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 0), (0, 5), (0, 0)])
@pytest.mark.parametrize("spec", [spec for spec in ALL if spec not in (*SWIN, *CLASS, "ghost")])
def test_empty_sequences_and_batches(spec: str, shape: tuple[int, int]) -> None:
    seed(0)
    host = nn.TransformerEncoderLayer(24, 3, 32, dropout=0.0, batch_first=True)
    output, gradients = run(grafted(host, spec), plainly, torch.zeros(*shape, 24))
    assert output.shape == (*shape, 24)
    check_finite(output, gradients)
    with torch.no_grad():
        assert host.eval()(torch.zeros(*shape, 24)).shape == (*shape, 24)
