"""Training images with dense label maps, and random crops that record their position in the image.

A label map, in the format of the authors, contains the class scores of a strong model at each location of a training image.
It is a float16 tensor (2, K, Y, X) with the K highest scores before softmax at each location, and their classes. The file's
path consists of the last two components of the image's path, up to the first dot of the name: the map of
train/n01440764/n01440764_18.JPEG is FOLDER/n01440764/n01440764_18.pt.
"""

import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import Image
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch import Tensor
from torchvision.transforms import Compose, RandomHorizontalFlip, RandomVerticalFlip

from attngraft.errors import DataAccessError, DataError
from attngraft.files import atomic_file
from attngraft.opening import DAMAGE, open_zip
from attngraft.tasks.images.sources import in_mode
from attngraft.tasks.images.splits import ImageSplit, LabelledSplit
from attngraft.tasks.seeding import seeded
from attngraft.tasks.task import Split

FIELD = "task.token_labels.maps"
_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
EXACT_IN_HALF = 2048  #: largest number up to which float16 represents every integer exactly


class LabelMaps:
    """A folder of label maps for data with `classes` classes."""

    def __init__(self, folder: str | Path, *, classes: int) -> None:
        self.folder, self.classes = Path(folder), classes

    def file(self, name: str) -> Path:
        """Return the path of the label map of the image `name`."""
        path = PurePosixPath(name)
        return self.folder / path.parent.name / f"{path.name.partition('.')[0]}.pt"

    def check(self, names: Sequence[str]) -> None:
        """Check by listing folders that every image has a map, and read the first map.

        Raises:
            DataError: the folder does not exist, or images have no map, or no map of their own.
        """
        if not self.folder.is_dir():
            raise DataError(f"{FIELD}: {self.folder} is not a folder; unpack the label maps to it")
        files = [self.file(name) for name in names]
        existing = {path for folder in {file.parent for file in files} if folder.is_dir() for path in folder.iterdir()}
        image_of: dict[Path, str] = {}
        for name, file in zip(names, files, strict=True):
            if (other := image_of.setdefault(file, name)) != name:
                raise DataError(f"{file}: is the map of two images, {other} and {name}; rename one with its map")
        missing = [file for file in files if file not in existing]
        if missing:
            raise DataError(
                f"{FIELD}: {len(missing)} of {len(files)} training images have no label map (first: {missing[0]}); "
                "maps must be in one folder per class and named like the images"
            )
        self.read(names[0])

    def read(self, name: str) -> Tensor:
        """Read the map of an image, (2, K, Y, X).

        Raises:
            DataError: the file cannot be read, or is not a label map.
        """
        file = self.file(name)
        try:
            with open_zip(file) as opened:
                content = torch.load(opened, map_location="cpu", weights_only=True)
        except (*DAMAGE, pickle.UnpicklingError) as error:
            reason = str(error).partition("\n")[0]
            kind = DataAccessError if isinstance(error, OSError) else DataError
            raise kind(f"{file}: cannot be read as a label map: {reason}; unpack the label maps again") from None
        if not isinstance(content, Tensor) or content.is_nested or content.layout != torch.strided:
            what = "another kind of tensor" if isinstance(content, Tensor) else type(content).__name__
            raise DataError(f"{file}: a label map must be a dense tensor, got {what}; save it with save_label_map")
        if content.ndim != 4 or len(content) != 2 or not content.numel():
            raise DataError(f"{file}: a label map must have shape (2, K, rows, columns), got {tuple(content.shape)}")
        if content.dtype not in _TYPES or content.device.type != "cpu" or not _is_whole(content):
            raise DataError(
                f"{file}: a label map must contain all its numbers, as float16 or float32; save it with save_label_map"
            )
        if not content.isfinite().all() or not torch.equal(content[1], content[1].round()):
            raise DataError(
                f"{file}: scores must be finite, and classes whole numbers; make the map again with save_label_map"
            )
        if (content[1].sort(dim=0).values.diff(dim=0) == 0).any():
            raise DataError(f"{file}: contains a class twice at one place; make the map again with save_label_map")
        lowest, highest = int(content[1].min()), int(content[1].max())
        if lowest < 0 or highest >= self.classes:
            raise DataError(
                f"{file}: contains class {lowest if lowest < 0 else highest}, but the data have {self.classes} classes; use "
                "maps made for the same classes in the same order"
            )
        return content


