"""The authors' checkpoints in BiXT: every layout, other grids and heads, refusals; generated from our own model."""

from __future__ import annotations

import argparse
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor, nn

import attngraft
import attngraft.models  # registers the models
from attngraft.errors import AttngraftError, HostError, UsageError
from attngraft.models.bixt.model import checkpoint_refusal_fn
from attngraft.models.weights import load_official
from attngraft.tensors import meta_device

NAME = "bixt_ti_l64_p16"
TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "stride": 8, "embed_dim": 24, "num_heads": 6, "num_latents": 4}
TINY |= {"depth": 2, "num_classes": 5}
POSITIONS = "fourier_pos_encode.pos"


def make(name: str = NAME, *, seed: int = 0, **changes: Any) -> nn.Module:
    torch.manual_seed(seed)
    model: nn.Module = timm.create_model(name, **{**TINY, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))  # the head starts at zero
    return model.eval()


def saved(path: Path, state: dict[str, Tensor], **entries: Any) -> Path:
    """As timm's training script saves it."""
    torch.save(
        {"epoch": 799, "arch": NAME, "args": argparse.Namespace(model=NAME), "state_dict": state, **entries}, path
    )
    return path


def official(path: Path, **changes: Any) -> Path:
    """A checkpoint of our model, with a wrapper's names."""
    state = {f"_orig_mod.{name}": value for name, value in make(seed=1, **changes).state_dict().items()}
    return saved(path, state)


def zipped(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "bixt_ti_l64_p16.zip", "w") as archive:
        archive.write(official(folder / "x.pth"), "model_best.pth.tar")
    return folder / "bixt_ti_l64_p16.zip"


def bare(folder: Path) -> Path:
    torch.save(make(seed=1).state_dict(), folder / "bare.pth")
    return folder / "bare.pth"


def averaged(folder: Path) -> Path:
    state = make(seed=1).state_dict()
    return saved(folder / "ema.pth.tar", {name: 0 * value for name, value in state.items()}, state_dict_ema=state)


def as_safetensors(folder: Path) -> Path:
    safetensors.torch.save_file(make(seed=1).state_dict(), folder / "a.safetensors")
    return folder / "a.safetensors"


LAYOUTS: list[Callable[[Path], Path]] = [
    lambda folder: official(folder / "a.pth.tar"),
    zipped,
    bare,
    averaged,
    as_safetensors,
]


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_a_checkpoint_gives_the_model_that_it_is_of(tmp_path: Path, layout: Callable[[Path], Path]) -> None:
    path, images = layout(tmp_path), torch.randn(2, 3, 32, 32)
    model = make()
    fitted = load_official(model, path)
    assert torch.equal(model(images), make(seed=1)(images))
    assert str(fitted) == f"weights of {path} (with its head for 5 classes)"
    other = attngraft.create_model(NAME, weights=path, **TINY).eval()  # what --weights does
    assert torch.equal(other(images), model(images))


@pytest.mark.parametrize("size", [48, (32, 64), 16])
@pytest.mark.parametrize("positions", ["static", "dynamic"])
@torch.no_grad()
def test_weights_serve_any_grid(tmp_path: Path, size: Any, positions: str) -> None:
    path = official(tmp_path / "a.pth.tar")
    images = torch.randn(1, 3, *((size, size) if isinstance(size, int) else size))
    fresh = make(img_size=size)
    computed = fresh.state_dict()[POSITIONS].clone()
    model = make(img_size=size, positions=positions)
    load_official(model, path)
    if positions == "static":
        assert torch.equal(model.state_dict()[POSITIONS], computed)
    expected = make(seed=1, positions="dynamic")
    torch.testing.assert_close(model(images), expected(images))


@torch.no_grad()
def test_a_file_without_positions_serves_a_model_with_them(tmp_path: Path) -> None:
    path = official(tmp_path / "a.pth.tar", positions="dynamic")
    model, images = make(), torch.randn(1, 3, 32, 32)
    load_official(model, path)
    torch.testing.assert_close(model(images), make(seed=1)(images))


def test_the_published_name_of_224_pixels_serves_that_of_384(tmp_path: Path) -> None:
    """The whole model, of which only one tensor has another shape."""
    with meta_device():
        small, large = timm.create_model(NAME), timm.create_model(f"{NAME}_ft384")
    state = {
        name: torch.empty(0).expand(value.shape) if 0 in value.shape else torch.zeros(1).expand(value.shape)
        for name, value in small.state_dict().items()
    }
    assert POSITIONS in state
    path = saved(tmp_path / "a.pth.tar", state)
    assert large.to_empty(device="cpu").state_dict().keys() == state.keys() - {POSITIONS}
    assert load_official(large, path).new == ()


def test_layers_for_dense_tasks_take_the_whole_models_weights(tmp_path: Path) -> None:
    path = official(tmp_path / "a.pth.tar", depth=3)
    model = make(depth=3, dense=True)
    load_official(model, path)
    expected = make(seed=1, depth=3).state_dict()
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()}.keys() < expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_a_head_for_other_classes_stays_new_on_request(tmp_path: Path) -> None:
    path = official(tmp_path / "a.pth.tar")
    model = make(num_classes=3)
    head = model.head.weight.clone()
    with pytest.raises(HostError, match=r"head\.weight \(5, 24\) where \(3, 24\) fits.*new_head=True keeps a new head"):
        load_official(model, path)
    fitted = load_official(model, path, new_head=True)
    assert fitted.new == ("head.bias", "head.weight")
    assert torch.equal(model.head.weight, head)
    assert torch.equal(model.latents, make(seed=1).latents)


