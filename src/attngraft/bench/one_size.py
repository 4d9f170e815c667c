"""Measurement of one layer at one number of tokens, in a separate process.

`measure_size` starts the process. The process checks the layer's outputs against the reference backend, creates the inputs
and calls the layer once. The memory result is the growth of resident memory to the peak of that call, without inputs and
weights. Further calls are then timed. A new process has no memory left over from an earlier size.

`RLIMIT_AS` limits the growth of the address space from before the inputs are created. Where this limit is not supported
(Windows, macOS) or not set, the system ends processes that need too much memory. A timer in the process, started at the
same moment, limits the time.
"""

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

from attngraft.bench.layers import LAYERS
from attngraft.bench.result import check_outputs
from attngraft.dispatch import reference_backend
from attngraft.errors import AttngraftError
from attngraft.timing.memory import address_space_limited, growth
from attngraft.training.failures import is_out_of_memory

MIN_SECONDS = 0.5  #: short calls are repeated for at least this long

Outcome = Literal["measured", "too slow", "out of memory", "failed"]


class MeasuringError(AttngraftError):
    """A measurement failed for a reason other than a lack of time or memory."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """Settings of the measured call; a sweep can be resumed only with equal settings."""

    depth: int
    backward: bool
    cpu_time: bool  #: measure CPU seconds of the process, which other processes affect little, instead of wall time
    threads: int
    repeats: int  #: minimum number of timed calls, unless time runs out


@dataclass(frozen=True, kw_only=True)
class SizeTask(Call):
    """Measurement to make in one process."""

    layer: str  #: a key of `LAYERS`
    tokens: int
    seconds: float  #: time limit
    memory: int | None  #: memory limit in bytes


@dataclass(frozen=True, kw_only=True)
class SizeResult:
    """Result of the measurement in one process."""

    outcome: Outcome
    seconds: tuple[float, ...] = ()  #: seconds of each timed call, or of the first call if there was no time for more
    memory: int | None = None  #: growth of resident memory up to its peak, in bytes
    message: str = ""


def measure_size(task: SizeTask) -> SizeResult:
    """Run a measurement in a new process, which is also ended if this process is interrupted.

    Raises:
        MeasuringError: outputs differ from the reference, or the process failed; the message includes the process's error.
    """
    command = [sys.executable, "-m", __name__, json.dumps(dataclasses.asdict(task))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    what = f"{LAYERS[task.layer].title} with {task.tokens:,} tokens"
    if done.returncode == -9:  # sent by the out-of-memory killer
        return SizeResult(outcome="out of memory")
    if done.returncode != 0 or not done.stdout:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise MeasuringError(f"{what}: the process failed: {last}")
    found = json.loads(done.stdout.splitlines()[-1])
    result = SizeResult(**{**found, "seconds": tuple(found["seconds"])})
    if result.outcome == "failed":
        raise MeasuringError(f"{what}: {result.message}")
    return result


# --- the process itself -------------------------------------------------------------------------------------------


def main(text: str) -> NoReturn:
    task = SizeTask(**json.loads(text))
    answer = _Answer()
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    layer = LAYERS[task.layer]
    try:
        stack = layer.stack(task.depth).eval()
        _check(task, stack)
        threading.Thread(target=answer.send_after, args=(task.seconds,), daemon=True).start()
        with address_space_limited(task.memory):
            work = _work(task, stack)
            clock = time.process_time if task.cpu_time else time.perf_counter
            answer.memory, answer.first = growth(work, clock=clock)
            _repeat(work, task.repeats, clock, answer.seconds)
    except AttngraftError as error:
        answer.send("failed", str(error))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        answer.send("out of memory" if answer.first is None else "measured")
    answer.send("measured")


class _Answer:
    """Collect results; print them once and exit when everything is measured or the time is up."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.first: float | None = None
        self.memory: int | None = None
        self._sent = threading.Lock()

    def send_after(self, seconds: float) -> None:
        time.sleep(seconds)
        self.send("measured" if self.first is not None else "too slow")

    def send(self, outcome: Outcome, message: str = "") -> NoReturn:
        self._sent.acquire()  # never released: a second thread waits here until the process ends
        seconds = self.seconds or [self.first] if self.first is not None else []
        result = {"outcome": outcome, "seconds": seconds, "memory": self.memory, "message": message}
        try:
            print(json.dumps(result), flush=True)  # noqa: T201
        finally:  # also if printing runs out of memory, since nothing else ends the process
            os._exit(0)


def _check(task: SizeTask, stack: torch.nn.Module) -> None:
    """Check the outputs; this also warms up libraries and threads, so that their memory is not counted."""
    inputs = LAYERS[task.layer].inputs(min(task.tokens, LAYERS[task.layer].checked))
    with torch.no_grad():
        with reference_backend():
            expected = stack(*inputs)
        check_outputs(stack(*inputs), expected, what=LAYERS[task.layer].title, rtol=1e-4, atol=1e-5)
    if task.backward:
        _backward(stack, inputs)()


def _work(task: SizeTask, stack: torch.nn.Module) -> Callable[[], object]:
    inputs = LAYERS[task.layer].inputs(task.tokens)
    if task.backward:
        return _backward(stack, inputs)

    def forward() -> None:
        with torch.no_grad():
            stack(*inputs)

    return forward


def _backward(stack: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[[], object]:
    """Return a function that runs the forward pass, and the backward pass of the sum of all outputs."""
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
