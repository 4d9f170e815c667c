"""Other map-style data sets of timm's `create_dataset`: `timm:hfds/...`, `timm:torch/cifar10`, ..."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import IterableDataset

from attngraft.downloads import DownloadRefused, may_download
from attngraft.errors import DataError
from attngraft.image_files import open_image
from attngraft.opening import open_regular
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import Images, ImageSource
from attngraft.tasks.images.sources.decoding import decode

#: prefixes of timm's names that do not require `timm:`
PREFIXES = ("hfds/", "torch/")
_REMOTE = ("hfds", "hfids", "tfds", "wds")  #: readers that may download data


class TimmImages(Images):
    """Images of a timm or torchvision data set.

    They are read through the data set's reader, if it has one, because timm's `__getitem__` silently replaces unreadable
    images with their neighbors.
    """

    def __init__(
        self, dataset: Any, *, name: str, indices: np.ndarray, names: Sequence[str], labels: np.ndarray
    ) -> None:
        self.dataset, self.name, self.indices, self.names, self.labels = dataset, name, indices, names, labels

    def open(self, index: int) -> Image.Image:
        number, where = int(self.indices[index]), f"{self.name}: {self.names[index]}"
        reader = getattr(self.dataset, "reader", None)
        try:
            self._check_file(reader, number)
            item = (self.dataset if reader is None else reader)[number][0]
        except Exception as error:
            raise DataError(f"{where}: cannot be read ({error})") from error
        if isinstance(item, Image.Image):
            return item
        with item:
            return decode(item, where=where)

    def _check_file(self, reader: Any, number: int) -> None:
        """Check the image's file, if timm or torchvision would open it by its path, in any of Pillow's formats."""
        samples = getattr(self.dataset if reader is None else reader, "samples", None)
        path = Path(samples[number][0]) if samples and isinstance(samples[number][0], str) else None
        if path is not None and path.exists():
            with open_regular(path) as file, open_image(file):
                pass

    def take(self, indices: np.ndarray, labels: np.ndarray) -> TimmImages:
        names = [self.names[i] for i in indices]
        return TimmImages(self.dataset, name=self.name, indices=self.indices[indices], names=names, labels=labels)


def open_timm(name: str, config: DataConfig) -> ImageSource:
    """Open a data set by its timm name; attngraft itself downloads nothing, but timm's readers may.

    Raises:
        DataError: the name was read from a received file, and a reader that may download it is not permitted.
        DataError: timm cannot open the data set (the message has timm's reason), or it can only be streamed, or it has no
            class labels.
    """
    reader = name.partition("/")[0].lower()
    if reader in _REMOTE and not may_download(name):
        raise DataError(f"timm:{name}: the {reader} reader may download it, and {DownloadRefused()}")
    train = _open(name, config, config.train_split or "train")
    val = None if config.splits_train else _open(name, config, config.val_split or "validation")
    split = config.train_split or "train"
    classes = _classes(train, np.concatenate([_labels(each, name) for each in (train, val) if each is not None]))
    return ImageSource(
        kind="timm",
        where=name,
        classes=classes,
        train=_images(train, name, split),
        val=None if val is None else _images(val, name, config.val_split or "validation"),
        test_split=None if config.test_split == "none" else config.test_split,  # timm cannot list splits
        origin=f"timm's splits {split} and {config.val_split or 'validation'}" if val else f"timm's split {split}",
    )


def _open(name: str, config: DataConfig, split: str) -> Any:
    from timm.data import create_dataset  # local import: it takes seconds

    try:
        dataset = create_dataset(name, root=config.root, split=split)
    except Exception as error:  # timm's assertions, and arbitrary errors of its back ends
        reason = str(error) or type(error).__name__
        raise DataError(
            f"timm:{name}: timm cannot open the split {split!r} ({reason}); check the name, --set "
            "task.data.root=FOLDER, train_split and "
            "val_split; hfds/ requires the package `datasets`"
        ) from error
    if isinstance(dataset, IterableDataset):
        raise DataError(f"timm:{name}: can only be streamed; use a map-style data set (hfds/, torch/, files)")
    return dataset


def _labels(dataset: Any, name: str) -> np.ndarray:
    """Return all labels, (N,) int64, without decoding images if the data set allows it."""
    reader: Any = getattr(dataset, "reader", None)
    for holder, attribute in ((dataset, "targets"), (dataset, "labels"), (reader, "targets")):
        labels = getattr(holder, attribute, None)
        if labels is not None and len(labels) == len(dataset):
            return _checked(np.asarray(labels), name)
    if hasattr(reader, "label_key"):
        return _checked(np.asarray(list(reader.dataset[reader.label_key])), name)
    if hasattr(reader, "samples"):
        return _checked(np.asarray([label for _, label in reader.samples]), name)
    return _checked(np.asarray([dataset[i][1] for i in range(len(dataset))]), name)


def _checked(labels: np.ndarray, name: str) -> np.ndarray:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"timm:{name}: classification requires one integer label per image; got {labels.dtype} {labels.shape}"
        )
    if len(labels) and labels.min() < 0:
        raise DataError(
            f"timm:{name}: some images have no label; choose labeled splits with --set task.data.train_split=NAME and "
            "val_split"
        )
    return labels.astype(np.int64)


def _classes(dataset: Any, labels: np.ndarray) -> tuple[str, ...]:
    """Return the data set's class names, or else the label numbers."""
    numbers = getattr(getattr(dataset, "reader", None), "class_to_idx", None) or getattr(dataset, "class_to_idx", None)
    count = int(labels.max()) + 1 if len(labels) else 0
    names = [str(label) for label in range(max(count, max(numbers.values(), default=-1) + 1 if numbers else 0))]
    for name, label in (numbers or {}).items():
        names[label] = str(name)
    return tuple(names)


def _images(dataset: Any, name: str, split: str) -> TimmImages:
    labels = _labels(dataset, name)
    return TimmImages(
        dataset, name=name, indices=np.arange(len(labels)), names=_names(dataset, split, len(labels)), labels=labels
    )


def _names(dataset: Any, split: str, count: int) -> list[str]:
    """Return the file names if they are unique, otherwise numbers."""
    if hasattr(dataset, "filenames"):
        names = [str(name) for name in dataset.filenames()]
    else:
        names = [_relative(str(sample[0]), dataset.root) for sample in getattr(dataset, "samples", [])]
    if len(set(names)) == count and "None" not in names:
        return names
    return [f"{split}/{i}" for i in range(count)]


def _relative(path: str, root: str) -> str:
    return Path(path).relative_to(root).as_posix() if Path(path).is_relative_to(root) else path
