"""Augmentation of point clouds."""

import numpy as np

from attngraft.tasks.points.config import PointAugmentConfig

_FEW = 5  #: noise is cut at so many standard deviations


def augmented(values: np.ndarray, config: PointAugmentConfig, random: np.random.Generator) -> np.ndarray:
    """Scale, rotate, shift and disturb a cloud.

        p' = R (s * p) + d + noise,    n' = R (n / s), with norm 1

    Normals of a scaled surface are those of the surface divided by the scale.

    Args:
        values: (N, 3) coordinates, or (N, 6) with normals.
    """
    scale = random.uniform(*config.scale, 3)
    shift = random.uniform(-config.shift, config.shift, 3)
    parts = [values[:, :3] * scale, *([values[:, 3:] / scale] if values.shape[1] == 6 else [])]
    if config.rotate != "none":
        matrix = rotation("xyz".index(config.rotate), float(random.uniform(0, 2 * np.pi)))
        parts = [part @ matrix.T for part in parts]
    parts[0] = parts[0] + shift
    if config.noise:
        parts[0] = parts[0] + config.noise * random.standard_normal(parts[0].shape).clip(-_FEW, _FEW)
    if len(parts) == 2:
        norms = np.linalg.norm(parts[1], axis=1, keepdims=True)
        parts[1] = np.divide(parts[1], norms, out=parts[1], where=norms > 0)
    return np.concatenate(parts, axis=1).astype(np.float32)


def rotation(axis: int, angle: float) -> np.ndarray:
    """Return the rotation matrix (3, 3) by an angle in radians around the axis 0 (x), 1 (y) or 2 (z)."""
    matrix, (i, j) = np.eye(3), [other for other in range(3) if other != axis]
    matrix[i, i] = matrix[j, j] = np.cos(angle)
    matrix[i, j], matrix[j, i] = -np.sin(angle), np.sin(angle)
    return matrix
