"""Dense label maps as their authors publish them: for every training image what a strong model sees at each place.

A map is a tensor (2, K, Y, X), float16: of each place the K highest scores, before any softmax, and their classes. It lies
in a file of its own, by the last two parts of the image's path up to the first dot of its name:
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
EXACT_IN_HALF = 2048  #: whole numbers up to this are float16's, too


class LabelMaps:
    """A folder of them, for data of so many classes."""

    def __init__(self, folder: str | Path, *, classes: int) -> None:
        self.folder, self.classes = Path(folder), classes

    def file(self, name: str) -> Path:
        """Where the map of the image called `name` lies."""
        path = PurePosixPath(name)
        return self.folder / path.parent.name / f"{path.name.partition('.')[0]}.pt"

    def check(self, names: Sequence[str]) -> None:
        """See that every image has a map, by listing folders, and read the first.

        Raises:
            DataError: no such folder, or images without one.
        """
        if not self.folder.is_dir():
            raise DataError(f"{FIELD}: {self.folder} is no folder; unpack the label maps there")
        files = [self.file(name) for name in names]
        there = {path for folder in {file.parent for file in files} if folder.is_dir() for path in folder.iterdir()}
        missing = [file for file in files if file not in there]
        if missing:
            raise DataError(
                f"{FIELD}: {len(missing)} of {len(files)} training images have no label map, the first is {missing[0]}; "
                "maps lie in a folder for each class, by the names of the images"
            )
        self.read(names[0])

    def read(self, name: str) -> Tensor:
        """The map of an image, (2, K, Y, X).

        Raises:
            DataError: the file cannot be read, or holds something else.
        """
        file = self.file(name)
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
        except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(f"{file}: cannot be read as a label map: {reason}; unpack it again") from None
        if not isinstance(found, Tensor) or found.ndim != 4 or len(found) != 2 or not found.numel():
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise DataError(f"{file}: a label map has the shape (2, K, rows, columns), this is {what}")
        highest = int(found[1].max())
        if not found[1].min() >= 0 or highest >= self.classes:
            raise DataError(
                f"{file}: speaks of class {highest}, and the data have {self.classes}; take maps that were made for these "
                "classes, in their order"
            )
        return found


def save_label_map(scores: Tensor, file: str | Path, *, best: int = 5) -> None:
    """Write the map of one image: of scores (classes, Y, X), before any softmax, each place keeps the `best`.

    Who reads a map takes the scores of all other classes for 0. So the scores of each place are moved until that of the
    first class that is left out is 0. Numbers of more than 2,048 classes need float32, which is written then.
    """
    exact = scores.detach().float().cpu()
    values, classes = exact.topk(min(best + 1, len(exact)), dim=0)
    if len(exact) > best:
        values, classes = (values - values[-1])[:-1], classes[:-1]
    file, found = Path(file), torch.stack([values, classes.float()])
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(found.half() if len(exact) <= EXACT_IN_HALF else found, file)
