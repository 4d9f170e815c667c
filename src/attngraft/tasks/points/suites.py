"""Suites of point clouds: fewer points, noise, rotation, and another order of the points."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attngraft.tasks.points.augmentation import rotation
from attngraft.tasks.suites import BatchChange, BatchTarget, Condition, ExampleAccess, Suite, UnsupportedCondition
from attngraft.tasks.task import Batch

SHARES = (0.5, 0.25, 0.125)  #: of the points
NOISE = (0.01, 0.02, 0.05)  #: standard deviations, in parts of the radius
ANGLES = (15, 30, 90)  #: degrees
NOISE_SEEDS = (0, 1, 2)

Change = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Fewer:
    """Keep a random share of the points."""

    share: float

    def __call__(self, points: Tensor, generator: torch.Generator) -> Tensor:
        count = max(1, round(self.share * len(points)))
        return points[torch.randperm(len(points), generator=generator)[:count]]


@dataclass(frozen=True)
class Noisy:
    """Add normal noise to the coordinates."""

    level: float

    def __call__(self, points: Tensor, generator: torch.Generator) -> Tensor:
        noise = self.level * torch.randn(len(points), 3, generator=generator)
        return torch.cat([points[:, :3] + noise, points[:, 3:]], dim=1)


@dataclass(frozen=True)
class Rotated:
    """Rotate the cloud and its normals by an angle in degrees around an axis."""

    axis: int
    angle: float

    def __call__(self, points: Tensor, generator: torch.Generator) -> Tensor:
        matrix = torch.from_numpy(rotation(self.axis, float(np.deg2rad(self.angle)))).to(points)
        return torch.cat([part @ matrix.T for part in points.split(3, dim=1)], dim=1)


@dataclass(frozen=True)
class Shuffled:
    """Put the points into a random order."""

    def __call__(self, points: Tensor, generator: torch.Generator) -> Tensor:
        return points[torch.randperm(len(points), generator=generator)]


class PointAccess(ExampleAccess):
    """Access to the points of examples."""

    def change_example(self, example: Any, change: Callable[..., Any], generator: torch.Generator) -> Any:
        return {**example, "points": change(example["points"], generator)}

    def change_batch(self, batch: Batch, change: BatchChange, target: BatchTarget, *, noise_seed: int) -> Batch:
        raise UnsupportedCondition("changes of whole batches, such as attacks, are not supported for point clouds")


def suites() -> Mapping[str, Suite]:
    """Return the suites of point clouds by name."""
    clean = (Condition(name="clean", group="clean", label="clean"),)
    fewer = [(f"fewer-{share:g}", f"{100 * share:g} % of the points", Fewer(share)) for share in SHARES]
    noise = [(f"noise-{level:g}", f"noise of {level:g}", Noisy(level)) for level in NOISE]
    turned = [
        (f"rotation-{'xyz'[axis]}-{angle}", f"{angle} degrees around {'xyz'[axis]}", Rotated(axis, angle))
        for axis in range(3)
        for angle in ANGLES
    ]
    found = [
        Suite(name="clean_clouds", title="Clean clouds", summary="unchanged clouds", conditions=clean),
        _suite("fewer_points", "Fewer points", "random halves, quarters and eighths of the points", fewer),
        _suite("point_noise", "Noise on points", "normal noise of 1, 2 and 5 % of the radius", noise),
        _suite("rotation", "Rotation", "rotations by 15, 30 and 90 degrees around x, y and z", turned),
        _suite("order", "Order of points", "random orders of the points", [("order", "random order", Shuffled())]),
    ]
    members = tuple(suite.name for suite in found[1:])
    summary = f"alias for {', '.join(members[:-1])} and {members[-1]}"
    found.append(Suite(name="point_robustness", title="Robustness", summary=summary, stands_for=members))
    return {suite.name: suite for suite in found}


def _suite(name: str, title: str, summary: str, changes: Sequence[tuple[str, str, Change]]) -> Suite:
    conditions = tuple(
        Condition(
            name=group if seed is None else f"{group}-seed{seed}",
            group=group,
            label=label,
            settings={"change": repr(change)},
            noise_seed=seed,
            example=change,
        )
        for group, label, change in changes
        for seed in ((None,) if isinstance(change, Rotated) else NOISE_SEEDS)
    )
    return Suite(name=name, title=title, summary=summary, conditions=conditions)
