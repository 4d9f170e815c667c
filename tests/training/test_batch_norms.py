"""What is said of batch norms where an update's batch is cut."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attngraft.training.build import build_model
from attngraft.training.failures import OutOfMemory
from attngraft.training.freezing import batch_norm_examples, freeze
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe
from tests.training.toys import toy_recipe

LEVIT = {"img_size": 32, "embed_dim": [16, 24], "key_dim": 4, "depth": [1, 1], "num_heads": [2, 3]}


def normed(**train_section: Any) -> Recipe:
    return toy_recipe(host={"name": "toy_normed", "args": {}}, train={"drop_path": None, **train_section})


def levit(accumulate: int, *, parameters: str = "all", graft: str | None = None) -> Recipe:
    host = {"name": "levit_128s", "args": LEVIT}
    section = {"accumulate": accumulate, "drop_path": None, "parameters": parameters}
    return toy_recipe(host=host, graft=graft, train=section)


@pytest.mark.parametrize(
    ("accumulate", "processes", "parameters", "graft", "expected"),
    [
        (1, 1, "all", None, None),
        (4, 1, "all", None, 4),
        (1, 2, "all", None, 8),
        (2, 2, "all", None, 4),
        (4, 1, "grafts", "cb_s", None),
        (4, 1, "grafts", "bisa@stages.0", 4),  # whose maps have batch norms, as the host's
    ],
)
def test_how_many_examples_they_see(
    accumulate: int, processes: int, parameters: Any, graft: str | None, expected: int | None
) -> None:
    recipe = levit(accumulate, parameters=parameters, graft=graft)
    model = build_model(recipe, {"num_classes": 3})
    freeze(model, parameters)
    assert batch_norm_examples(model, recipe, processes=processes) == expected


def test_hosts_without_any_and_statistics_that_processes_share() -> None:
    recipe = toy_recipe(train={"accumulate": 4})
    assert batch_norm_examples(build_model(recipe, {"num_classes": 3}), recipe, processes=2) is None
    model = build_model(normed(), {"num_classes": 3})
    assert batch_norm_examples(model, normed(), processes=4) == 4
    shared = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert batch_norm_examples(shared, normed(), processes=4) is None
    assert batch_norm_examples(shared, normed(accumulate=2), processes=4) == 8


def test_a_run_that_cuts_its_batches_says_it_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        whole = train(normed(), tmp_path / "whole", progress=Silent())
        train(toy_recipe(train={"accumulate": 2}), tmp_path / "none", progress=Silent())
    assert "batch norms" not in caplog.text
    assert "batch_norm_examples" not in whole.environment
    with caplog.at_level(logging.WARNING):
        record = train(normed(accumulate=2), tmp_path / "cut", progress=Silent())
    assert (
        caplog.text.count("mean and variance over 8 of the 16 examples of an update (train.accumulate=2, 1 process)")
        == 1
    )
    assert record.environment["batch_norm_examples"] == 8


def test_automatic_cuts_say_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = type(build_model(normed(), {"num_classes": 3}))
    original = model.forward

    def forward(module: Any, x: torch.Tensor) -> torch.Tensor:
        if module.training and len(x) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(module, x)  # type: ignore[no-any-return]

    monkeypatch.setattr(model, "forward", forward)
    with pytest.raises(
        OutOfMemory, match="does not change updates except for batch norms, which then normalize over fewer"
    ):
        train(normed(), tmp_path / "told", progress=Silent())
    with caplog.at_level(logging.WARNING):
        record = train(normed(auto_batch=True), tmp_path / "found", progress=Silent())
    assert caplog.text.count("mean and variance over 4 of the 16 examples") == 1
    assert (record.recipe.train.accumulate, record.environment["batch_norm_examples"]) == (4, 4)
