"""scikit-learn's handwritten digits: 1,797 images of 8x8 pixels in ten classes, included in that package."""

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import ArrayImages, ImageSource


def open_digits(config: DataConfig) -> ImageSource:
    """Return the digits, with gray levels 0 to 16 scaled to 0 to 255.

    Raises:
        DataError: a split is configured; the digits have no splits.
    """
    from sklearn.datasets import load_digits  # local import: it takes a second

    for field, split in (("train_split", config.train_split), ("val_split", config.val_split)):
        if split is not None:
            raise DataError(
                f"digits: there is no split {split!r} (task.data.{field}); use --set task.data.val_fraction=0.2"
            )
    data = load_digits()
    pixels = np.rint(data.images * (255 / 16)).astype(np.uint8)
    names = [f"digits/{i}" for i in range(len(pixels))]
    images = ArrayImages(pixels, names=names, labels=data.target.astype(np.int64))
    classes = tuple(str(digit) for digit in data.target_names)
    return ImageSource(
        kind="digits", where="digits", classes=classes, train=images, val=None, origin="the digits", mirrored=False
    )
