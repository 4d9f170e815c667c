from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from attngraft.errors import TrainingError
from attngraft.training.failures import OutOfMemory, is_out_of_memory
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.run_folder import read_run
from tests.training.toys import assert_same_outcome, toy_recipe

Memory = Callable[..., None]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Set how many examples fit into a training and an evaluation batch, from the `call`-th forward pass on."""
    original = VisionTransformer.forward

    def limit(training: int = 99, evaluation: int = 99, *, call: int = 1) -> None:
        calls = iter(range(1, 10**6))

        def forward(model: Any, x: torch.Tensor) -> torch.Tensor:
            if next(calls) >= call and len(x) > (training if model.training else evaluation):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
            return original(model, x)

        monkeypatch.setattr(VisionTransformer, "forward", forward)

    return limit


def test_the_largest_micro_batch_that_fits_is_named(tmp_path: Path, memory: Memory) -> None:
    memory(training=5)
    with pytest.raises(
        OutOfMemory,
        match=r"a batch of 16 examples .* update \(CUDA out of memory\. Tried to allocate 2\.00 GiB\.\)\. "
        r"4 fit: use --set train\.accumulate=4, which does not change updates, or --auto-batch",
    ) as caught:
        train(toy_recipe(), tmp_path, progress=Silent())
    assert caught.value.fits == {"accumulate": 4}
    assert caught.value.fitting(toy_recipe()) == toy_recipe(train={"accumulate": 4})


def test_a_size_for_all_stages_is_named(tmp_path: Path, memory: Memory) -> None:
    """3 micro-batches would do for the 24 examples of the second stage, but not divide the 8 of the first."""
    memory(training=8)
    stages = [{"name": "small", "epochs": 1, "batch_size": 8}, {"name": "large", "batch_size": 24}]
    with pytest.raises(OutOfMemory, match="a batch of 24 examples does not fit") as caught:
        train(toy_recipe(stages=stages), tmp_path, progress=Silent())
    assert caught.value.fits == {"accumulate": 4}


def test_evaluation_has_a_size_of_its_own(tmp_path: Path, memory: Memory) -> None:
    memory(evaluation=4)
    with pytest.raises(
        OutOfMemory, match=r"a batch of 10 examples .* in an evaluation .* use --set train.eval_batch_size=2"
    ):
        train(toy_recipe(train={"eval_batch_size": 10}), tmp_path, progress=Silent())


def test_nothing_fits(tmp_path: Path, memory: Memory) -> None:
    memory(training=0)
    with pytest.raises(OutOfMemory, match="Not even one example fits: use a smaller input or host") as caught:
        train(toy_recipe(train={"auto_batch": True}), tmp_path, progress=Silent())
    assert caught.value.fits == {}


def test_auto_batch_ends_as_if_it_had_been_told(
    tmp_path: Path, memory: Memory, caplog: pytest.LogCaptureFixture
) -> None:
    train(toy_recipe(train={"accumulate": 4}), tmp_path / "told", progress=Silent())
    memory(training=5)
    with caplog.at_level(logging.WARNING):
        record = train(toy_recipe(train={"auto_batch": True}), tmp_path / "found", progress=Silent())
    assert "4 fit" in caplog.text
    assert record.recipe.train.accumulate == 4
    assert record.environment["chosen_by_memory"] == [{"epoch": 1, "step": 1, "accumulate": 4, "eval_batch_size": None}]
    assert_same_outcome(tmp_path / "told", tmp_path / "found")


def test_what_was_chosen_stays_when_the_run_goes_on(tmp_path: Path, memory: Memory) -> None:
    recipe = toy_recipe(train={"auto_batch": True})
    memory(training=5)
    train(recipe, tmp_path / "stopped", progress=Silent(), stop_after_epoch=1)
    memory()  # more than enough
    train(recipe, tmp_path / "stopped", progress=Silent())
    train(toy_recipe(train={"accumulate": 4}), tmp_path / "told", progress=Silent())
    assert_same_outcome(tmp_path / "told", tmp_path / "stopped")


def test_a_lack_in_mid_run_goes_on_from_the_last_checkpoint(tmp_path: Path, memory: Memory) -> None:
    memory(training=8, call=6)  # three updates, their evaluation, one update; then
    record = train(toy_recipe(train={"auto_batch": True}), tmp_path, progress=Silent())
    chosen = json.loads((tmp_path / "environment.json").read_text())["chosen_by_memory"]
    assert [(each["epoch"], each["step"], each["accumulate"]) for each in chosen] == [(2, 2, 2)]
    assert len(record.epochs) == 2


def test_a_begun_run_may_be_let_choose(tmp_path: Path, memory: Memory) -> None:
    memory(training=5, call=6)
    with pytest.raises(OutOfMemory, match=r"4 fit \(train\.accumulate=4, .*\): rerun the command with --auto-batch"):
        train(toy_recipe(), tmp_path, progress=Silent())
    with pytest.raises(TrainingError, match=r"a different recipe: train\.accumulate \(1 -> 4\)"):
        train(toy_recipe(train={"accumulate": 4}), tmp_path, progress=Silent())
    train(toy_recipe(train={"auto_batch": True}), tmp_path, progress=Silent())
    assert read_run(tmp_path).recipe.train.accumulate == 4


def test_what_is_a_lack_of_memory() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    assert is_out_of_memory(RuntimeError("std::bad_alloc"))
    assert is_out_of_memory(RuntimeError("could not create a primitive"))
    assert not is_out_of_memory(RuntimeError("shapes"))
    assert not is_out_of_memory(ValueError("std::bad_alloc"))
    assert not is_out_of_memory(KeyboardInterrupt())
