"""Generated images for regression: 500 gray 16x16 images of a bar of random length and thickness."""

import numpy as np

from attngraft.errors import ConfigError
from attngraft.suggest import did_you_mean
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import ArrayImages, ImageSource

NUMBERS = ("length", "thickness")  #: in pixels, with fractions; unchanged by flips and by shifts of up to two pixels

_IMAGES, _SIDE, _MARGIN, _NOISE = 500, 16, 2, 8.0


def open_bars(config: DataConfig) -> ImageSource:
    """Return the images with both numbers, or with those named in `label_column` or `label_columns`.

    Raises:
        ConfigError: a number is unknown.
    """
    names = config.label_columns or ((config.label_column,) if config.label_column else NUMBERS)
    for name in names:
        if name not in NUMBERS:
            near = did_you_mean(name, NUMBERS)
            raise ConfigError(f"task.data.label_columns: bars have no {name!r}{near}; available: {', '.join(NUMBERS)}")
    random = np.random.RandomState(0)  # its streams are the same in all NumPy versions
    sizes = random.uniform([3, 1], [12, 6], (_IMAGES, 2))
    begins = _MARGIN + random.uniform(size=(_IMAGES, 2)) * (_SIDE - 2 * _MARGIN - sizes)
    columns, rows = (_covered(begins[:, axis], sizes[:, axis]) for axis in (0, 1))
    gray = 30 + 190 * rows[:, :, None] * columns[:, None, :] + random.normal(scale=_NOISE, size=(_IMAGES, _SIDE, _SIDE))
    images = ArrayImages(
        np.clip(np.rint(gray), 0, 255).astype(np.uint8),
        names=[f"bars/{i}" for i in range(_IMAGES)],
        labels=sizes[:, [NUMBERS.index(name) for name in names]],
    )
    return ImageSource(
        kind="bars", where="bars", classes=names, train=images, val=None, origin="the bars", numeric=True
    )


def _covered(begin: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return the fraction of each pixel that lies between `begin` and `begin + size`, (N, pixels)."""
    pixels = np.arange(_SIDE)
    ends = np.minimum(pixels + 1, (begin + size)[:, None]) - np.maximum(pixels, begin[:, None])
    return np.clip(ends, 0, 1)
