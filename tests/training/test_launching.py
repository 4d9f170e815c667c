"""Runs as launchers start them, and what is refused of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attngraft.cli import main
from attngraft.errors import ConfigError
from attngraft.training import setup
from attngraft.training.build import build_model, build_task
from tests.slow import product_but
from tests.training.toys import final_state, metric_rows, toy_recipe

TINY = """
base: digits
host: {args: {img_size: 8, patch_size: 4, in_chans: 1, embed_dim: 16, depth: 1, num_heads: 2}}
schedule: {epochs: 1}
train: {batch_size: 512, drop_path: null}
"""


#: what starts two processes. On CPUs `--multi_gpu` does, over gloo; with `--cpu` accelerate starts one, unless it is
#: given MPI
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"],
}


def write_recipe(folder: Path) -> Path:
    recipe = folder / "tiny.yaml"
    recipe.write_text(TINY)
    return recipe


def train(folder: Path, *launcher: str) -> Path:
    """The command, which must succeed; returns the run's folder."""
    recipe, out = write_recipe(folder), folder / "run"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"HF_HOME": str(folder / "hf")}  # no configuration of accelerate's of whoever runs the tests
    command = ["-m", "attngraft", "train", "--recipe", str(recipe), "--graft", "cb_s", "--out", str(out)]
    done = subprocess.run([sys.executable, *launcher, *command], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process: this one."""
    folder = tmp_path_factory.mktemp("alone")
    recipe = write_recipe(folder)
    with pytest.raises(SystemExit) as ended:
        main(["train", "--recipe", str(recipe), "--graft", "cb_s", "--out", str(folder / "run")])
    assert not ended.value.code
    return folder / "run"


@pytest.mark.parametrize("launcher", product_but(LAUNCHERS, ["torchrun"]))
def test_the_command_under_a_launcher_is_one_process(launcher: str, alone: Path, tmp_path: Path) -> None:
    """Of the same global batch: metrics and weights."""
    together = train(tmp_path, "-m", *LAUNCHERS[launcher])
    for left, right in zip(metric_rows(alone), metric_rows(together), strict=True):
        assert left == pytest.approx(right, rel=0, abs=1e-4)
    one, two = (final_state(folder)["model"] for folder in (alone, together))
    assert list(one) == list(two)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-5)
    environments = [json.loads((folder / "environment.json").read_text()) for folder in (alone, together)]
    assert [each["processes"] for each in environments] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train": {"ema": 0.9}},
            "train.ema: FSDP does not support moving averages of sharded weights; set it to null",
        ),
        (
            {"train": {"parameters": "all", "first": {"parameters": "head", "epochs": 1}}},
            "train.first: FSDP cannot freeze sharded weights temporarily",
        ),
        (
            {"graft": "uniform_heads"},
            "graft uniform_heads: leaves rows .*; use --set optimizer.weight_decay=0, or use DDP",
        ),
        ({"graft": "uniform_heads", "optimizer": {"weight_decay": 0.0}}, None),
        ({"graft": "cb_s + horizontal"}, None),
    ],
)
def test_what_sharded_weights_cannot_do_is_refused(changes: dict[str, object], message: str | None) -> None:
    recipe = toy_recipe(**changes)  # type: ignore[arg-type]
    model = build_model(recipe, {"num_classes": 3})
    task = build_task(recipe)
    if message is None:
        setup._refuse_unshardable(recipe, task, model)
        return
    with pytest.raises(ConfigError, match=message):
        setup._refuse_unshardable(recipe, task, model)


def test_half_precision_is_refused_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="train.amp: fp16 requires a GPU; use bf16 or no"):
        setup.create_accelerator(toy_recipe(train={"amp": "fp16"}))


def test_sharding_is_refused_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate ignores the wish where processes are on CPUs, and every process would hold everything."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match="shards weights on GPUs only; launch without --use_fsdp"):
        setup.create_accelerator(toy_recipe())
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
    assert setup.create_accelerator(toy_recipe()).num_processes == 1


def test_variables_of_a_launcher_that_are_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ValueError("no MASTER_ADDR")

    monkeypatch.setattr(setup, "Accelerator", fail)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ConfigError, match="has RANK, but not all that a launcher sets .*no MASTER_ADDR.*unset them"):
        setup.create_accelerator(toy_recipe())
