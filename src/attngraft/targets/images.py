"""Image sets: named files, or the validation split of a data source."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from PIL import Image

from attngraft.downloads import received
from attngraft.errors import AttngraftError, DataError, UsageError
from attngraft.opening import open_regular
from attngraft.strict import read
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.opening import data_config, open_images
from attngraft.tasks.images.sources.decoding import UnreadableImage, decode
from attngraft.tasks.segmentation import Segmentation
from attngraft.tasks.segmentation.source import MaskSource
from attngraft.tasks.task import load_task
from attngraft.training.build import build_task
from attngraft.training.evaluate import naming_split, with_data
from attngraft.training.run_folder import RunFolder, RunRecord


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Images in a fixed order, opened one at a time."""

    source: str  #: name of the data and split, for messages
    names: Sequence[str]  #: unique
    open: Callable[[int], Image.Image]
    label_map: Callable[[int], np.ndarray] | None = (
        None  #: opens the label map (H, W) of an image; None: there are none
    )
    labels: np.ndarray | None = None  #: (N,) classes, or (N, K) of 0 and 1; None: unlabeled
    classes: tuple[str, ...] = ()
    user_chosen: bool = False  #: whether the user chose the images; False: a run's own validation images
    root: Path | None = None  #: folder of the files `names`; None: the images are not files of one folder

    def __len__(self) -> int:
        return len(self.names)

    def sample(self, count: int) -> list[int]:
        """Return the indices of at most `count` images, evenly spaced because data are often sorted by class."""
        if count >= len(self):
            return list(range(len(self)))
        return [int(index) for index in np.linspace(0, len(self) - 1, count).round()]


def images_from_files(paths: Sequence[str]) -> ImageSet:
    """Return the image set of the files `paths`.

    Raises:
        UsageError: `paths` is empty.
    """
    if not paths:
        raise UsageError("no images: give some with --image, or data with --data")

    def open_image(index: int) -> Image.Image:
        try:
            with open_regular(paths[index]) as stream:
                return decode(stream, where=paths[index])
        except UnreadableImage as error:
            raise DataError(f"{paths[index]}: cannot be read as an image ({error.reason})") from None
        except OSError as error:
            raise DataError(f"{paths[index]}: {error.strerror or error}") from None

    source = paths[0] if len(paths) == 1 else f"{len(paths)} files"
    return ImageSet(source=source, names=shortest_names(paths), open=open_image, user_chosen=True)


def shortest_names(paths: Sequence[str]) -> list[str]:
    """Return the shortest unique suffix of each path (`a/1.jpg`, `b/1.jpg`, `2.jpg`), numbering repeats."""
    parts = [[part for part in Path(path).parts if part != Path(path).anchor] for path in paths]
    distinct = {tuple(each) for each in parts}
    suffixes = Counter(each[start:] for each in distinct for start in range(len(each)))
    names = []
    for each in parts:
        start = next((start for start in reversed(range(len(each))) if suffixes[tuple(each[start:])] == 1), 0)
        names.append("/".join(each[start:]))
    return numbered_names(names)


def numbered_names(names: Iterable[str]) -> list[str]:
    """Return the names, made unique by numbers: `rose`, `rose (2)`."""
    numbers: Counter[str] = Counter()  # number last appended to each name
    taken: set[str] = set()
    unique = []
    for name in names:
        numbered = name
        while numbered in taken:
            numbers[name] += 1
            numbered = f"{name} ({numbers[name] + 1})"
        taken.add(numbered)
        unique.append(numbered)
    return unique


def images_from_data(source: str, *, split: str | None = None) -> ImageSet:
    """Return the validation split, or the split named `split`, of any source that `--data` accepts.

    Raises:
        DataError: the source cannot be opened.
    """
    return _open(DataConfig(source=source, val_split=split), None, split=split, user_chosen=True)


