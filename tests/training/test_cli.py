"""`attngraft train` and `attngraft eval` as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attngraft.cli import main
from attngraft.errors import TrainingError
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import read_run
from tests.training import toys  # noqa: F401 -- registers the toy task and host

TINY = """
base: digits
host: {args: {img_size: 8, patch_size: 4, in_chans: 1, embed_dim: 16, depth: 2, num_heads: 2}}
schedule: {epochs: 1}
train: {batch_size: 512}
"""


def attngraft(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def test_train_then_evaluate(tmp_path: Path, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    recipe.write_text(TINY.replace("epochs: 1", "epochs: 9, warmup_epochs: 3"))
    arguments = ("train", "--recipe", recipe, "--out", out, "--graft", "cb_s@last:1", "--seed", 3, "--epochs", 2)
    extra = ("--host-arg", "drop_rate=1e-2", "--set", "optimizer.lr=5e-3", "--save-every", 1, "--json")
    assert attngraft(*arguments, *extra) == 0
    printed = capsys.readouterr()
    assert "The recipe's warm-up of 3 epochs does not fit into 2 epochs: it takes 0.2 instead." in printed.err
    told = json.loads(printed.out)
    assert told["finished"]
    assert [row["epoch"] for row in told["epochs"]] == [1, 2]
    made = read_run(out).recipe
    assert (made.graft, made.seed, made.schedule.epochs, made.optimizer.lr) == ("cb_s@last:1", 3, 2, 5e-3)
    assert made.host.args["drop_rate"] == 1e-2
    assert made.train.save_every == 1

    assert attngraft("eval", out, "--json") == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["metrics"]["top1"] == pytest.approx(told["metrics"]["val/top1"])
    assert evaluated["examples"] == 359
    assert attngraft("eval", out, "--weights", "best") == 0
    assert "balanced_accuracy" in capsys.readouterr().out

    assert attngraft(*arguments, *extra) == 0  # finished: returns at once
    capsys.readouterr()
    assert attngraft(*arguments, "--no-resume") == 2
    assert "this folder contains a run" in capsys.readouterr().err


def test_another_host_or_data_starts_from_its_own_defaults(tmp_path: Path, recipe: Path) -> None:
    out = tmp_path / "run"
    own = ("--host", "toy_vit", "--host-arg", "img_size=16", "--data", "digits", "--set", "task.data.val_fraction=0.5")
    assert attngraft("train", "--recipe", recipe, "--out", out, *own) == 0
    made = read_run(out).recipe
    assert made.host.args == {"img_size": 16}
    assert made.task["data"] == {"source": "digits", "val_fraction": 0.5}


@pytest.mark.parametrize(
    ("arguments", "host", "trained"),
    [
        ((), ("vit_tiny_patch16_224", {"depth": 2}, False, "mine.pth"), "grafts+head"),
        (("--pretrained",), ("vit_tiny_patch16_224", {"depth": 2}, True, None), "grafts+head"),
        (("--weights", "o.pth"), ("vit_tiny_patch16_224", {"depth": 2}, False, "o.pth"), "grafts+head"),
        (("--host", "toy_vit"), ("toy_vit", {}, False, None), "grafts+head"),
        (("--host", "toy_vit", "--weights", "o.pth"), ("toy_vit", {}, False, "o.pth"), "grafts+head"),
        (("--recipe", "finetune", "--host", "toy_vit"), ("toy_vit", {}, True, None), "all"),
        (("--recipe", "finetune", "--weights", "o.pth"), ("vit_tiny_patch16_224", {}, False, "o.pth"), "all"),
        (("--recipe", "linear-probe"), ("vit_tiny_patch16_224", {}, True, None), "head"),
        (("--train", "head"), ("vit_tiny_patch16_224", {"depth": 2}, False, "mine.pth"), "head"),
    ],
)
def test_what_a_run_starts_from_and_what_it_trains(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    host: tuple[object, ...],
    trained: str,
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("host: {weights: mine.pth, args: {depth: 2}}\ntrain: {parameters: grafts+head}\n")
    given: list[Recipe] = []

    def keep(recipe: Recipe, *_: object, **__: object) -> None:
        given.append(recipe)
        raise TrainingError("enough")

    monkeypatch.setattr("attngraft.training.loop.train", keep)
    own = arguments if "--recipe" in arguments else ("--recipe", str(mine), *arguments)
    assert attngraft("train", *own, "--out", tmp_path / "run") == 1
    made = given[0]
    assert (made.host.name, made.host.args, made.host.pretrained, made.host.weights) == host
    assert made.train.parameters == trained


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--set", "optimizer.lrr=1"), 2, "did you mean lr?"),
        (("--weights", "nowhere.pth"), 2, "nowhere.pth: no such file; pass a weights file"),
        (("--weights", "a.pth", "--pretrained"), 2, "host.weights: cannot be combined with pretrained: true"),
        (("--train", "grafts"), 2, "train.parameters: is grafts, but the recipe has no graft to train"),
        (("--recipe", "digitz"), 2, "did you mean digits?"),
        (("--data", "./nowhere"), 2, "nowhere"),
        (("--graft", "cbs"), 2, "did you mean"),
        (("--epochs", "0"), 2, "--epochs"),
        (("--graft", "cb_s", "--set", "graft=bisa"), 2, "--set graft: another option sets it too"),
    ],
)
def test_mistakes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    assert attngraft("train", "--recipe", "digits", "--out", tmp_path / "run", *arguments) == code
    assert message in capsys.readouterr().err


def test_evaluating_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert attngraft("eval", tmp_path) == 2
    assert "not a run folder" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["train", "eval"])
def test_help_shows_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert attngraft(verb, "--help") == 0
    assert f"attngraft {verb} " in capsys.readouterr().out


@pytest.mark.product
def test_ctrl_c_saves_says_how_to_go_on_and_exits_130(tmp_path: Path, recipe: Path) -> None:
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "attngraft",
        "train",
        "--recipe",
        str(recipe),
        "--out",
        str(out),
        "--epochs",
        "500",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    while not (out / "checkpoints" / "last.pt").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "saved in epoch" in told
    assert "rerun the same command to resume" in told
    assert "Traceback" not in told
    assert "\x1b" not in told
