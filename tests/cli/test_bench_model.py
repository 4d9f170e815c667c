"""`attngraft bench model` on every kind of model that `eval` opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attngraft.export.run import export_run
from attngraft.models.convert import convert_checkpoint
from attngraft.models.create import create_model
from attngraft.timing import count_parameters
from attngraft.training.loop import train
from attngraft.training.recipe import load_recipe
from tests.cli.test_verbs import TINY, run
from tests.export.runs import VIT, make_run

TIMED = ["--batch-size", "2", "--threads", "1"]


def measured(*arguments: object, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["bench", "model", *map(str, arguments), *TIMED, "--json"]) == 0
    models: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["models"]
    return models


@pytest.mark.slow
def test_runs_folders_and_files_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, grafted = make_run(tmp_path / "plain"), make_run(tmp_path / "grafted", "horizontal")
    export_run(grafted, tmp_path / "taken")
    named = tmp_path / "named.safetensors"
    convert_checkpoint(
        plain / "checkpoints" / "best.safetensors", named, host=VIT["name"], host_args=VIT["args"] | {"num_classes": 5}
    )
    out = tmp_path / "cost.json"
    targets = [plain, grafted, tmp_path / "taken", named]
    first, second, taken, file = measured(*targets, "--out", out, capsys=capsys)
    size = VIT["args"]["img_size"]
    assert first["inputs"] == [[2, 3, size, size]]
    assert first["time_ratio"] is None and first["examples_per_second"] > 0
    for other in (second, taken, file):
        assert other["time_ratio"]["low"] <= other["time_ratio"]["point"] <= other["time_ratio"]["high"]
    for name in ("parameters", "macs", "peak_memory_bytes"):
        assert first[name] == file[name]
        assert second[name] == taken[name]
    assert second["parameters"] > first["parameters"]
    assert first["peak_memory_bytes"] > 4 * first["parameters"]
    result = json.loads(out.read_text())
    assert (result["batch_size"], result["pairs"]) == (2, 30)
    assert result["setting"]["environment"]["threads"] == 1


def test_hosts_need_no_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "model", "vit_tiny_patch16_224", *TINY, *TIMED]) == 0
    shown = capsys.readouterr().out
    assert "2x3x16x16" in shown and "batch size 2" in shown
    (found,) = measured("vit_tiny_patch16_224", *TINY, capsys=capsys)
    arguments = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
    assert found["parameters"] == count_parameters(create_model("vit_tiny_patch16_224", **arguments))


def test_models_of_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    host = ["host.name=vit_tiny_patch16_224", "host.args={img_size: 16, patch_size: 8, in_chans: 1, depth: 1}"]
    settings = ["task.data.source=bars", "schedule.epochs=1", "train.batch_size=400", "train.threads=1"]
    train(load_recipe("regression", [*host, *settings]), tmp_path / "run")
    (found,) = measured(tmp_path / "run", capsys=capsys)
    assert found["inputs"] == [[2, 1, 16, 16]]


@pytest.mark.slow
def test_models_of_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="needs the extra hf")
    from tests.tasks.text.toys import host, recipe, sentences, table

    name = host(tmp_path / "bert")
    train(recipe(table(tmp_path / "a.csv", sentences(20)), name), tmp_path / "run")
    trained, bare = measured(tmp_path / "run", name, "--tokens", "9", capsys=capsys)
    assert trained["inputs"] == bare["inputs"] == [[2, 9]]
    (longest,) = measured(tmp_path / "run", capsys=capsys)
    assert longest["inputs"] == [[2, 24]]  # as many as the host takes
    assert longest["macs"] > trained["macs"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vit_tini_patch16_224"], "did you mean vit_tiny_patch16_224?"),
        (["vit_tiny_patch16_224", "vit_tiny_patch16_224"], "is given twice"),
        (["vit_tiny_patch16_224", "--out", "x.csv"], "--out must end in .json"),
        (["vit_tiny_patch16_224", "resnet18", "--host-weights", "x.pth"], "is for one host"),
        (["vit_tiny_patch16_224", "--batch-size", "0"], "--batch-size"),
        (["vit_tiny_patch16_224", "--batch-size", "99999999999"], "does not fit into memory"),
        (["vit_tiny_patch16_224", "--threads", "9999"], "--threads"),
    ],
)
def test_what_cannot_be_timed(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "model", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "model", "--help"]) == 0
    assert "attngraft bench model runs/flowers" in capsys.readouterr().out


def test_point_models_get_clouds(capsys: pytest.CaptureFixture[str]) -> None:
    (clouds,) = measured("attngraft:pointnet", capsys=capsys)
    assert (clouds["inputs"], clouds["macs"], clouds["parameters"]) == ([[2, 1024, 3]], 448_025_856, 3_480_049)
    small = ["--host-arg", "depth=2", "--host-arg", "embed_dim=12", "--host-arg", "num_heads=1"]
    (parts,) = measured("attngraft:bixt_parts_naive", *small, capsys=capsys)
    assert parts["inputs"] == [[2, 2048, 6], [2]]
