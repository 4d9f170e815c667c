"""scikit-learn's handwritten digits: 1,797 images of 8x8 pixels in ten classes, part of that package."""

from __future__ import annotations

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.array import ArrayImages
from attngraft.tasks.images.sources.parts import Parts


def open_digits(config: DataConfig) -> Parts:
    """The digits, with gray levels 0 to 16 stretched to 0 to 255.

    Raises:
        DataError: a part was named; they have none.
    """
    for name, part in (("train_split", config.train_split), ("val_split", config.val_split)):
        if part is not None:
            raise DataError(
                f"digits: has no part {part!r} (task.data.{name}); use task.data.val_fraction and split_seed"
            )
    from sklearn.datasets import load_digits

    data = load_digits()
    pixels = np.rint(data.images * (255 / 16)).astype(np.uint8)
    names = [f"digits/{i}" for i in range(len(pixels))]
    images = ArrayImages(pixels, names=names, labels=data.target.astype(np.int64))
    classes = tuple(str(digit) for digit in data.target_names)
    return Parts(
        kind="digits", where="digits", classes=classes, train=images, val=None, origin="the digits", mirrored=False
    )
