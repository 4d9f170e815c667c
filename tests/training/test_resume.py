"""A run that is killed, stopped or damaged at any moment ends where an undisturbed one ends, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import TrainingError
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import recipe_from_dict, recipe_to_dict
from attngraft.training.stopping import Interrupted
from tests.slow import product_but, slow_but
from tests.training.processes import finish, first_step, start
from tests.training.toys import ToySplit, assert_same_outcome, final_state, metric_rows, toy_recipe


def disturbed_recipe(workers: int, **train: Any) -> dict[str, Any]:
    sections = {"ema": 0.9, "clip_grad": 1.0, "accumulate": 2, "save_every": 1, "workers": workers}
    return recipe_to_dict(toy_recipe(task={"train": 192, "val": 32}, schedule={"epochs": 4}, train=sections | train))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert finish(start(disturbed_recipe(0), folder)) == 0
    return folder


@pytest.mark.parametrize(("workers", "saves"), product_but([(0, 12), (2, 24)], [(2, 24)]))
def test_killed_at_random_moments(undisturbed: Path, tmp_path: Path, workers: int, saves: int) -> None:
    """Killed again and again, after 1 to `saves` more checkpoints and a moment: in a step, a write, an evaluation."""
    moments = random.Random(workers)
    kills = 0
    while True:
        process = start(disturbed_recipe(workers), tmp_path)
        _watch(tmp_path / "checkpoints" / "last.pt", process, changes=moments.randint(1, saves))
        time.sleep(moments.uniform(0, 0.02))
        process.kill()
        if finish(process) == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    assert kills >= 2
    assert_same_outcome(undisturbed, tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops(undisturbed: Path, tmp_path: Path, number: int) -> None:
    recipe = disturbed_recipe(0, save_every=None)
    process = start(recipe, tmp_path)
    _wait_for(first_step(tmp_path))
    os.kill(process.pid, number)
    assert finish(process) == 130
    stopped = final_state(tmp_path)["counters"]
    assert not (tmp_path / "finished.json").exists()
    assert stopped["epoch"] < 4
    assert finish(start(recipe, tmp_path)) == 0
    assert_same_outcome(undisturbed, tmp_path)


@pytest.mark.parametrize("example", slow_but([1, 12, 41, 44], 12, 41))
@pytest.mark.parametrize("host", ["toy_vit", "toy_normed"])
def test_stopped_while_waiting_for_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, example: int
) -> None:
    """In the first or the second micro-batch of the first or the third update, where `example` is read."""
    sections: dict[str, Any] = {"host": {"name": host}, "train": {"accumulate": 2, "workers": 0, "ema": 0.9}}
    if host == "toy_normed":
        sections["host"]["args"] = {}
        sections["train"]["drop_path"] = None
    recipe = recipe_to_dict(toy_recipe())
    for name, section in sections.items():
        recipe[name] |= section
    train(recipe_from_dict(recipe), tmp_path / "whole", progress=Silent())
    reading, read = ToySplit.__getitem__, iter(range(1, 1000))

    def stop(split: ToySplit, key: tuple[int, int]) -> Any:
        if next(read) == example:
            os.kill(os.getpid(), signal.SIGTERM)
        return reading(split, key)

    with monkeypatch.context() as patch:
        patch.setattr(ToySplit, "__getitem__", stop)
        with pytest.raises(Interrupted, match="rerun the same command to resume"):
            train(recipe_from_dict(recipe), tmp_path / "stopped", progress=Silent())
    assert final_state(tmp_path / "stopped")["counters"]["step"] == (example > 16) * 2
    train(recipe_from_dict(recipe), tmp_path / "stopped", progress=Silent())
    assert_same_outcome(tmp_path / "whole", tmp_path / "stopped")


def test_a_run_may_stop_after_an_epoch_and_go_on(undisturbed: Path, tmp_path: Path) -> None:
    recipe = recipe_from_dict(disturbed_recipe(0))
    for until in (1, 1, 3):
        record = train(recipe, tmp_path, progress=Silent(), stop_after_epoch=until)
        assert (len(record.epochs), record.finished, record.predictions) == (until, False, None)
    assert train(recipe, tmp_path, progress=Silent()).finished
    assert_same_outcome(undisturbed, tmp_path)


def test_a_second_run_in_the_folder_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe = disturbed_recipe(0)
    first = start(recipe, tmp_path)
    _wait_for(tmp_path / "recipe.yaml")
    os.kill(first.pid, signal.SIGSTOP)
    try:
        with pytest.raises(TrainingError, match=f"process {first.pid}"):
            train(recipe_from_dict(recipe), tmp_path, progress=Silent())
    finally:
        os.kill(first.pid, signal.SIGCONT)
    assert finish(first) == 0


def test_metrics_after_the_checkpoint_are_taken_back(tmp_path: Path) -> None:
    recipe = toy_recipe()
    train(recipe, tmp_path / "whole", progress=Silent())
    half = tmp_path / "half"
    train(toy_recipe(), half, progress=StopAfter(epochs=1))
    rows = half / "metrics.jsonl"
    rows.write_text(rows.read_text() + '{"epoch": 2, "train/loss": 17, "seconds": 1}\n{"epo')
    train(recipe, half, progress=Silent())
    assert metric_rows(half) == metric_rows(tmp_path / "whole")


def test_another_recipe_is_refused_and_harmless_changes_are_not(tmp_path: Path) -> None:
    train(toy_recipe(), tmp_path, progress=StopAfter(epochs=1))
    with pytest.raises(TrainingError, match=r"optimizer\.lr \(0\.003 -> 0\.1\).*seed \(0 -> 1\)"):
        train(toy_recipe(optimizer={"lr": 0.1}, seed=1), tmp_path)
    with pytest.raises(TrainingError, match="resume it, or choose another folder"):
        train(toy_recipe(), tmp_path, resume=False)
    record = train(toy_recipe(train={"workers": 1, "save_every": 5}), tmp_path, progress=Silent())
    assert record.finished


def test_a_finished_run_returns_at_once(tmp_path: Path) -> None:
    first = train(toy_recipe(), tmp_path, progress=Silent())
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    again = train(toy_recipe(), tmp_path, progress=Silent())
    assert again == first
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}


@pytest.mark.parametrize("harm", ["truncated", "flipped", "empty", "text"])
def test_a_damaged_checkpoint_gives_way_to_the_previous_one(tmp_path: Path, harm: str, caplog: Any) -> None:
    train(toy_recipe(), tmp_path / "whole", progress=Silent())
    folder = tmp_path / "harmed"
    train(toy_recipe(train={"save_every": 1}), folder, progress=StopAfter(epochs=1))
    last = folder / "checkpoints" / "last.pt"
    _harm(last, harm)
    train(toy_recipe(), folder, progress=Silent())
    assert "resuming from previous.pt" in caplog.text
    assert_same_outcome(tmp_path / "whole", folder)


def test_two_damaged_checkpoints_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    train(toy_recipe(train={"save_every": 1}), tmp_path, progress=StopAfter(epochs=1))
    for name in ("last.pt", "previous.pt"):
        _harm(tmp_path / "checkpoints" / name, "truncated")
    with pytest.raises(
        TrainingError, match=r"last\.pt.*damaged.*previous\.pt.*delete .*checkpoints to start this run again"
    ):
        train(toy_recipe(), tmp_path)


class StopAfter(Silent):
    """Ends a run from inside, like a fault would, once an epoch is saved."""

    def __init__(self, *, epochs: int) -> None:
        self._epochs = epochs

    def on_epoch(self, metrics: Any) -> None:
        if metrics["epoch"] == self._epochs:
            raise TrainingError("stopped by the test")


@pytest.fixture(autouse=True)
def _stops_are_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """`train` with a StopAfter returns None instead of raising."""
    real = train

    def tolerant(*args: Any, **kwargs: Any) -> Any:
        if not isinstance(kwargs.get("progress"), StopAfter):
            return real(*args, **kwargs)
        with pytest.raises(TrainingError, match="stopped by the test"):
            real(*args, **kwargs)
        return None

    monkeypatch.setitem(globals(), "train", tolerant)


def _watch(path: Path, process: BaseProcess, *, changes: int) -> None:
    """Until `path` has been replaced so often, or the process has ended."""
    seen = None
    while process.is_alive() and changes >= 0:
        now = path.stat().st_mtime_ns if path.exists() else None
        changes, seen = changes - (now != seen), now
        time.sleep(0.001)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was never written"
        time.sleep(0.005)


def _harm(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "truncated":
        data = data[: len(data) // 2]
    elif how == "flipped":
        data[len(data) // 3] ^= 0x10
    elif how == "empty":
        data.clear()
    else:
        data = bytearray(b"not a checkpoint")
    path.unlink()  # previous.pt may be the same file
    path.write_bytes(data)
