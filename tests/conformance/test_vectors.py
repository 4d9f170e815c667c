"""All vectors on disk, with every backend, and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.conformance import check, run
from tests.conformance.weights import input_value, weight

SHARED = Path(os.environ.get("ATTNGRAFT_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
VECTORS = sorted(path for family in check.FAMILIES for path in (SHARED / "conformance/vectors" / family).glob("*.json"))


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


#: whole models for images of 224 pixels, for which the reference takes 15 seconds
LARGE = ("elsa/elsa_swin_tiny_224", "elsa/volo_d1_224")
RUNS = [
    pytest.param(
        path,
        backend,
        id=f"{named(path)}-{backend}",
        marks=[pytest.mark.product] * (backend != "auto" and named(path) in LARGE),
    )
    for path in VECTORS
    for backend in ("auto", "reference")
]


@pytest.mark.parametrize(("path", "backend"), RUNS)
def test_vector(path: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNGRAFT_BACKEND", backend)
    assert check.problems(path) == []


def test_all_families_are_on_disk(shared: Path) -> None:
    assert {path.parent.name for path in VECTORS} == set(check.FAMILIES)


def a_vector(folder: Path, shared: Path, **changes: object) -> Path:
    """Write a changed copy of a vector."""
    raw = json.loads((shared / "conformance/vectors/cb/cb_s.json").read_text())
    path = folder / "changed.json"
    path.write_text(json.dumps({**raw, **changes}))
    return path


def test_an_unknown_kind_fails(shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_vector(tmp_path, shared, config={"kind": "nonsense"})
    assert run.main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "0 passed, 1 failed"
    assert "unknown kind 'nonsense'" in lines[0]


def test_a_wrong_value_fails(shared: Path, tmp_path: Path) -> None:
    raw = json.loads((shared / "conformance/vectors/cb/cb_s.json").read_text())
    raw["expected"]["grad_x"]["values"][7] += 1e-3
    (problem,) = [text for text in check.problems(a_vector(tmp_path, shared, **raw)) if "float32" in text]
    assert "grad_x" in problem
    assert "in 1 of 327 values" in problem


def test_a_missing_or_surplus_weight_fails(shared: Path, tmp_path: Path) -> None:
    (problem,) = check.problems(a_vector(tmp_path, shared, state_shapes={}))
    assert "fills nothing into our scale" in problem
    (problem,) = check.problems(a_vector(tmp_path, shared, state_shapes={"cb.scale": [48], "cb.shift": [48]}))
    assert "shift" in problem


def new_vector(
    path: Path,
    fields: Mapping[str, Any],
    formula: Callable[..., Tensor],
    *,
    shapes: Mapping[str, tuple[int, ...]],
    inputs: Mapping[str, tuple[int, ...]],
    change: Callable[[str, Tensor], Tensor] = lambda name, value: value,
) -> Path:
    """Write a vector of one output, with the gradient of every input and parameter, computed by `formula`."""
    weights = {key: torch.from_numpy(weight(key, shape)).double().requires_grad_() for key, shape in shapes.items()}
    values = {name: change(name, torch.from_numpy(input_value(name, shape)).double()) for name, shape in inputs.items()}
    out = formula(weights, **{name: value.requires_grad_() for name, value in values.items()})
    (out * torch.from_numpy(input_value("cotangent", out.shape))).sum().backward()
    entries = {"out": out.detach()} | {f"grad_{name}": value.grad for name, value in values.items()}
    entries |= {f"grad_param:{key}": value.grad for key, value in weights.items()}
    expected = {
        name: {"shape": list(entry.shape), "values": entry.flatten().tolist()} for name, entry in entries.items()
    }
    rules = {"loss_outputs": ["out"], "cotangent": "cotangent", "atol": 2e-5, "rtol": 1e-5}
    text = json.dumps({**fields, **rules, "state_shapes": shapes, "inputs": inputs, "expected": expected})
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("family", "heads", "uniform", "keys", "values"),
    [("hv", 4, 0, 12, 32), ("cb", 4, 0, 32, 12), ("cb", 4, 1, 24, 32)],  # the last: three heads of 8, and one appended
)
def test_attention_of_any_widths(tmp_path: Path, family: str, heads: int, uniform: int, keys: int, values: int) -> None:
    def formula(weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        def split(name: str, heads: int) -> Tensor:
            return (x @ weights[f"{name}.weight"].T).unflatten(-1, (heads, -1)).transpose(1, 2)

        q, k, v = split("q", heads - uniform), split("k", heads - uniform), split("v", heads)
        maps = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)
        average = v[:, heads - uniform :].mean(2, keepdim=True).expand(-1, -1, x.shape[1], -1)
        merged = torch.cat([maps @ v[:, : heads - uniform], average], 1).transpose(1, 2).flatten(2)
        return merged @ weights["proj.weight"].T

    config = {"kind": "attention", "num_heads": heads} | ({"uniform_heads": uniform} if uniform else {})
    shapes = {"q.weight": (keys, 20), "k.weight": (keys, 20), "v.weight": (values, 20), "proj.weight": (20, values)}
    path = new_vector(
        tmp_path / "new.json", {"family": family, "config": config}, formula, shapes=shapes, inputs={"x": (2, 7, 20)}
    )
    assert check.problems(path) == []


def test_a_transformed_multiplier(tmp_path: Path) -> None:
    def formula(_: object, v: Tensor, attn: Tensor, ghost_mul: Tensor) -> Tensor:
        neighbors = F.unfold(v, 3, padding=1).view(1, 4, 9, 5, 6)
        weights = ghost_mul.view(4, 9, 1, 1).sqrt() * attn.view(1, 2, 9, 5, 6).repeat_interleave(2, 1)
        return (weights * neighbors).sum(2)

    sizes = {"num_heads": 2, "kernel_size": 3, "lam": 0.5, "gamma": 0, "dilation": 1, "stride": 1}
    text = "abs(x) + 0.1 before use (grad_ghost_mul is with respect to the transformed tensor)"
    path = new_vector(
        tmp_path / "new.json",
        {"family": "elsa", "config": {"kind": "elsa_op", **sizes, "ghost_mul_transform": text}},
        formula,
        shapes={},
        inputs={"v": (1, 4, 5, 6), "attn": (1, 18, 5, 6), "ghost_mul": (4, 3, 3)},
        change=lambda name, value: value.abs() + 0.1 if name == "ghost_mul" else value,
    )
    assert check.problems(path) == []


@pytest.mark.slow
def test_the_command(shared: Path) -> None:
    command = [sys.executable, run.__file__, str(shared / "conformance/vectors/cb/cb_mean.json")]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    assert result.stdout == "1 passed, 0 failed\n"
