"""Checkpoints of whole, tied and sharded weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from accelerate import Accelerator
from torch import Tensor, nn

import attngraft
from attngraft.attention import detached_state
from attngraft.errors import TrainingError
from attngraft.training.checkpoint import Counters, TrainState, load_weights, restore, save, save_weights
from attngraft.training.freezing import FreezingSchedule
from attngraft.training.run_folder import RunFolder
from tests.training.processes import finish, run_together


def test_weights_with_facts(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    save_weights(tmp_path / "w.safetensors", model.state_dict(), {"epoch": 3, "metric": "val/top1"})
    other = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    assert load_weights(tmp_path / "w.safetensors", other) == {"epoch": 3, "metric": "val/top1"}
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_tied_weights_are_written_apart(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    save_weights(tmp_path / "w.safetensors", model.state_dict(), {})
    other = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    load_weights(tmp_path / "w.safetensors", other)
    assert torch.equal(other[0].weight, model[0].weight)
    assert torch.equal(other[1].weight, model[0].weight)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with pytest.raises(TrainingError, match="cannot be read"):
        load_weights(path, nn.Linear(2, 2))
    save_weights(path, nn.Linear(2, 3).state_dict(), {})
    with pytest.raises(TrainingError, match=r"w.safetensors: .* belong to a different model \(.*\); restore") as wrong:
        load_weights(path, nn.Linear(2, 2))
    assert "\n" not in str(wrong.value)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(TrainingError, match="cannot be read"):
        load_weights(path, nn.Linear(2, 3))


def test_what_a_graft_stands_in_for_is_kept(tmp_path: Path) -> None:
    run, first, second = RunFolder(tmp_path), _state(1), _state(2)
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    save(run, first)
    assert any(not torch.equal(a, b) for a, b in zip(*_detached(first, second), strict=True))
    assert restore(run, second)
    assert all(torch.equal(a, b) for a, b in zip(*_detached(first, second), strict=True))


def _state(seed: int) -> TrainState:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(seed)
    size = {"img_size": 16, "window_size": 2, "depths": (1, 1), "embed_dim": 8, "num_heads": (1, 2), "num_classes": 2}
    model = timm.create_model("swin_tiny_patch4_window7_224", **size)
    attngraft.graft(model, "dwconv(kernel=3)@layers.0")
    return TrainState(
        accelerator=accelerator,
        model=model,
        optimizer=accelerator.prepare_optimizer(torch.optim.AdamW(model.parameters())),
        ema=None,
        counters=Counters(),
        freezing=FreezingSchedule(model),
    )


@pytest.mark.parametrize("name", ["adamw", "lamb", "adan", "laprop", "muon", "novograd", "lookahead_sgd", "kron"])
def test_the_optimizer_is_restored_with_the_settings_of_the_recipe(name: str, tmp_path: Path) -> None:
    def state() -> TrainState:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))
        optimizer = timm.optim.create_optimizer_v2(model, opt=name, lr=1e-3)
        return TrainState(
            accelerator=accelerator,
            model=model,
            optimizer=accelerator.prepare_optimizer(optimizer),
            ema=None,
            counters=Counters(),
            freezing=FreezingSchedule(model),
        )

    def stored(state: TrainState) -> str:
        content = state.optimizer.state_dict()
        text = str([content["state"], content["param_groups"]])
        return text.replace("(", "[").replace(")", "]")  # torch makes lists of tuples

    accelerator, run = Accelerator(cpu=True), RunFolder(tmp_path)
    first = state()
    for _ in range(8):
        first.model(torch.randn(2, 5)).square().sum().backward()
        first.optimizer.step()
        first.optimizer.zero_grad()
    first.counters.epoch = 1
    save(run, first)
    content = torch.load(run.last, weights_only=True)
    for group in content["optimizer"]["param_groups"]:
        group.update(weight_decay=9.0, betas=(0.5, 2.0))
    torch.save(content, run.last)
    second = state()
    assert restore(run, second)
    assert stored(first) == stored(second)


def _detached(*states: TrainState) -> list[list[Tensor]]:
    return [list(detached_state(state.model).values()) for state in states]


def shard_save_and_restore(folder: str) -> None:
    """In each of two processes: an FSDP model is saved whole, and a fresh one gets the same shards back."""
    from accelerate import Accelerator
    from torch.distributed.fsdp import fully_shard

    from attngraft.training.checkpoint import Counters, TrainState, restore, save
    from attngraft.training.freezing import FreezingSchedule
    from attngraft.training.run_folder import RunFolder

    def state(seed: int) -> TrainState:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = accelerator.prepare_optimizer(torch.optim.AdamW(model.parameters(), lr=0.1))
        return TrainState(
            accelerator=accelerator,
            model=model,
            optimizer=optimizer,
            ema=None,
            counters=Counters(epoch=seed),
            freezing=FreezingSchedule(model),
        )

    accelerator = Accelerator(cpu=True)
    run = RunFolder(Path(folder))
    first = state(1)
    first.model(torch.ones(2, 5)).sum().backward()
    first.optimizer.step()
    first.optimizer.zero_grad()
    first.counters.sums = {"loss": float(accelerator.process_index)}
    save(run, first)
    accelerator.wait_for_everyone()

    second = state(2)
    assert restore(run, second)
    assert second.counters == first.counters
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one.to_local(), other.to_local())
        left, right = (each.optimizer.state[p] for each, p in ((first, one), (second, other)))
        assert torch.equal(left["exp_avg"].to_local(), right["exp_avg"].to_local())
    if accelerator.is_main_process:
        content = torch.load(run.last, weights_only=True)
        assert content["model"]["0.weight"].shape == (7, 5)
        assert content["optimizer"]["state"]["1.bias"]["exp_avg"].shape == (3,)


@pytest.mark.slow
def test_sharded_weights_are_saved_whole_and_restored(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    processes = run_together(shard_save_and_restore, str(tmp_path), processes=2)
    assert [finish(process) for process in processes] == [0, 0]
