"""Runs as launchers start them, and what is refused of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attngraft.errors import ConfigError
from attngraft.training import setup
from attngraft.training.build import build_model
from tests.training.toys import final_state, metric_rows, toy_recipe

TINY = """
base: digits
host: {args: {img_size: 8, patch_size: 4, in_chans: 1, embed_dim: 16, depth: 1, num_heads: 2}}
schedule: {epochs: 1}
train: {batch_size: 512, drop_path: null}
"""


@pytest.mark.slow
def test_the_command_under_torchrun_is_one_process(tmp_path: Path) -> None:
    """Of the same global batch: metrics and weights."""
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(TINY)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    launchers = {
        "one": [sys.executable],
        "two": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    }
    for name, launcher in launchers.items():
        train = ["-m", "attngraft", "train", "--recipe", str(recipe), "--graft", "cb_s", "--out", str(tmp_path / name)]
        done = subprocess.run([*launcher, *train], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for left, right in zip(metric_rows(tmp_path / "one"), metric_rows(tmp_path / "two"), strict=True):
        assert left == pytest.approx(right, rel=0, abs=1e-4)
    one, two = (final_state(tmp_path / name)["model"] for name in ("one", "two"))
    assert list(one) == list(two)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-5)
    environments = [(tmp_path / name / "environment.json").read_text() for name in ("one", "two")]
    assert ['"processes": 1' in environments[0], '"processes": 2' in environments[1]] == [True, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"ema": 0.9}}, "train.ema: a moving average of sharded weights is not possible; set it to null"),
        (
            {"train": {"parameters": "all", "first": {"parameters": "head", "epochs": 1}}},
            "train.first: sharded weights cannot be frozen for a while",
        ),
        ({"graft": "uniform_heads"}, "graft uniform_heads: leaves rows .* set optimizer.weight_decay to 0 under FSDP"),
        ({"graft": "uniform_heads", "optimizer": {"weight_decay": 0.0}}, None),
        ({"graft": "cb_s + horizontal"}, None),
    ],
)
def test_what_sharded_weights_cannot_do_is_refused(changes: dict[str, object], message: str | None) -> None:
    recipe = toy_recipe(**changes)  # type: ignore[arg-type]
    model = build_model(recipe, {"num_classes": 3})
    if message is None:
        setup._refuse_what_shards_cannot(recipe, model)
        return
    with pytest.raises(ConfigError, match=message):
        setup._refuse_what_shards_cannot(recipe, model)


def test_half_precision_is_refused_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="train.amp: fp16 needs a GPU; use bf16, or no"):
        setup.create_accelerator(toy_recipe(train={"amp": "fp16"}))


def test_sharding_is_refused_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate ignores the wish where processes are on CPUs, and every process would hold everything."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match="shards weights on GPUs only; launch without --use_fsdp"):
        setup.create_accelerator(toy_recipe())
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
    assert setup.create_accelerator(toy_recipe()).num_processes == 1
