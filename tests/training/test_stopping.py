from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from accelerate import Accelerator

from attngraft.training.stopping import SIGNALS, StoppedWaiting, StopSignal


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    # the tests themselves may run under nohup
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    try:
        with StopSignal(Accelerator(cpu=True)) as signal_:
            yield signal_
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_a_wish(stop: StopSignal, number: int) -> None:
    assert not stop.agreed()
    os.kill(os.getpid(), number)
    assert stop.agreed()


def test_a_second_ctrl_c_does_not_wait(stop: StopSignal) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)  # a scheduler may repeat itself
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopSignal(Accelerator(cpu=True)):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
def test_a_signal_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal(Accelerator(cpu=True)) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.agreed()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_items_pass_through(stop: StopSignal) -> None:
    assert list(stop.interruptible(range(3))) == [0, 1, 2]


def test_a_signal_ends_a_wait(stop: StopSignal) -> None:
    def slow() -> Iterator[int]:
        yield 0
        time.sleep(30)
        yield 1

    items = stop.interruptible(slow())
    assert next(items) == 0
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    begun = time.monotonic()
    with pytest.raises(StoppedWaiting):
        next(items)
    assert time.monotonic() - begun < 10


def test_work_between_two_items_is_finished(stop: StopSignal) -> None:
    items = stop.interruptible(range(3))
    assert next(items) == 0
    os.kill(os.getpid(), signal.SIGTERM)  # at work, not waiting
    assert stop.requested
    with pytest.raises(StoppedWaiting):
        next(items)
