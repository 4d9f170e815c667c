"""Weights from files: formats, adaptation, and refusals."""

from __future__ import annotations

import argparse
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor, nn

import attngraft
from attngraft.errors import AttngraftError, HostError, UsageError
from attngraft.models.weights import read_weights
from tests.export.runs import move_batch_norms

VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
SWIN: dict[str, Any] = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "num_classes": 5}
SWIN |= {"depths": (2, 2), "num_heads": (2, 4)}
LEVIT: dict[str, Any] = {"img_size": 32, "embed_dim": (16, 24), "key_dim": 4, "depth": (1, 1), "num_heads": (2, 3)}
LEVIT |= {"num_classes": 5}
HOSTS = {"vit_tiny_patch16_224": VIT, "swin_tiny_patch4_window7_224": SWIN, "levit_128s": LEVIT}
HEADS = {
    "vit_tiny_patch16_224": ("head.",),
    "swin_tiny_patch4_window7_224": ("head.fc.",),
    "levit_128s": ("head.linear.", "head_dist.linear."),
}


def make(name: str = "vit_tiny_patch16_224", *, seed: int = 0, **changes: Any) -> nn.Module:
    torch.manual_seed(seed)
    model: nn.Module = timm.create_model(name, **{**HOSTS[name], **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)  # biases and tables that start at zero, too
    if norms := [module for module in model.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]:
        move_batch_norms(model)
        for norm in norms:
            norm.momentum = 1.0  # statistics as training leaves them, so that images still differ at the end
        with torch.no_grad():
            model.train()(torch.randn(64, 3, 32, 32))
    return model.eval()


def saved(model: nn.Module, path: Path) -> Path:
    safetensors.torch.save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
    return path


def load(path: Path, name: str = "vit_tiny_patch16_224", graft: str | None = None, **changes: Any) -> nn.Module:
    return attngraft.create_model(name, graft, weights=path, **{**HOSTS[name], **changes}).eval()


def assert_same(model: nn.Module, state: Mapping[str, Tensor], *, but: str | tuple[str, ...] = ()) -> None:
    own = model.state_dict()
    for name, value in state.items():
        if not name.startswith(but):
            assert torch.equal(own[name], value), name


Wrap = Callable[[dict[str, Tensor]], Any]
WRAPPED: dict[str, Wrap] = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"epoch": 3, "state_dict": state, "args": argparse.Namespace(lr=0.1)},
    "model": lambda state: {"model": state, "optimizer": {"step": 3}},
    "ddp": lambda state: {"model": {f"module.{name}": value for name, value in state.items()}},
    "compiled": lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
    "lightning": lambda state: {"state_dict": {f"model.{name}": value for name, value in state.items()}},
    "two wrappers": lambda state: {f"net.backbone.{name}": value for name, value in state.items()},
    "average": lambda state: {
        "state_dict": {name: torch.zeros_like(value) for name, value in state.items()},
        "state_dict_ema": state,
    },
}


@pytest.mark.parametrize(
    ("wrap", "suffix"), [*((wrap, "pth") for wrap in WRAPPED), ("plain", "pt"), ("plain", "bin"), ("model", "pth.tar")]
)
def test_torch_files_and_their_wrappers(tmp_path: Path, wrap: str, suffix: str) -> None:
    state = make(seed=1).state_dict()
    path = tmp_path / f"weights.{suffix}"
    torch.save(WRAPPED[wrap](dict(state)), path)
    assert_same(load(path), state)