def _is_whole(tensor: Tensor) -> bool:
    """Return whether the storage has all numbers of a tensor; an expanded view repeats some."""
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def save_label_map(scores: Tensor, file: str | Path, *, best: int = 5) -> None:
    """Save an image's label map: the `best` highest scores before softmax at each location.

    Readers assume a score of 0 for all other classes, so the scores of each location are shifted such that the highest
    unsaved score is 0. The file is float32 if class numbers exceed 2,048, which float16 cannot represent.

    Args:
        scores: (classes, Y, X).
        file: the file to write.
        best: number of scores to save at each location.
    """
    exact = scores.detach().float().cpu()
    values, classes = exact.topk(min(best + 1, len(exact)), dim=0)
    if len(exact) > best:
        values, classes = (values - values[-1])[:-1], classes[:-1]
    file, content = Path(file), torch.stack([values, classes.float()])
    with atomic_file(file) as opened:
        torch.save(content.half() if len(exact) <= EXACT_IN_HALF else content, opened)


@dataclass
class Crop:
    """Edges of a crop, as fractions of the image's width and height, and its flips."""

    left: float = 0.0
    top: float = 0.0
    right: float = 1.0
    bottom: float = 1.0
    hflip: bool = False
    vflip: bool = False

    def tensor(self) -> Tensor:
        """Return the fields in their order as a tensor (6,)."""
        return torch.tensor([self.left, self.top, self.right, self.bottom, self.hflip, self.vflip])


class TrackedTransform:
    """Wrapper of `images.transforms.train_transform` that also returns the crop; images are identical.

    Labels follow only the crop and the flips. Geometric steps of RandAugment (rotation, shear, shift) move the image without
    its labels, which then no longer match their patches exactly.
    """

    def __init__(self, transform: Compose) -> None:
        self.steps = transform.transforms

    def __call__(self, image: Image.Image) -> tuple[Tensor, Crop]:
        crop, result = Crop(), image
        for step in self.steps:
            result = self._apply(step, result, crop)
        return result, crop  # type: ignore[return-value]  # the last step makes a tensor

    def _apply(self, step: Any, image: Image.Image, crop: Crop) -> Image.Image:
        if isinstance(step, RandomResizedCropAndInterpolation):
            top, left, rows, columns = step.get_params(image, step.scale, step.ratio)
            several = isinstance(step.interpolation, tuple | list)
            interpolation = random.choice(step.interpolation) if several else step.interpolation
            crop.left, crop.right = left / image.width, (left + columns) / image.width
            crop.top, crop.bottom = top / image.height, (top + rows) / image.height
            return F.resized_crop(image, top, left, rows, columns, step.size, interpolation)
        if isinstance(step, RandomHorizontalFlip):
            crop.hflip = bool(torch.rand(1) < step.p)
            return F.hflip(image) if crop.hflip else image
        if isinstance(step, RandomVerticalFlip):
            crop.vflip = bool(torch.rand(1) < step.p)
            return F.vflip(image) if crop.vflip else image
        result: Image.Image = step(image)
        return result


class MappedSplit(Split):
    """Examples of `split` with label maps; a batch also contains `maps` (B, 2, K, Y, X) and `crop` (B, 6).

    The first call of `order`, before the first training step, checks that every image has a map. Evaluation does not call
    `order`.
    """

    def __init__(self, split: ImageSplit, transform: TrackedTransform, maps: LabelMaps) -> None:
        self.split, self.transform, self.maps = split, transform, maps
        self.checked = False

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: tuple[int, int]) -> Any:
        epoch, index = key
        split, position = self.split, index % len(self)
        image = in_mode(split.images.open(position), split.host.mode)
        with seeded("augment", split.seed, epoch, index):
            result, crop = self.transform(image)
        return (result, split.labels[position]), self.maps.read(self.name(index)), crop.tensor()

    def collate(self, examples: list[Any]) -> dict[str, Tensor]:
        pairs, maps, crops = zip(*examples, strict=True)
        if len(shapes := {tuple(each.shape) for each in maps}) > 1:
            raise DataError(
                f"{self.maps.folder}: label maps must have the same shape (2, K, rows, columns), got "
                f"{', '.join(map(str, sorted(shapes)))}"
            )
        return {**self.split.collate(list(pairs)), "maps": torch.stack(maps), "crop": torch.stack(crops)}

    def name(self, index: int) -> str:
        return self.split.name(index)

    def order(self, *, seed: int, epoch: int) -> np.ndarray | None:
        """Return the order of the wrapped split.

        Raises:
            DataError: images have no label map.
        """
        if not self.checked:
            self.maps.check([self.name(index) for index in range(len(self))])
            self.checked = True
        return self.split.order(seed=seed, epoch=epoch)


def with_maps(split: LabelledSplit, maps: LabelMaps) -> MappedSplit:
    """Return `split` with label maps.

    Raises:
        DataError: the transform of `split` has no random crop.
    """
    steps = getattr(split.transform, "transforms", ())
    random_crop = any(isinstance(step, RandomResizedCropAndInterpolation) for step in steps)
    if not isinstance(split, ImageSplit) or not random_crop:
        raise DataError("task.token_labels.maps: label maps require random crops; use --set task.augment.crop=resized")
    return MappedSplit(split, TrackedTransform(cast(Compose, split.transform)), maps)
