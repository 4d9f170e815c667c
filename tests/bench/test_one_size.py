"""The process that measures one size: its work, memory, limits, and outcome."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attngraft.bench import one_size
from attngraft.bench.layers import LATENTS, LAYERS, WIDTH
from attngraft.bench.one_size import MeasuringError, SizeResult, SizeTask, measure_size
from attngraft.mechanisms.bixt import folded
from attngraft.timing.macs import count_macs
from attngraft.timing.memory import address_space_limited, free_memory, growth

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits and forgets")


def a_task(**changes: Any) -> SizeTask:
    given = {"layer": "bixt", "tokens": 196, "depth": 1, "backward": False, "threads": 1}
    return SizeTask(**{**given, "cpu_time": False, "repeats": 2, "seconds": 60.0, "memory": None, **changes})


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_runs_forward_and_backward(name: str) -> None:
    stack, inputs = LAYERS[name].stack(2).eval(), LAYERS[name].inputs(50)
    outputs = stack(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    assert [output.shape for output in outputs] == [given.shape for given in inputs]
    assert outputs[-1].shape == (1, 50, WIDTH)
    one_size._backward(stack, inputs)()
    assert all(parameter.grad is None for parameter in stack.parameters()), "gradients would be memory of the next call"


def test_multiply_adds_grow_as_the_title_says() -> None:
    """BiXT's by the same for each further token, as many as the facts' formula has; a ViT's by more and more."""
    counts = {
        name: [count_macs(LAYERS[name].stack(1), *LAYERS[name].inputs(n)) for n in (64, 128, 192)]
        for name in ("bixt", "vit")
    }
    small, middle, large = counts["bixt"]
    assert large - middle == middle - small == 64 * (11 * WIDTH**2 + 3 * LATENTS * WIDTH)
    small, middle, large = counts["vit"]
    assert (large - middle) - (middle - small) == 2 * 2 * 64**2 * WIDTH


def test_both_vits_are_the_same_function() -> None:
    torch.manual_seed(0)
    fused = LAYERS["vit"].stack(1).eval()
    explicit = LAYERS["vit-explicit"].stack(1).eval()
    explicit.load_state_dict(fused.state_dict())
    assert not explicit[0].attn.fused_attn
    assert fused[0].attn.fused_attn
    tokens = torch.randn(1, 40, WIDTH)
    torch.testing.assert_close(explicit(tokens), fused(tokens))


def test_growth_is_what_a_call_holds_at_its_peak() -> None:
    def work() -> None:
        for _ in range(3):
            torch.ones(10_000_000)

    found = [growth(work) for _ in range(4)]  # later times as well, though the first gave its memory back
    assert all(seconds > 0 for _, seconds in found)
    memory = [bytes_ for bytes_, _ in found if bytes_ is not None]
    assert len(memory) == 4
    assert min(memory) > 36e6
    assert sorted(memory)[1] < 60e6, "what else comes back to memory meanwhile, of this large process, is counted too"


@LINUX
def test_memory_beyond_the_limit_is_refused_inside_alone() -> None:
    with address_space_limited(200_000_000):
        torch.ones(10_000_000)
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.ones(100_000_000)
    assert torch.ones(100_000_000).numel() == 100_000_000
    with address_space_limited(None):
        assert torch.ones(100_000_000).numel() == 100_000_000
    assert free_memory() > 0


def ends(monkeypatch: pytest.MonkeyPatch, returncode: int, stdout: str = "", stderr: str = "") -> None:
    done = SimpleNamespace(returncode=returncode, stdout=stdout, stderr=stderr)
    monkeypatch.setattr(subprocess, "run", lambda command, **options: done)


def test_the_end_of_a_process_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"outcome": "measured", "seconds": [1.0, 2.0], "memory": 5, "message": ""}
    ends(monkeypatch, 0, stdout=f"something else\n{json.dumps(said)}\n")
    assert measure_size(a_task()) == SizeResult(outcome="measured", seconds=(1.0, 2.0), memory=5)
    ends(monkeypatch, -9)
    assert measure_size(a_task()).outcome == "out of memory"
    ends(monkeypatch, 1, stderr="Traceback ...\nZeroDivisionError: by zero\n")
    with pytest.raises(
        MeasuringError, match=r"BiXT layer with 196 tokens: the process failed: ZeroDivisionError: by zero"
    ):
        measure_size(a_task())
    ends(monkeypatch, 3)
    with pytest.raises(MeasuringError, match="exit code 3"):
        measure_size(a_task())
    ends(monkeypatch, 0, stdout=json.dumps({**said, "outcome": "failed", "message": "outputs are not"}))
    with pytest.raises(MeasuringError, match="outputs are not"):
        measure_size(a_task())