@pytest.mark.parametrize("name", HOSTS)
def test_safetensors_give_the_same_outputs(tmp_path: Path, name: str) -> None:
    model = make(name, seed=1)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(load(saved(model, tmp_path / "a.safetensors"), name)(images), model(images))


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("in_file", [5, 0])
def test_a_head_of_other_classes_or_none_stays_new(tmp_path: Path, name: str, in_file: int) -> None:
    model = make(name, seed=1, num_classes=in_file)
    path = saved(model, tmp_path / "a.safetensors")
    torch.manual_seed(7)
    fresh = timm.create_model(name, **{**HOSTS[name], "num_classes": 3})
    torch.manual_seed(7)
    host = timm.create_model(name, **{**HOSTS[name], "num_classes": 3})
    fitted = read_weights(path).fill_host(host)
    heads = ("head.", "head_dist.") if name == "levit_128s" and not in_file else HEADS[name]  # with their batch norms
    assert_same(host, model.state_dict(), but=heads)
    new = {key: value for key, value in fresh.state_dict().items() if key.startswith(heads)}
    assert_same(host, new)
    assert set(fitted.new) == {key for key in new if not key.endswith("num_batches_tracked")}
    assert str(fitted).startswith(f"weights of {path} (a new head: {', '.join(fitted.new[:2])}")


def test_a_head_of_as_many_classes_is_loaded(tmp_path: Path) -> None:
    path = saved(make(seed=1), tmp_path / "a.safetensors")
    assert str(read_weights(path).fill_host(make())) == f"weights of {path} (with its head for 5 classes)"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vit_tiny_patch16_224", {"img_size": 48}),
        ("vit_tiny_patch16_224", {"img_size": (32, 48)}),
        ("vit_tiny_patch16_224", {"patch_size": 4}),
        ("vit_tiny_patch16_224", {"in_chans": 1}),
        ("swin_tiny_patch4_window7_224", {"img_size": 48, "window_size": 6}),
        ("swin_tiny_patch4_window7_224", {"in_chans": 1}),
    ],
)
def test_another_input_fits_as_timm_makes_it_fit(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    path = saved(make(name, seed=1), tmp_path / "a.safetensors")
    arguments = {**HOSTS[name], **changes}
    overlay = {"file": str(path), "num_classes": 5, "custom_load": False}
    expected = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **arguments)
    host = timm.create_model(name, **arguments)
    fitted = read_weights(path).fill_host(host)
    assert_same(host, expected.state_dict())
    assert fitted.resized
    assert all(there in str(fitted) for there in fitted.resized[:3])


def test_what_does_not_fit_is_listed_and_nothing_is_changed(tmp_path: Path) -> None:
    state = dict(make(seed=1, depth=3, embed_dim=16).state_dict())
    del state["norm.bias"]
    safetensors.torch.save_file(state, tmp_path / "a.safetensors")
    host = make()
    before = {name: value.clone() for name, value in host.state_dict().items()}
    with pytest.raises(HostError) as caught:
        read_weights(tmp_path / "a.safetensors").fill_host(host)
    message = str(caught.value)
    assert "it lacks norm.bias" in message
    assert re.search(r"unexpected: blocks\.2\.attn\.proj\.bias, .* and \d+ more", message)
    assert "cls_token (1, 1, 16) where (1, 1, 32) fits" in message
    assert "--host-arg" in message
    assert_same(host, before)


def test_weights_of_another_family_are_refused(tmp_path: Path) -> None:
    path = saved(make("swin_tiny_patch4_window7_224"), tmp_path / "a.safetensors")
    with pytest.raises(HostError, match=r"a\.safetensors"):
        load(path)