def images_from_run(record: RunRecord, *, data: str | None = None, split: str | None = None) -> ImageSet:
    """Return the validation images of a run, even if it is judged on a test split, or the chosen split of any data.

    Raises:
        UsageError: the run's task has no images.
        DataError: the data cannot be opened.
    """
    if data is None and split == "val":
        split = None  # the run's own, which may be random or have another name in the data
    own = data is None and split is None
    section = with_data(record.recipe, data, split).task.get("data", {})
    if not section or record.facts.get("kind") == "text":
        raise UsageError(
            f"{record.folder}: the task of this run ({record.recipe.task['name']}) has no images; give a run of images"
        )
    if (source := _masks(record, data)) is not None:
        return _with_masks(source, split, data=data)
    saved_split = RunFolder(record.folder).split
    config = read(data_config(record.recipe.task["name"]), section, where="task.data")
    with received(data):
        return _open(config, saved_split if own and saved_split.exists() else None, split=split, user_chosen=not own)


def _open(config: DataConfig, saved_split: Path | None, *, split: str | None, user_chosen: bool) -> ImageSet:
    with naming_split(split):
        opened = open_images(config, saved_split=saved_split)
    return ImageSet(
        source=f"{opened.source.where} ({split or 'validation'})",
        names=numbered_names(opened.val.names),
        open=opened.val.open,
        labels=None if config.numeric else opened.val.labels,
        classes=() if config.numeric else opened.source.classes,
        user_chosen=user_chosen,
        root=getattr(opened.val, "root", None),
    )


def _masks(record: RunRecord, data: str | None = None) -> MaskSource | None:
    """Open the images with masks of a run of segmentation, split as in training, or `data`; None: another task."""
    if not issubclass(load_task(record.recipe.task["name"]), Segmentation):
        return None
    task = cast(Segmentation, build_task(with_data(record.recipe, data, None)))
    if data is None:
        task.load_split(RunFolder(record.folder).split)
    return task.open_source()


def _with_masks(source: MaskSource, split: str | None, *, data: str | None) -> ImageSet:
    parts = source.parts()
    if split is None and data is not None and source.drawn:
        parts, split = {"all": source.train.joined(source.val)}, "all"
    if (split or "val") not in parts:
        raise DataError(f"{source.where}: no split {split!r}; splits: {', '.join(parts)}")
    images = parts[split or "val"]
    return ImageSet(
        source=f"{source.where} ({split or 'validation'})",
        names=numbered_names(images.names),
        open=images.image,
        label_map=images.label,
        user_chosen=data is not None or split is not None,
    )


def true_label_map(file: Path | str, record: RunRecord | None) -> np.ndarray | None:
    """Return the label map (H, W) of an image file; None: it is not among the data of a run of segmentation."""
    path = Path(file).resolve()
    try:
        source = None if record is None else _masks(record)
        for images in () if source is None else source.parts().values():
            for index, each in enumerate(images.images):
                if isinstance(each, Path) and each.name == path.name and each.resolve() == path:
                    return images.label(index)
    except AttngraftError:  # the data may have moved
        pass
    return None


def true_classes(file: Path | str, *, classes: Sequence[str], record: RunRecord | None) -> tuple[str, ...]:
    """Return the classes of an image file: its folder's name, or its labels among a run's validation images.

    Empty if the folder has not the name of a class, and the file is not among these images.
    """
    path = Path(file).resolve()
    if path.parent.name in classes:
        return (path.parent.name,)
    if record is None or "data" not in record.recipe.task:
        return ()
    try:
        found = images_from_run(record)
    except AttngraftError:  # the data may have moved
        return ()
    if found.root is None or found.labels is None or not path.is_relative_to(found.root.resolve()):
        return ()
    name = path.relative_to(found.root.resolve()).as_posix()
    if name not in found.names:
        return ()
    label = found.labels[list(found.names).index(name)]
    return tuple(found.classes[each] for each in (np.flatnonzero(label) if np.ndim(label) else [label]))
