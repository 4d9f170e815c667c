"""Conformance vectors, as read from their files, and modules built from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Vector:
    """The fields of a vector's file; shapes are tuples."""

    name: str
    family: str
    kind: str
    config: Mapping[str, Any]
    state_shapes: Mapping[str, tuple[int, ...]]
    inputs: Mapping[str, tuple[int, ...]]
    expected: Mapping[str, Mapping[str, Any]]
    atol: float
    rtol: float
    float64_difference: Mapping[str, float]
    loss_outputs: tuple[str, ...]
    cotangent: str | None
    computed_buffers: frozenset[str]
    weight_scale: Mapping[str, float]

    @property
    def gradients(self) -> list[str]:
        """The expected entries that are gradients."""
        return [name for name in self.expected if name.startswith("grad_")]

    def has(self, prefix: str) -> bool:
        """Return whether a parameter's name starts with `prefix`."""
        return any(key.startswith(prefix) for key in self.state_shapes)


def load(path: Path) -> Vector:
    """Read a vector's file."""
    raw = json.loads(path.read_text())
    return Vector(
        name=f"{path.parent.name}/{path.stem}",
        family=raw["family"],
        kind=raw["config"]["kind"],
        config=raw["config"],
        state_shapes={key: tuple(shape) for key, shape in raw["state_shapes"].items()},
        inputs={key: tuple(shape) for key, shape in raw["inputs"].items()},
        expected=raw["expected"],
        atol=raw["atol"],
        rtol=raw["rtol"],
        float64_difference=raw.get("f32_vs_f64_max_abs", {}),
        loss_outputs=tuple(raw.get("loss_outputs", ())),
        cotangent=raw.get("cotangent"),
        computed_buffers=frozenset(raw.get("computed_buffers", ())),
        weight_scale=raw.get("weight_scale", {}),
    )


@dataclass(frozen=True)
class Slot:
    """The place of a vector's tensor in our module: a parameter or buffer, or rows of it along the first axis."""

    name: str
    start: int | None = None
    stop: int | None = None

    def of(self, tensor: Tensor) -> Tensor:
        return tensor if tensor.ndim == 0 else tensor[self.start : self.stop]


@dataclass(frozen=True)
class Built:
    """A module built from a vector."""

    module: nn.Module  #: contains the parameters
    outputs: Callable[..., Mapping[str, Tensor]]  #: called with the inputs by name
    slot: Callable[[str], Slot] = field(default=Slot)  #: from a vector's key to its place in `module`
    #: input -> change of its values before the run; gradients are with respect to the changed input
    changes: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)


Builder = Callable[[Vector], Built]
