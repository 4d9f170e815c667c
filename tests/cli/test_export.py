"""`attngraft export` as a user types it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

import attngraft
from attngraft.cli import main
from attngraft.export import onnx, torch_export
from attngraft.training.evaluate import trained_model
from attngraft.training.run_folder import read_run
from tests.export.runs import LEVIT, make_run
from tests.slow import product_but


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def test_what_was_made_and_checked_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = make_run(tmp_path / "run", "cb + horizontal")
    assert run("export", trained, "--out", tmp_path / "out", "--to", "hf", "--fold", "--checkpoint", "best") == 0
    told = capsys.readouterr().out
    assert "model.safetensors" in told
    assert "folding" in told
    assert "cb (blocks.0.mlp, blocks.1.mlp): folded: the half of cb" in told
    assert "horizontal (blocks.0.attn, blocks.1.attn): not folded" in told
    assert "plain timm loads the host without its grafts" in told
    assert attngraft.load(tmp_path / "out") is not None


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", make_run(tmp_path / "run"), "-o", tmp_path / "out", "--dtype", "bf16", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [check["file"] for check in told["checks"]] == ["rounding to bfloat16", "model.safetensors"]
    assert told["uploaded_to"] is None


def test_pushing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def push(folder: Path, repo_id: str, **options: Any) -> str:
        asked.append((folder, repo_id, options))
        return "https://hub.example/jane/flowers"

    monkeypatch.setattr("attngraft.export.hub.push_to_hub", push)
    trained, out = make_run(tmp_path / "run"), tmp_path / "out"
    assert run("export", trained, "--out", out, "--push", "flowers") == 2
    assert "USER/NAME" in capsys.readouterr().err
    assert not out.exists()
    assert run("export", trained, "--out", out, "--push", "jane/flowers", "--private") == 0
    assert asked == [(out, "jane/flowers", {"private": True})]
    assert "uploaded to https://hub.example/jane/flowers" in capsys.readouterr().out


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = make_run(tmp_path / "run")
    (trained / "finished.json").unlink()
    assert run("export", trained, "--out", tmp_path / "out") == 2
    assert "not finished (1 of 30 epochs)" in capsys.readouterr().err
    assert run("export", trained, "--out", tmp_path / "out", "--unfinished") == 0
    assert run("export", trained, "--out", tmp_path / "out", "--unfinished") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run("export", trained, "--out", tmp_path / "out", "--unfinished", "--overwrite") == 0
    assert run("export", trained, "--out", tmp_path / "new", "--unfinished", "--checkpoint", "ema") == 2
    assert "no moving average" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_folded_host_that_timm_cannot_make_is_no_folder_for_timm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    levit = make_run(tmp_path / "run", "cb", host=LEVIT)
    assert run("export", levit, "--out", tmp_path / "out", "--to", "torch", "--to", "hf", "--fold") == 2
    assert "remove --fold for timm, or --to hf for a folded model" in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


#: what a folder holds for every target, and what comes with each of them
ALWAYS = {"README.md", "attngraft.json", "checksums.json", "model.safetensors", "grafts.safetensors"}
ADDED = {"torch": set[str](), "pt2": {"model.pt2"}, "onnx": {"model.onnx"}, "hf": {"config.json"}}
ALLOWED = {"folding": "1e-05", "model.safetensors": "1e-06", "model.pt2": "1e-05", "model.onnx": "0.0001"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was really trained, from the command line."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    small = ["--host-arg", "depth=1", "--host-arg", "embed_dim=24", "--set", "train.batch_size=256"]
    short = ["--set", "optimizer.lr=0.01", "--epochs", "1", "--recipe", "digits"]
    assert run("train", *short, *small, "--graft", "cb + horizontal", "--out", folder) == 0
    return folder


def outputs(folder: Path, target: str, images: Tensor) -> Tensor:
    """By what the target is for, and by nothing else of the folder; of timm's host with the grafts of the folder."""
    if target == "pt2":
        return torch_export.open_program(folder / "model.pt2")[0](images)
    if target == "onnx":
        return onnx.open_onnx(folder / "model.onnx")[0](images)
    model = attngraft.load(folder)
    if target == "hf":
        model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        attngraft.load_grafts(model, folder / "grafts" / "grafts.safetensors")
    with torch.no_grad():
        found: Tensor = model(images)
    return found


@pytest.mark.parametrize(
    ("target", "fold"),
    [
        *itertools.product(["torch", "hf"], [False, True]),
        *product_but(itertools.product(["pt2", "onnx"], [False, True]), [("pt2", False), ("onnx", True)]),
    ],
)
def test_every_target_of_a_run_that_was_trained(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, fold: bool
) -> None:
    out = tmp_path / "out"
    assert run("export", trained, "--out", out, "--to", target, *(["--fold"] if fold else [])) == 0
    told = capsys.readouterr().out
    lines = told.splitlines()
    files = {path.name: path for path in out.rglob("*") if path.is_file()}
    assert files.keys() == ALWAYS | ADDED[target]
    for path in files.values():
        assert any(line.startswith(f"{path}  ") for line in lines), path

    checked = {"model.safetensors"} | ({"folding"} if fold else set()) | (ADDED[target] - {"config.json"})
    assert {check["file"] for check in json.loads(files["attngraft.json"].read_text())["checks"]} == checked
    for name, allowed in ALLOWED.items():
        rows = [line.split() for line in lines if f" {name} " in line and " ┃ " not in line and str(out) not in line]
        assert [row[-2] for row in rows] == ([allowed] if name in checked else []), (name, told)
    said = " ".join(told.split())
    assert ("cb (blocks.0.mlp): folded: the half of cb is folded into the weights of the linear layer" in said) == fold
    assert ("horizontal (blocks.0.attn): not folded: no part of it can be folded into a linear layer" in said) == fold
    assert ("plain timm loads the host without its grafts" in said) == (target == "hf")
    assert f"use it: attngraft predict {out} IMAGES..." in said

    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = trained_model(read_run(trained), "last").eval()(images)
    tolerance = 1e-4 if target == "onnx" else 1e-5
    torch.testing.assert_close(outputs(out, target, images), expected, rtol=tolerance, atol=tolerance)
