"""Build a vector from the package, fill it, run it, and compare outputs and gradients."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.conformance import bisa, bixt, cb, elsa, hv, pointmlp
from tests.conformance.vector import Builder, Built, Vector, load
from tests.conformance.weights import input_value, weight

#: family -> kind -> builder; a new family adds a file and a line
FAMILIES: dict[str, dict[str, Builder]] = {
    "bisa": bisa.BUILDERS,
    "bixt": bixt.BUILDERS | pointmlp.BUILDERS,
    "cb": cb.BUILDERS,
    "elsa": elsa.BUILDERS,
    "hv": hv.BUILDERS,
}
#: float64 results may differ by this multiple of the difference of the vector's own float32 run
FLOAT64_FACTOR = 10


def problems(path: Path) -> list[str]:
    """Return the differences from the vector at `path`, none if all entries agree. Never raises."""
    try:
        vector = load(path)
        builder = FAMILIES.get(vector.family, {}).get(vector.kind)
        if builder is None:
            return [f"unknown kind {vector.kind!r} of family {vector.family!r}"]
        return [
            problem
            for dtype in (torch.float32, torch.float64)
            for problem in _differences(vector, _run(vector, builder(vector), dtype), dtype)
        ]
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return [f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})".replace("\n", " ")]


def _run(vector: Vector, built: Built, dtype: torch.dtype) -> dict[str, Tensor]:
    """Compute all expected entries."""
    built.module.to(dtype).eval()
    _fill(vector, built)
    inputs = {
        name: built.changes.get(name, torch.Tensor.clone)(torch.from_numpy(input_value(name, shape)).to(dtype))
        for name, shape in vector.inputs.items()
    }
    for tensor in inputs.values():
        tensor.requires_grad_()
    outputs = dict(built.outputs(**inputs))
    if vector.gradients:
        _backward(vector, outputs)
    found = {}
    for name in vector.expected:
        if name.startswith("grad_param:"):
            slot = built.slot(name.removeprefix("grad_param:"))
            gradient = built.module.get_parameter(slot.name).grad
            found[name] = slot.of(_zeros_if_none(gradient, built.module.get_parameter(slot.name)))
        elif name.startswith("grad_"):
            tensor = inputs[name.removeprefix("grad_")]
            found[name] = _zeros_if_none(tensor.grad, tensor)
        else:
            found[name] = outputs[name].detach()
    return found


def _zeros_if_none(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


@torch.no_grad()
def _fill(vector: Vector, built: Built) -> None:
    """Set every parameter to the value of the vector's key."""
    state = built.module.state_dict(keep_vars=True)
    unfilled = {name: torch.ones(value.shape[:1] or (1,), dtype=torch.bool) for name, value in state.items()}
    for key, shape in vector.state_shapes.items():
        if key in vector.computed_buffers:
            continue
        value = torch.as_tensor(weight(key, shape) * vector.weight_scale.get(key, 1))
        slot = built.slot(key)
        target = slot.of(state[slot.name])
        if tuple(value.shape) in (target.shape[1:], (1, *target.shape)):  # one of the two has a leading axis of size 1
            value = value.view(target.shape)
        if target.shape != value.shape:
            raise ValueError(f"{key} is {tuple(value.shape)}, and ours ({slot.name}) is {tuple(target.shape)}")
        target.copy_(value)
        slot.of(unfilled[slot.name])[:] = False
    left = [name for name, rows in unfilled.items() if rows.any() and name not in vector.computed_buffers]
    if left:
        raise ValueError(f"the vector fills nothing into our {', '.join(left)}")


def _backward(vector: Vector, outputs: Mapping[str, Tensor]) -> None:
    if vector.cotangent is None:
        loss = sum(outputs[name].sum() for name in vector.loss_outputs)
    else:
        loss = sum(
            (outputs[name] * torch.from_numpy(input_value(vector.cotangent, outputs[name].shape))).sum()
            for name in vector.loss_outputs
        )
    loss.backward()


def _differences(vector: Vector, found: Mapping[str, Tensor], dtype: torch.dtype) -> list[str]:
    return [text for name in vector.expected if (text := _difference(vector, name, found[name], dtype))]


def _difference(vector: Vector, name: str, found: Tensor, dtype: torch.dtype) -> str | None:
    entry: Mapping[str, Any] = vector.expected[name]
    label = f"{name} ({str(dtype).removeprefix('torch.')})"
    shape = tuple(entry["shape"])
    if found.numel() != torch.Size(shape).numel():
        return f"{label} has shape {tuple(found.shape)}, not {shape}"
    ours = found.double().flatten()[:: entry.get("stride", 1)]
    theirs = torch.tensor(entry["values"], dtype=torch.float64)
    distance = (ours - theirs).abs()
    if dtype == torch.float32:
        allowed = entry.get("atol", vector.atol) + vector.rtol * theirs.abs()
    else:
        bound = FLOAT64_FACTOR * vector.float64_difference.get(name, 0.0)
        allowed = torch.full_like(theirs, bound if bound > 0 else vector.atol)
    beyond = ~(distance <= allowed)
    if not beyond.any():
        return None
    return f"{label} differs by up to {distance.max().item():.3g} in {int(beyond.sum())} of {len(theirs)} values"
