"""`attngraft convert`: what is written, what is said of it, what is refused."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import attngraft
import attngraft.models  # registers the models
from attngraft.cli import main

NAME = "bixt_ti_l64_p16"
TINY: dict[str, Any] = {"img_size": 32, "patch_size": 8, "stride": 8, "embed_dim": 24, "num_heads": 6, "num_latents": 4}
TINY |= {"depth": 2, "num_classes": 5}
HOST = ["--host", NAME, *(f"--host-arg={name}={value}" for name, value in TINY.items())]


def run(arguments: list[Any]) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def tiny(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model: nn.Module = timm.create_model(NAME, **TINY)
    nn.init.normal_(model.head.weight)
    return model.eval()


def checkpoint(path: Path, model: nn.Module, **entries: Any) -> Path:
    state = {f"module.{name}": value for name, value in model.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state, "args": argparse.Namespace(lr=0.1), "optimizer": {}, **entries}, path)
    return path


def test_a_checkpoint_becomes_safetensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tiny(), tmp_path / "out.safetensors"
    path = checkpoint(tmp_path / "model_best.pth.tar", model)
    assert run(["convert", path, out, *HOST]) == 0
    shown = capsys.readouterr().out
    for line in (
        str(path),
        "weights from      state_dict, epoch 3",
        f"model             {NAME}",
        f"{len(model.state_dict())}, ",
        "removed prefixes  module.",
        "ignored           epoch, args, optimizer",
        "checked           names and shapes match the model",
        f"use it: attngraft train --host {NAME} --weights {out}",
    ):
        assert line in shown
    with safe_open(out, framework="pt") as file:
        facts = json.loads(file.metadata()["attngraft"])
    assert facts == {"architecture": NAME, "arguments": TINY, "epoch": 3, "layout": "state_dict"}
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(attngraft.create_model(NAME, weights=out, **TINY).eval()(images), model(images))
    assert run(["convert", out, tmp_path / "again.safetensors"]) == 0  # the file knows its model and arguments
    assert (tmp_path / "again.safetensors").stat().st_size


def test_the_average_or_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, average = tiny(0), tiny(1)
    path = checkpoint(tmp_path / "a.pth.tar", model, state_dict_ema=average.state_dict())
    for option, expected in (([], average), (["--ema"], average), (["--no-ema"], model)):
        assert run(["convert", path, tmp_path / "o.safetensors", *HOST, *option, "--overwrite", "--json"]) == 0
        assert torch.equal(load_file(tmp_path / "o.safetensors")["latents"], expected.latents)
        said = json.loads(capsys.readouterr().out)
        assert said["layout"] == ("state_dict" if expected is model else "state_dict_ema")
        assert said["checked"] is True
        assert said["tensors"] == len(model.state_dict())


@pytest.mark.parametrize("by", ["arch", "file name"])
def test_the_model_is_named_by_the_checkpoint_or_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    with torch.device("meta"):
        state = {
            name: torch.zeros(1, device="cpu").expand(value.shape)
            for name, value in timm.create_model(NAME).state_dict().items()
        }
    entries = {"arch": NAME} if by == "arch" else {}
    path = tmp_path / ("x.pth" if by == "arch" else f"{NAME}.pth.tar")
    torch.save({"state_dict": state, **entries}, path)
    assert run(["convert", path, tmp_path / "o.safetensors", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["model"], said["checked"], said["numbers"]) == (NAME, True, 15_121_192 + 64 * 14 * 14)


def test_a_model_that_nobody_names_is_not_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "a.pth")
    assert run(["convert", tmp_path / "a.pth", tmp_path / "o.safetensors"]) == 0
    shown = capsys.readouterr().out
    assert "unknown, so names and shapes were not checked (--host MODEL)" in shown
    assert "use it" not in shown
    assert torch.equal(load_file(tmp_path / "o.safetensors")["weight"], torch.ones(2))


def test_any_model_of_timm_is_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 3}
    path = checkpoint(tmp_path / "a.pth", timm.create_model("vit_tiny_patch16_224", num_classes=7, **arguments))
    options = [f"--host-arg={name}={value}" for name, value in arguments.items()]
    assert run(["convert", path, tmp_path / "o.safetensors", "--host", "vit_tiny_patch16_224", *options]) == 0
    assert "except those of the head, which has other classes or is incomplete" in capsys.readouterr().out


def test_refusals_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = checkpoint(tmp_path / "a.pth.tar", tiny()), tmp_path / "o.safetensors"
    trap = checkpoint(tmp_path / "trap.pth", tiny(), metric=Path("x"))
    torch.save({"state_dict": {}}, tmp_path / "empty.pth")
    (tmp_path / "folder.safetensors").mkdir()
    for arguments, code, message in (
        ([path, out, "--host", NAME], 2, "does not fit this BiXT: it lacks"),
        ([path, out, "--host", "bixt_ti_l64_p61"], 2, "did you mean bixt_ti_l64_p16"),
        ([path, out, "--host-arg", "depth=2"], 2, "--host-arg requires --host"),
        ([path, out, *HOST, "--ema"], 2, "has no moving average"),
        ([path, tmp_path / "o.pth"], 2, "ends in .safetensors"),
        ([path, tmp_path / "folder.safetensors", *HOST, "--overwrite"], 2, "is a folder; pass a file name"),
        ([path, path / "o.safetensors", *HOST], 2, "a.pth.tar"),
        ([tmp_path / "none.pth", out], 2, "no such file; pass a weights file"),
        ([tmp_path / "empty.pth", out], 2, "empty.pth has no weights of a host: no named tensors"),
        ([trap, out], 2, "trap.pth contains Python objects besides tensors (pathlib."),
    ):
        assert run(["convert", *arguments]) == code, message
        assert message in capsys.readouterr().err
        assert not out.exists()
    out.write_bytes(b"precious")
    assert run(["convert", path, out, *HOST]) == 2
    assert "exists already; pass another name, or --overwrite to replace it" in capsys.readouterr().err
    assert out.read_bytes() == b"precious"
    assert run(["convert", path, out, *HOST, "--overwrite"]) == 0
    assert load_file(out)["latents"].shape == (1, 4, 24)
    assert [each.name for each in tmp_path.iterdir() if each.name.endswith(".tmp")] == []


def test_an_interrupted_conversion_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = checkpoint(tmp_path / "a.pth.tar", tiny()), tmp_path / "new" / "o.safetensors"
    assert run(["convert", path, out, *HOST]) == 0  # the folder is made
    before = out.read_bytes()

    def no_power(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("attngraft.files.os.replace", no_power)
    assert run(["convert", checkpoint(tmp_path / "b.pth.tar", tiny(1)), out, *HOST, "--overwrite"]) != 0
    assert out.read_bytes() == before
    assert [each.name for each in out.parent.iterdir()] == [out.name]


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"mask": torch.tensor([-torch.inf]), "scale": torch.tensor([torch.nan])}, tmp_path / "a.pth")
    assert run(["convert", tmp_path / "a.pth", tmp_path / "out.safetensors"]) == 2
    assert "a.pth: scale contains values that are not numbers" in capsys.readouterr().err
    assert not (tmp_path / "out.safetensors").exists()
