"""Dense label maps in their authors' format: the class scores of a strong model at each location of a training image.

A map is a tensor (2, K, Y, X), float16: the K highest scores at each location, before softmax, and their classes. Its file
is named by the last two components of the image's path, up to the first dot of its name:
train/n01440764/n01440764_18.JPEG has FOLDER/n01440764/n01440764_18.pt.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from attngraft.errors import DataError

FIELD = "task.token_labels.maps"
EXACT_IN_HALF = 2048  #: integers up to this are exact in float16


class LabelMaps:
    """A folder of label maps for data with `classes` classes."""

    def __init__(self, folder: str | Path, *, classes: int) -> None:
        self.folder, self.classes = Path(folder), classes

    def file(self, name: str) -> Path:
        """Return the path of the map of the image called `name`."""
        path = PurePosixPath(name)
        return self.folder / path.parent.name / f"{path.name.partition('.')[0]}.pt"

    def check(self, names: Sequence[str]) -> None:
        """Check that every image has a map, by listing folders, and read the first.

        Raises:
            DataError: no such folder, or images without a map.
        """
        if not self.folder.is_dir():
            raise DataError(f"{FIELD}: {self.folder} is not a folder; unpack the label maps there")
        files = [self.file(name) for name in names]
        existing = {path for folder in {file.parent for file in files} if folder.is_dir() for path in folder.iterdir()}
        missing = [file for file in files if file not in existing]
        if missing:
            raise DataError(
                f"{FIELD}: {len(missing)} of {len(files)} training images have no label map, the first is {missing[0]}; "
                "maps are in a folder per class, named like the images"
            )
        self.read(names[0])

    def read(self, name: str) -> Tensor:
        """Read the map of an image, (2, K, Y, X).

        Raises:
            DataError: the file cannot be read, or holds something else.
        """
        file = self.file(name)
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(f"{file}: cannot be read as a label map: {reason}; unpack it again") from None
        if not isinstance(content, Tensor) or content.ndim != 4 or len(content) != 2 or not content.numel():
            what = tuple(content.shape) if isinstance(content, Tensor) else type(content).__name__
            raise DataError(f"{file}: a label map must have shape (2, K, rows, columns), not {what}")
        highest = int(content[1].max())
        if not content[1].min() >= 0 or highest >= self.classes:
            raise DataError(
                f"{file}: has class {highest}, but the data have {self.classes} classes; use maps that were made for these "
                "classes, in their order"
            )
        return content


def save_label_map(scores: Tensor, file: str | Path, *, best: int = 5) -> None:
    """Save the label map of one image: the `best` of scores (classes, Y, X), before softmax, at each location.

    Readers take the scores of all other classes for 0, so the scores of each location are shifted until the highest score
    that is not saved is 0. Class numbers above 2,048 need float32, which is then used for the file.
    """
    exact = scores.detach().float().cpu()
    values, classes = exact.topk(min(best + 1, len(exact)), dim=0)
    if len(exact) > best:
        values, classes = (values - values[-1])[:-1], classes[:-1]
    file, content = Path(file), torch.stack([values, classes.float()])
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content.half() if len(exact) <= EXACT_IN_HALF else content, file)