class Left(Exception):
    """The process's end."""


def in_this_process(task: SizeTask, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SizeResult:
    """As the process would, but that it returns at its end."""

    def leave(code: int) -> None:
        raise Left

    monkeypatch.setattr(one_size.os, "_exit", leave)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(one_size._Answer, "send_after", lambda answer, seconds: None)
    with pytest.raises(Left):
        one_size.main(json.dumps(vars(task)))
    return SizeResult(**json.loads(capsys.readouterr().out.splitlines()[0]))


def test_a_size_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(one_size, "MIN_SECONDS", 0.0)
    found = in_this_process(a_task(backward=True, repeats=3), monkeypatch, capsys)
    assert found.outcome == "measured"
    assert len(found.seconds) == 3
    assert found.memory is not None and found.memory > 196 * WIDTH * 4


def test_calls_are_repeated_often_and_long_enough() -> None:
    for step, calls in ((1.0, 4), (0.01, 18)):  # the clock moves at each look at it
        times, seconds = (step * count for count in range(1000)), list[float]()
        one_size._repeat(lambda: None, 4, times.__next__, seconds)
        assert seconds == pytest.approx([step] * calls)


@LINUX
def test_memory_that_runs_out_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_task(layer="vit-explicit", tokens=6000, memory=300_000_000)
    found = in_this_process(job, monkeypatch, capsys)
    assert (found.outcome, found.seconds) == ("out of memory", [])


def test_outputs_that_are_wrong_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Noisy(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return torch.rand(3)

    wrong = replace(LAYERS["vit"], title="noise", stack=lambda depth: Noisy())
    monkeypatch.setattr(one_size, "LAYERS", {"noise": wrong})
    found = in_this_process(a_task(layer="noise"), monkeypatch, capsys)
    assert found.outcome == "failed"
    assert "noise: not timed" in found.message


@pytest.mark.parametrize(("tokens", "way"), [(196, None), (12544, "attend"), (50176, "attend_in_pieces")])
def test_what_is_timed_is_what_was_checked(tokens: int, way: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens and many take different ways through the operation."""
    ways: list[str] = []

    for name in ("attend", "attend_in_pieces"):
        function = getattr(folded, name)
        monkeypatch.setattr(
            folded, name, lambda *o, name=name, function=function, **kw: ways.append(name) or function(*o, **kw)
        )
    layer = LAYERS["bixt"].stack(1).eval()
    one_size._check(a_task(tokens=tokens), layer)
    checked = ways.copy()
    ways.clear()
    with torch.no_grad():
        layer(*LAYERS["bixt"].inputs(tokens))
    assert ways == checked == ([way] if way else [])


def test_memory_that_runs_out_later_leaves_the_first_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def repeat(*given: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(one_size, "_repeat", repeat)
    found = in_this_process(a_task(), monkeypatch, capsys)
    assert found.outcome == "measured"
    assert len(found.seconds) == 1
    assert found.memory is not None


def test_a_process_ends_even_if_it_cannot_print(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(found: object) -> str:
        raise MemoryError

    def leave(code: int) -> None:
        raise Left

    monkeypatch.setattr(one_size.json, "dumps", no_room)
    monkeypatch.setattr(one_size.os, "_exit", leave)
    with pytest.raises(Left):
        one_size._Answer().send("too slow")


def test_at_the_time_limit_existing_samples_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(one_size.os, "_exit", lambda code: None)
    for first, seconds, outcome, told in (
        (None, [], "too slow", []),
        (1.5, [], "measured", [1.5]),
        (1.5, [1.2], "measured", [1.2]),
    ):
        answer = one_size._Answer()
        answer.first, answer.seconds = first, seconds
        answer.send_after(0)
        found = json.loads(capsys.readouterr().out)
        assert (found["outcome"], found["seconds"]) == (outcome, told)


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [  # others on demand: `attngraft bench bixt` measures in processes in cli/test_bench.py
        pytest.param({"tokens": 784, "backward": True}, "measured", marks=pytest.mark.product),
        pytest.param(
            {"layer": "vit-explicit", "tokens": 12544, "memory": 500_000_000},
            "out of memory",
            marks=[LINUX, pytest.mark.slow],
        ),
        pytest.param({"layer": "vit", "tokens": 50176, "seconds": 0.5}, "too slow", marks=pytest.mark.product),
    ],
)
def test_a_process_of_its_own(changes: dict[str, Any], outcome: str) -> None:
    found = measure_size(a_task(**changes))
    assert found.outcome == outcome
    assert bool(found.seconds) == (outcome == "measured")
