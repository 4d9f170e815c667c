from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attngraft.errors import ConfigError, DataError, TrainingError
from attngraft.training.failures import workers_explained
from attngraft.training.loading import (
    EvalOrder,
    TrainOrder,
    _RaisingIterator,
    eval_batches,
    train_batches,
)
from tests.training.toys import ToyConfig, ToySplit


def split(length: int) -> ToySplit:
    return ToySplit(length, ToyConfig(), seed=0, first=0)


@given(
    st.integers(1, 40), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(0, 99)
)
def test_processes_share_the_global_batch(
    length: int, share: int, accumulate: int, world: int, epoch: int, seed: int
) -> None:
    batch = share * accumulate * world
    if batch > length:
        return
    one = TrainOrder(split=split(length), seed=seed, batch_size=batch)
    many = [
        TrainOrder(split=split(length), seed=seed, batch_size=batch, accumulate=accumulate, rank=rank, world=world)
        for rank in range(world)
    ]
    assert one.steps == length // batch
    seen = []
    for step in range(one.steps):
        [whole] = one.micro_batches(epoch, step)
        parts = [key for order in many for keys in order.micro_batches(epoch, step) for key in keys]
        assert parts == whole
        seen += [index for _, index in whole]
    assert len(set(seen)) == len(seen)


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    orders = {
        (seed, epoch): TrainOrder(split=split(32), seed=seed, batch_size=8).order(epoch).tolist()
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len({tuple(order) for order in orders.values()}) == 4
    assert all(sorted(order) == list(range(32)) for order in orders.values())
    assert TrainOrder(split=split(32), seed=1, batch_size=8).order(1).tolist() == orders[1, 1]


def test_a_stream_can_start_anywhere() -> None:
    order = TrainOrder(split=split(20), seed=0, batch_size=4, accumulate=2)
    whole = list(order.stream(epoch=0, step=0, epochs=3))
    assert len(whole) == 3 * 5 * 2
    assert list(order.stream(epoch=1, step=2, epochs=3)) == whole[(5 + 2) * 2 :]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_do_not_depend_on_workers_or_start(workers: int) -> None:
    order = TrainOrder(split=split(12), seed=0, batch_size=4)
    whole = list(train_batches(order, epoch=0, step=0, epochs=2, workers=0, pin=False))
    late = list(train_batches(order, epoch=1, step=1, epochs=2, workers=workers, pin=False))
    assert len(whole) == 6
    assert len(late) == 2
    for batch, same in zip(late, whole[4:], strict=True):
        assert torch.equal(batch["image"], same["image"])


def test_a_split_may_give_its_own_order() -> None:
    class Repeated(ToySplit):
        def order(self, *, seed: int, epoch: int):
            import numpy as np

            return np.repeat(np.arange(4), 3)

    order = TrainOrder(split=Repeated(12, ToyConfig(), seed=0, first=0), seed=0, batch_size=6)
    assert order.steps == 2
    assert [index for _, index in order.micro_batches(0, 1)[0]] == [2, 2, 2, 3, 3, 3]


def test_batches_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size 8 is more than an epoch's 5 training examples"):
        TrainOrder(split=split(5), seed=0, batch_size=8)
    with pytest.raises(ConfigError, match="cannot be divided among 3 processes .* a multiple of 6"):
        TrainOrder(split=split(50), seed=0, batch_size=8, accumulate=2, world=3)


@given(st.integers(1, 60), st.integers(1, 16), st.integers(1, 4))
def test_evaluation_sees_every_example_and_repeats_only_what_it_must(length: int, batch: int, world: int) -> None:
    ranks = [list(EvalOrder(length=length, batch_size=batch, rank=rank, world=world)) for rank in range(world)]
    assert len({tuple(map(len, batches)) for batches in ranks}) == 1
    seen = [index for batches in ranks for keys in batches for _, index in keys]
    assert set(seen) == set(range(length))
    assert len(seen) - length < world
    assert [len(keys) for keys in ranks[0]][:-1] == [max(batch // world, 1)] * (len(ranks[0]) - 1)


@pytest.mark.parametrize(
    ("torch_says", "says"),
    [
        ("DataLoader worker (pid 7) is killed by signal: Killed. ", "memory ran out.*--set train.workers=2"),
        ("DataLoader worker (pid(s) 7, 8) exited unexpectedly", "memory ran out"),
        ("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible", "shared memory is used up"),
        (
            "DataLoader worker (pid 7) is killed by signal: Segmentation fault. ",
            "a library that reads the data crashed",
        ),
    ],
)
def test_the_death_of_a_loading_process_is_explained(tmp_path: Path, torch_says: str, says: str) -> None:
    with pytest.raises(TrainingError, match=says), workers_explained(tmp_path, workers=4):
        raise RuntimeError(torch_says)


def test_other_errors_are_left_alone(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="^shapes$"), workers_explained(tmp_path, workers=4):
        raise RuntimeError("shapes")


@pytest.mark.parametrize("cut_off", [ConnectionResetError, FileNotFoundError, EOFError, AuthenticationError])
def test_a_batch_cut_off_by_a_death_waits_for_the_word_of_it(tmp_path: Path, cut_off: type[Exception]) -> None:
    def handler(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    def batches() -> Iterator[Any]:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        raise cut_off("Connection reset by peer")
        yield

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TrainingError, match="memory ran out"), workers_explained(tmp_path, workers=2):
            next(_RaisingIterator(batches(), grace=60))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_connection_error_without_a_death_is_raised_as_it_came() -> None:
    def batches() -> Iterator[Any]:
        raise ConnectionResetError("of the data's own server")
        yield

    with pytest.raises(ConnectionResetError, match="own server"):
        next(_RaisingIterator(batches(), grace=0.1))


def test_an_error_of_the_data_that_a_loading_process_hands_on_is_raised_at_once() -> None:
    class Unplugged(ToySplit):
        def __getitem__(self, key: tuple[int, int]) -> Any:
            raise FileNotFoundError("the disk is gone")

    batches = eval_batches(
        Unplugged(4, ToyConfig(), seed=0, first=0), EvalOrder(length=4, batch_size=2), workers=1, pin=False
    )
    others = multiprocessing.active_children()
    found = iter(batches)
    found._grace = 60
    with pytest.raises(FileNotFoundError, match="the disk is gone"):
        next(found)
    batches.stop_workers()
    for process in set(multiprocessing.active_children()) - set(others):
        process.join(20)
        assert not process.is_alive()


def test_examples_that_do_not_fit_each_other_are_an_error_of_the_data() -> None:
    class Uneven(ToySplit):
        def collate(self, examples: list[Any]) -> Any:
            raise DataError("of different sizes")

    order = EvalOrder(length=4, batch_size=2)
    with pytest.raises(DataError, match="^of different sizes$"):
        next(iter(eval_batches(Uneven(4, ToyConfig(), seed=0, first=0), order, workers=1, pin=False)))


def test_an_error_of_the_data_does_not_keep_the_loader() -> None:
    class Damaged(ToySplit):
        def __getitem__(self, key: tuple[int, int]) -> Any:
            raise DataError("damaged")

    order = EvalOrder(length=4, batch_size=2)
    found = iter(eval_batches(Damaged(4, ToyConfig(), seed=0, first=0), order, workers=1, pin=False))
    loader = weakref.ref(found._batches)
    gc.disable()  # which would end its processes in any order
    try:
        with contextlib.suppress(DataError):
            next(found)
            pytest.fail("nothing was wrong")
        del found
        assert loader() is None
    finally:
        gc.enable()


def test_loading_processes_leave_at_once_whatever_they_are_at() -> None:
    class Slow(ToySplit):
        def __getitem__(self, key: tuple[int, int]) -> Any:
            if key[1] >= 4:
                time.sleep(60)
            return super().__getitem__(key)

    begun = time.monotonic()
    order = EvalOrder(length=12, batch_size=2)
    batches = eval_batches(Slow(12, ToyConfig(), seed=0, first=0), order, workers=2, pin=False)
    others = multiprocessing.active_children()
    found = iter(batches)
    next(found)
    workers = [process for process in multiprocessing.active_children() if process not in others]
    assert len(workers) == 2
    os.kill(workers[0].pid, signal.SIGKILL)  # a dead one holds up nobody
    with contextlib.suppress(RuntimeError):  # torch tells of it at any moment from now on
        workers[0].join()
    with contextlib.suppress(RuntimeError):
        batches.stop_workers()
    workers[1].join(20)
    assert not workers[1].is_alive()
    assert time.monotonic() - begun < 30
    del found


@pytest.mark.slow
def test_a_process_that_ends_while_it_asks_holds_up_nobody() -> None:
    class EndsInsideTheEvent(ToySplit):
        def __getitem__(self, key: tuple[int, int]) -> Any:
            loop = sys._getframe()
            while "done_event" not in loop.f_locals:  # torch's own loop, which asks it between two batches
                assert loop.f_back is not None
                loop = loop.f_back
            lock = getattr(loop.f_locals["done_event"], "_cond", None)
            if lock is not None:
                lock.acquire()
            os._exit(0)

    split = EndsInsideTheEvent(4, ToyConfig(), seed=0, first=0)
    batches = eval_batches(split, EvalOrder(length=4, batch_size=2), workers=1, pin=False)
    others = multiprocessing.active_children()
    found = iter(batches)
    for process in set(multiprocessing.active_children()) - set(others):
        process.join(20)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        next(found)
    ended = threading.Thread(target=found._batches._shutdown_workers, daemon=True)  # as at collection
    ended.start()
    ended.join(20)
    assert not ended.is_alive()
