"""Point clouds of composed primitives: three categories with seven parts, labels by construction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

Part = tuple[float, Callable[[int], np.ndarray]]  #: area, and a function that samples points of the surface

CATEGORIES = ("lamp", "mug", "table")
PARTS = ((0, 1, 2), (3, 4), (5, 6))  #: base, pole, shade; body, handle; plate, legs


def box(random: np.random.Generator, low: np.ndarray, high: np.ndarray) -> Part:
    """The surface of a box."""
    size = high - low
    areas = np.array([size[(axis + 1) % 3] * size[(axis + 2) % 3] for axis in range(3)])

    def sample(count: int) -> np.ndarray:
        points = low + size * random.random((count, 3))
        axis = random.choice(3, size=count, p=areas / areas.sum())
        rows = np.arange(count)
        points[rows, axis] = np.where(random.random(count) < 0.5, low[axis], high[axis])
        return points

    return float(2 * areas.sum()), sample


def cone(random: np.random.Generator, bottom: float, top: float, radii: tuple[float, float]) -> Part:
    """The side of a cone between two heights; a cylinder for equal radii."""

    def sample(count: int) -> np.ndarray:
        part, angle = random.random(count), 2 * np.pi * random.random(count)
        radius = radii[0] + (radii[1] - radii[0]) * part
        return np.stack([radius * np.cos(angle), radius * np.sin(angle), bottom + (top - bottom) * part], axis=1)

    return np.pi * sum(radii) * (top - bottom), sample


def moved(part: Part, by: tuple[float, float, float]) -> Part:
    area, sample = part
    return area, lambda count: sample(count) + np.array(by)


def shape(category: str, random: np.random.Generator) -> list[tuple[int, Part]]:
    """Parts of a random shape, with their numbers."""
    a, b, c = random.uniform(0.7, 1.3, 3)
    if category == "table":
        plate = box(random, np.array([-a, -b, c]), np.array([a, b, c + 0.1]))
        feet = [(x, y, 0.0) for x in (-0.9 * a, 0.9 * a) for y in (-0.9 * b, 0.9 * b)]
        return [(5, plate), *((6, moved(cone(random, 0, c, (0.08, 0.08)), foot)) for foot in feet)]
    if category == "lamp":
        return [
            (0, cone(random, 0, 0.1, (0.6 * a, 0.5 * a))),
            (1, cone(random, 0.1, 1.5 * c, (0.08, 0.08))),
            (2, cone(random, 1.5 * c, 1.5 * c + 0.6 * b, (0.7 * b, 0.4 * b))),
        ]
    body = cone(random, 0, 1.2 * c, (0.6 * a, 0.6 * a))
    handle = box(random, np.array([0.6 * a, -0.06, 0.3 * c]), np.array([0.6 * a + 0.4 * b, 0.06, 0.9 * c]))
    return [(3, body), (4, handle)]


def cloud(category: str, random: np.random.Generator, *, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Points (points, 3) of a random shape, sampled by area, and their parts."""
    pieces = shape(category, random)
    areas = np.array([area for _, (area, _) in pieces])
    counts = 8 + random.multinomial(points - 8 * len(pieces), areas / areas.sum())
    found = np.concatenate([sample(count) for count, (_, (_, sample)) in zip(counts, pieces, strict=True)])
    parts = np.repeat([number for number, _ in pieces], counts)
    order = random.permutation(points)
    return found[order].astype(np.float32), parts[order]


def write_shapes(path: Path, *, points: int = 64, seed: int = 0, normals: bool = False, **counts: int) -> Path:
    """Write an .npz with so many clouds of each category in each split (`train=8, val=4`); normals are made up."""
    random, arrays = np.random.default_rng(seed), {}
    for split, count in counts.items():
        labels = np.arange(3 * count) % 3
        made = [cloud(CATEGORIES[label], random, points=points) for label in labels]
        clouds = np.stack([xyz for xyz, _ in made])
        units = clouds / np.linalg.norm(clouds, axis=2, keepdims=True)
        arrays[f"x_{split}"] = np.concatenate([clouds, units], axis=2) if normals else clouds
        arrays[f"y_{split}"] = labels
        arrays[f"parts_{split}"] = np.stack([parts for _, parts in made])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, classes=np.array(CATEGORIES), **arrays)  # type: ignore[arg-type]
    return path
