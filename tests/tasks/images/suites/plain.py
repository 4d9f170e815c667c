"""Corruptions once more, in float64 and in numpy alone: from their formulas, from the JPEG standard (ITU-T T.81) and from
JFIF. What is random comes from numpy's own generator. Images are (channels, H, W) between 0 and 1."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping

import numpy as np

Pixels = np.ndarray

#: severities 1 to 5, as in ImageNet-C's make_imagenet_c.py
LEVELS: Mapping[str, tuple[float, ...]] = {
    "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": (60, 25, 12, 5, 3),
    "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),
    "speckle_noise": (0.15, 0.2, 0.35, 0.45, 0.6),
    "gaussian_blur": (1, 2, 3, 4, 6),
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
    "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg": (25, 18, 15, 10, 7),
}


def noisy(name: str, values: Pixels, level: float, random: np.random.Generator) -> Pixels:
    """Values of any shape with noise, clipped."""
    match name:
        case "gaussian_noise":
            found = values + random.normal(size=values.shape, scale=level)
        case "shot_noise":
            found = random.poisson(values * level) / level
        case "speckle_noise":
            found = values + values * random.normal(size=values.shape, scale=level)
        case "impulse_noise":
            salt = np.where(random.random(values.shape) < 0.5, 1.0, 0.0)
            found = np.where(random.random(values.shape) < level, salt, values)
        case _:
            raise ValueError(name)
    return np.clip(found, 0, 1)


def changed(name: str, image: Pixels, level: float) -> Pixels:
    """An image under a corruption that draws nothing."""
    return {
        "gaussian_blur": blurred,
        "brightness": brightened,
        "contrast": with_contrast,
        "pixelate": pixelated,
        "jpeg": compressed,
    }[name](image, level)


def differences(name: str, image: Pixels, level: float, found: Pixels) -> tuple[float, float]:
    """Between `found` and a plain corruption of the image, in levels of 255: the mean and the largest."""
    apart = 255 * np.abs(found.astype(float) - changed(name, image.astype(float), level))
    return float(apart.mean()), float(apart.max())


#: how far a right corruption may be off, likewise. Pixelate and JPEG round to whole levels in between; a codec, whose
#: transform is in whole numbers, may also take the other of two quanta that lie about as near, and change a whole block
MOST_APART: Mapping[str, tuple[float, float]] = {
    "gaussian_blur": (1e-4, 1e-4),
    "brightness": (1e-4, 1e-4),
    "contrast": (1e-4, 1e-4),
    "pixelate": (0.6, 1.001),
    "jpeg": (1, 60),  # another quality by 1: 2.5 or more in the mean
}


def blurred(image: Pixels, sigma: float) -> Pixels:
    """Each place is the mean of those around it, weighed by the bell curve, out to 4 sigma."""
    reach = round(4 * sigma)
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    height, width = image.shape[1:]
    wide = np.pad(image, [(0, 0), (reach, reach), (reach, reach)], mode="edge")
    rows = sum(weight * wide[:, at : at + height] for at, weight in enumerate(weights))
    return np.asarray(sum(weight * rows[:, :, at : at + width] for at, weight in enumerate(weights)))


def brightened(image: Pixels, more: float) -> Pixels:
    """By the standard library's HSV, pixel by pixel."""
    found = np.empty_like(image)
    for row, column in np.ndindex(image.shape[1:]):
        hue, saturation, value = colorsys.rgb_to_hsv(*image[:, row, column])
        found[:, row, column] = colorsys.hsv_to_rgb(hue, saturation, min(value + more, 1))
    return found


def with_contrast(image: Pixels, left: float) -> Pixels:
    mean = image.reshape(len(image), -1).mean(1)[:, None, None]
    return np.clip(left * image + (1 - left) * mean, 0, 1)


def pixelated(image: Pixels, share: float) -> Pixels:
    """Each pixel becomes the mean of those whose middles lie in the same block; no middle may lie between two."""
    places = []
    for side in image.shape[1:]:
        blocks = int(side * share)
        places.append(np.ceil((np.arange(side) + 0.5) * blocks / side).astype(int) - 1)
    rows, columns = places
    found = np.empty_like(image)
    for row in np.unique(rows):
        for column in np.unique(columns):
            block = np.ix_(range(len(image)), rows == row, columns == column)
            found[block] = image[block].mean((1, 2), keepdims=True)
    return found


#: Annex K's tables for luminance and chrominance
LUMINANCE = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)
CHROMINANCE = np.full((8, 8), 99)
CHROMINANCE[:4, :4] = [[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]]

#: Y, Cb and Cr of red, green and blue (JFIF)
TO_YCC = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])


def compressed(image: Pixels, quality: float) -> Pixels:
    """What a JPEG file keeps, where sides are whole blocks of 16. Cb and Cr have half as many rows and columns."""
    levels = np.round(image * 255)
    if len(levels) == 1:
        return _kept(levels[0], LUMINANCE, quality)[None] / 255
    luma, *chroma = np.einsum("ij,jhw->ihw", TO_YCC, levels) + np.array([0, 128, 128])[:, None, None]
    planes = [_kept(np.round(luma), LUMINANCE, quality)]
    for plane in chroma:
        height, width = plane.shape
        halved = np.round(plane).reshape(height // 2, 2, width // 2, 2).mean((1, 3))
        planes.append(_doubled(_doubled(_kept(halved, CHROMINANCE, quality)).T).T)
    back = np.einsum("ij,jhw->ihw", np.linalg.inv(TO_YCC), np.stack(planes) - np.array([0, 128, 128])[:, None, None])
    return np.clip(np.round(back), 0, 255) / 255


def _kept(plane: Pixels, quanta: Pixels, quality: float) -> Pixels:
    """Each block's cosine transform in whole quanta, and back; quality scales the tables as libjpeg has it."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    quanta = np.clip((quanta * scale + 50) // 100, 1, 255)
    height, width = plane.shape
    frequency, place = np.ogrid[:8, :8]
    cosines = np.where(frequency == 0, 8**-0.5, 0.5) * np.cos((2 * place + 1) * frequency * np.pi / 16)
    blocks = plane.reshape(height // 8, 8, width // 8, 8).swapaxes(1, 2) - 128
    kept = np.round(cosines @ blocks @ cosines.T / quanta) * quanta
    back = (cosines.T @ kept @ cosines).swapaxes(1, 2).reshape(height, width)
    return np.clip(np.round(back + 128), 0, 255)


def _doubled(plane: Pixels) -> Pixels:
    """Twice the rows: three quarters of the nearer old one, a quarter of the other."""
    above, below = np.vstack([plane[:1], plane[:-1]]), np.vstack([plane[1:], plane[-1:]])
    return np.stack([(3 * plane + above) / 4, (3 * plane + below) / 4], axis=1).reshape(-1, plane.shape[1])