class Trap:
    """Something that would run when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemError('code of the file ran')",)


def test_a_pickle_that_holds_more_than_tensors_is_not_read(tmp_path: Path) -> None:
    torch.save({"state_dict": {}, "extra": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(
        HostError, match=r"could run arbitrary code, so it is refused.*torch\.save\(model\.state_dict\(\)"
    ):
        read_weights(tmp_path / "trap.pth")
    torch.save(make(), tmp_path / "model.pth")
    with pytest.raises(HostError, match="Python objects besides tensors"):
        read_weights(tmp_path / "model.pth")
    (tmp_path / "old.pth").write_bytes(pickle.dumps({"weight": Trap()}))
    with pytest.raises(HostError, match=r"old\.pth"):
        read_weights(tmp_path / "old.pth")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.safetensors", b"", r"a\.safetensors is damaged, or not a safetensors file"),
        ("a.safetensors", b"\xff" * 99, r"a\.safetensors is damaged, or not a safetensors file"),
        ("a.pth", b"", r"a\.pth is damaged, or not a torch file"),
        ("a.pth", b"PK\x03\x04 and no more", r"a\.pth is damaged, or not a torch file"),
        ("a.bin", b"<html>404 not found</html>", r"a\.bin is damaged, or not a torch file|besides tensors"),
        ("a.txt", b"text", r"cannot read weights from \.txt files, only from \.safetensors"),
        ("a.pth", None, "no such file; pass a weights file"),
    ],
)
def test_files_that_are_no_weights(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(AttngraftError, match=message):
        read_weights(tmp_path / name)


@pytest.mark.parametrize("value", [[torch.zeros(2)], torch.zeros(2), {"epoch": 3}, {"model": {}}])
def test_torch_files_without_named_tensors(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "a.pth")
    with pytest.raises(HostError, match=r"a\.pth"):
        read_weights(tmp_path / "a.pth")


def test_folders_stand_for_the_weights_in_them(tmp_path: Path) -> None:
    run, model = tmp_path / "run", make(seed=1)
    (run / "checkpoints").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"run has no checkpoints/best\.safetensors or"):
        read_weights(run)
    saved(model, run / "other.safetensors")
    with pytest.raises(UsageError, match=r"it contains other\.safetensors: pass one of them"):
        read_weights(run)
    torch.save({"format": 1, "model": dict(make(seed=2).state_dict()), "ema": None}, run / "checkpoints" / "last.pt")
    assert_same(load(run), make(seed=2).state_dict())
    saved(model, run / "checkpoints" / "best.safetensors")
    assert_same(load(run), model.state_dict())
    (tmp_path / "exported").mkdir()
    saved(model, tmp_path / "exported" / "model.safetensors")
    assert_same(load(tmp_path / "exported"), model.state_dict())


def test_grafts_in_a_file_must_match(tmp_path: Path) -> None:
    model = make(seed=1)
    attngraft.graft(model, "cb_s + vertical")
    with torch.no_grad():
        model.blocks[0].mlp.grafts.cb_s.scale.normal_()
    path = saved(model, tmp_path / "a.safetensors")
    assert_same(load(path, graft="cb_s + vertical"), model.state_dict())
    for other in (None, "cb_s", "cb_s@blocks.0 + vertical"):
        with pytest.raises(HostError, match=r"trained with different grafts from this model's: unexpected:"):
            load(path, graft=other)
    only = {name: value for name, value in model.state_dict().items() if ".grafts." in name}
    safetensors.torch.save_file(only, tmp_path / "grafts.safetensors")
    with pytest.raises(HostError, match=r"has no weights of a host: only grafts; use attngraft\.load_grafts"):
        read_weights(tmp_path / "grafts.safetensors")


def test_pretrained_and_weights_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pass only one"):
        attngraft.create_model("vit_tiny_patch16_224", pretrained=True, weights=tmp_path)


def test_tables_of_indices_are_those_of_the_model(tmp_path: Path) -> None:
    model = attngraft.create_model("torchvision:swin_t")
    weights = model.state_dict()
    torch.save(weights, tmp_path / "x.pth")
    read_weights(tmp_path / "x.pth").fill_host(attngraft.create_model("torchvision:swin_t"))
    name = next(name for name in weights if name.endswith("relative_position_index"))
    torch.save({**weights, name: weights[name].flip(0)}, tmp_path / "x.pth")
    with pytest.raises(HostError, match=rf"{name} with other values than those that the model computes"):
        read_weights(tmp_path / "x.pth").fill_host(model)
