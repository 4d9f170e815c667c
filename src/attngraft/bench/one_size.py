"""One layer at one number of tokens, in a process of its own: `measure_size(job)` starts it and reads what it found.

The process checks the layer's outputs against the reference backend, makes the inputs and calls the layer once: the growth
of its resident memory up to the peak of that call is the memory, inputs and weights not counted. Then it times further
calls. A process that was not there before holds no memory that an earlier size left to it.

Memory is limited by the address space (`RLIMIT_AS`): what that may grow from just before the inputs are made. Where there
is no such limit (Windows, macOS), or none is given, the system itself ends what needs too much. Time is limited by the
process's own clock, from the same moment on.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NoReturn

import torch

from attngraft.bench.gate import check_outputs
from attngraft.bench.layers import LAYERS
from attngraft.dispatch import reference_backend
from attngraft.errors import AttngraftError
from attngraft.timing.memory import address_space_limited, growth

MIN_SECONDS = 0.5  #: short calls are repeated until they have taken so long

Outcome = Literal["measured", "too slow", "out of memory", "failed"]


class MeasuringError(AttngraftError):
    """A size could not be measured, for another reason than its time or memory."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one process measures."""

    layer: str  #: a name of `LAYERS`
    tokens: int
    depth: int
    backward: bool
    cpu_time: bool  #: seconds of the process on all CPUs, which other processes disturb little, not of the wall clock
    threads: int
    repeats: int  #: timed calls, at least; fewer where time runs out
    seconds: float  #: limit
    memory: int | None  #: limit in bytes


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What it found."""

    outcome: Outcome
    seconds: tuple[float, ...] = ()  #: of each timed call; of the first call alone where there was no time for more
    memory: int | None = None  #: bytes
    message: str = ""


def measure_size(job: Job) -> Reading:
    """Measure in a fresh process. Interrupted, it ends that process first.

    Raises:
        MeasuringError: outputs that are not the reference's, or a process that fails in its own way; says what it said.
    """
    command = [sys.executable, "-m", __name__, json.dumps(dataclasses.asdict(job))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    what = f"{LAYERS[job.layer].title} with {job.tokens:,} tokens"
    if done.returncode == -9:  # nobody else sends that
        return Reading(outcome="out of memory")
    if done.returncode != 0 or not done.stdout:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise MeasuringError(f"{what}: its process failed: {last}")
    found = json.loads(done.stdout.splitlines()[-1])
    reading = Reading(**{**found, "seconds": tuple(found["seconds"])})
    if reading.outcome == "failed":
        raise MeasuringError(f"{what}: {reading.message}")
    return reading


# --- the process itself -------------------------------------------------------------------------------------------


def main(text: str) -> NoReturn:
    job = Job(**json.loads(text))
    answer = _Answer()
    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    layer = LAYERS[job.layer]
    try:
        stack = layer.stack(job.depth).eval()
        _check(job, stack)
        threading.Thread(target=answer.when_late, args=(job.seconds,), daemon=True).start()
        with address_space_limited(job.memory):
            work = _work(job, stack)
            clock = time.process_time if job.cpu_time else time.perf_counter
            answer.memory, answer.first = growth(work, clock=clock)
            _repeat(work, job.repeats, clock, answer.seconds)
    except AttngraftError as error:
        answer.give("failed", str(error))
    except Exception as error:
        from attngraft.training.failures import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        answer.give("out of memory" if answer.first is None else "measured")
    answer.give("measured")


class _Answer:
    """Collects what is found; gives it once and ends the process, when all is measured or when the time is over."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.first: float | None = None
        self.memory: int | None = None
        self._given = threading.Lock()

    def when_late(self, seconds: float) -> None:
        time.sleep(seconds)
        self.give("measured" if self.first is not None else "too slow")

    def give(self, outcome: Outcome, message: str = "") -> NoReturn:
        self._given.acquire()  # and is never released: who comes second waits for the end
        seconds = self.seconds or [self.first] if self.first is not None else []
        reading = {"outcome": outcome, "seconds": seconds, "memory": self.memory, "message": message}
        try:
            print(json.dumps(reading), flush=True)  # noqa: T201
        finally:  # without memory for these words, too: nobody else could end the process any more
            os._exit(0)


def _check(job: Job, stack: torch.nn.Module) -> None:
    """The gate; it also warms libraries and threads up, whose memory is then no longer counted."""
    inputs = LAYERS[job.layer].inputs(min(job.tokens, LAYERS[job.layer].checked))
    with torch.no_grad():
        with reference_backend():
            expected = stack(*inputs)
        check_outputs(stack(*inputs), expected, what=LAYERS[job.layer].title, rtol=1e-4, atol=1e-5)
    if job.backward:
        _backward(stack, inputs)()


def _work(job: Job, stack: torch.nn.Module) -> Callable[[], object]:
    inputs = LAYERS[job.layer].inputs(job.tokens)
    if job.backward:
        return _backward(stack, inputs)

    def forward() -> None:
        with torch.no_grad():
            stack(*inputs)

    return forward


def _backward(stack: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[[], object]:
    """Forward, and the gradients of inputs and weights for the sum of all outputs."""
    wanted = [*(tensor.requires_grad_() for tensor in inputs), *stack.parameters()]

    def work() -> None:
        outputs = stack(*inputs)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        torch.autograd.grad(sum(output.sum() for output in outputs), wanted)  # type: ignore[arg-type]

    return work


def _repeat(work: Callable[[], object], repeats: int, clock: Callable[[], float], seconds: list[float]) -> None:
    begin = clock()
    while len(seconds) < repeats or clock() - begin < MIN_SECONDS:
        start = clock()
        work()
        seconds.append(clock() - start)


if __name__ == "__main__":
    main(sys.argv[1])
