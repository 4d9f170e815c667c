"""What is refused of runs that a launcher starts."""

from __future__ import annotations

import pytest
import torch

from attngraft.errors import ConfigError
from attngraft.training import setup
from attngraft.training.build import build_model
from tests.training.toys import toy_recipe


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