def test_all_misfits_are_listed_and_nothing_is_changed(tmp_path: Path) -> None:
    state = make(seed=1, num_latents=3).state_dict()
    lacking = "blocks.1.self_attention_latents.norm1.weight"
    del state[lacking]
    state |= {f"extra.{index}": torch.zeros(1) for index in range(12)}
    path = saved(tmp_path / "a.pth.tar", state)
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(HostError) as caught:
        load_official(model, path)
    message = str(caught.value)
    assert "a.pth.tar does not fit this BiXT" in message
    assert f"it lacks {lacking}" in message
    assert re.search(r"unexpected: extra\.0, extra\.1, extra\.10, .* and 4 more", message)
    assert "other shapes: latents (1, 3, 24) where (1, 4, 24) fits" in message
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_of_other_heads_are_refused_though_their_shapes_fit(tmp_path: Path) -> None:
    """The paper's models have heads of 64, the published weights of 32."""
    path = official(tmp_path / "a.pth.tar")
    model = make("bixt_ti_h3_l64_p16", num_heads=3)
    with pytest.raises(
        HostError, match=r"of bixt_ti_l64_p16, whose attention has 6 heads, and this model's has 3 heads.*num_heads=6"
    ):
        load_official(model, path)
    with pytest.raises(HostError, match="whose attention has 6 heads"):
        attngraft.create_model("bixt_ti_h3_l64_p16", weights=path, **{**TINY, "num_heads": 3})
    with pytest.raises(HostError, match=r"3 heads \(6 among latents\)"):
        load_official(make(ca_heads=3), path)


def test_heads_follow_from_the_name() -> None:
    model = make()
    assert checkpoint_refusal_fn("bixt_ti_l32_p16s8", {}, model) is None
    assert checkpoint_refusal_fn("bixt_ti_h3_l64_p16", {}, model) is not None
    assert checkpoint_refusal_fn("bixt_ti_h3_l64_p16", {"num_heads": 6}, model) is None
    assert checkpoint_refusal_fn("bixt_ti_l64_p16", {"sa_heads": 3}, model) is not None
    assert checkpoint_refusal_fn("sequential_d12", {}, model) is not None
    assert checkpoint_refusal_fn("vit_tiny_patch16_224", {}, model) is None


def test_only_published_models_are_filled_and_only_by_files_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"published weights \(bixt_ti_l64_p16, .*\), not a Linear; for others, call attngraft\.create_model",
    ):
        load_official(nn.Linear(2, 2), tmp_path / "a.pth")
    with pytest.raises(UsageError, match="no such file"):
        load_official(make(), tmp_path / "a.pth")


def test_weights_come_before_grafts(tmp_path: Path) -> None:
    path = official(tmp_path / "a.pth.tar")
    grafted = make()
    attngraft.graft(grafted, "cb_s@blocks.0.self_attention_latents.mlp")
    with pytest.raises(UsageError, match=r"without grafts; load first, then call attngraft\.graft"):
        load_official(grafted, path)
    safetensors.torch.save_file(grafted.state_dict(), tmp_path / "grafted.safetensors")
    with pytest.raises(HostError, match="trained with different grafts"):
        load_official(make(), tmp_path / "grafted.safetensors")


class Runs:
    """What, unpickled, would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("1 / 0",)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth.tar", make(seed=1).state_dict(), metric=Runs())
    model = make()
    before = model.latents.clone()
    with pytest.raises(
        AttngraftError, match=r"a\.pth\.tar contains Python objects besides tensors \(eval\).*If you trust the file"
    ):
        load_official(model, path)
    assert torch.equal(model.latents, before)


# -- others' -----------------------------------------------------------------------------------------------------------

SIZES: dict[str, dict[str, Any]] = {
    "elsa_swin_tiny": {"img_size": 56, "embed_dim": 8, "depths": (1, 1, 1, 2), "num_heads": (1, 1, 2, 2)},
    "elsa_volo_d1": {
        "img_size": 32,
        "layers": (1, 1),
        "embed_dims": (16, 16),
        "num_heads": (1, 2),
        "stem_hidden_dim": 4,
    },
    "t2t_vit_14": {"img_size": 32, "embed_dim": 12, "depth": 1, "num_heads": 3},
}


@pytest.mark.parametrize("name", SIZES)
def test_checkpoints_of_other_authors(name: str, tmp_path: Path) -> None:
    """As their training scripts leave them: with the model's name, buffers that are computed, and DDP's prefix."""
    torch.manual_seed(0)
    trained = timm.create_model(name, num_classes=7, **SIZES[name]).eval()
    state = {f"module.{key}": value for key, value in trained.state_dict().items()}
    if name == "elsa_swin_tiny":
        state["module.layers.3.blocks.0.attn.relative_id"] = torch.zeros(16, dtype=torch.int64)
    torch.save({"arch": name, "epoch": 300, "state_dict": state}, tmp_path / "checkpoint.pth.tar")
    torch.manual_seed(1)
    model = timm.create_model(name, num_classes=7, **SIZES[name]).eval()
    images = torch.randn(1, 3, SIZES[name]["img_size"], SIZES[name]["img_size"])
    assert load_official(model, tmp_path / "checkpoint.pth.tar").new == ()
    with torch.no_grad():
        assert torch.equal(model(images), trained(images))
    other = timm.create_model(name, num_classes=3, **SIZES[name])
    with pytest.raises(HostError, match="does not fit"):
        load_official(other, tmp_path / "checkpoint.pth.tar")
    assert load_official(other, tmp_path / "checkpoint.pth.tar", new_head=True).new
