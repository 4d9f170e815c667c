"""Images in an .npz file.

Its arrays are `x_train`, `y_train`, the same for `val` or `test`, and optionally `classes` and the file names `f_*`.
"""

import zipfile
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources.base import ArrayImages, ImageSource, find_splits


def open_npz(path: Path, config: DataConfig) -> ImageSource:
    """Open the images in an .npz file.

    `x_*` are uint8, (N, H, W) or (N, H, W, C) with 1, 3 or 4 channels. `y_*` (N,) are integers from 0, which are indices
    into `classes` if that array exists. A file with only `x_train` requires `val_fraction`.

    Raises:
        DataError: the file is not an .npz, or an array is missing or has a wrong shape, type or label.
    """
    arrays = _load(path)
    names = [key.removeprefix("x_") for key in arrays if key.startswith("x_")]
    train, val, test = find_splits(names, config, where=str(path))
    if train is None:
        keys = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(f"{path}: must contain the arrays x_train and y_train; found: {keys}")
    classes = _classes(arrays, path, [split for split in (train, val) if split is not None])
    return ImageSource(
        kind="npz",
        where=str(path),
        classes=classes,
        train=_images(arrays, train, path=path, count=len(classes)),
        val=None if val is None else _images(arrays, val, path=path, count=len(classes)),
        test_split=test,
        origin=f"the arrays x_{train} and x_{val}" if val else f"the array x_{train}",
    )


def alone_in(folder: Path) -> Path | None:
    """Return the .npz file in `folder` if it is the only one and there are no subfolders."""
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    files = [entry for entry in entries if entry.suffix == ".npz"]
    return files[0] if len(files) == 1 and not any(entry.is_dir() for entry in entries) else None


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise DataError(
            f"{path}: cannot be read as .npz ({error}); write it with numpy.savez, without object arrays"
        ) from None


def _classes(arrays: dict[str, np.ndarray], path: Path, splits: list[str]) -> tuple[str, ...]:
    """Return the names in the array `classes`, or else the label numbers."""
    for split in splits:
        labels = arrays.get(f"y_{split}")
        if labels is None:
            raise DataError(f"{path}: has images x_{split} but no labels y_{split}")
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise DataError(f"{path}: y_{split} must be one integer per image, got {labels.dtype} {labels.shape}")
    if "classes" in arrays:
        return tuple(_text(name) for name in arrays["classes"].tolist())
    highest = max((int(arrays[f"y_{split}"].max()) for split in splits if len(arrays[f"y_{split}"])), default=-1)
    return tuple(str(label) for label in range(highest + 1))


def _images(arrays: dict[str, np.ndarray], split: str, *, path: Path, count: int) -> ArrayImages:
    pixels, labels, files = arrays[f"x_{split}"], arrays[f"y_{split}"].astype(np.int64), arrays.get(f"f_{split}")
    if pixels.dtype != np.uint8:
        raise DataError(f"{path}: x_{split} must be uint8 (0 to 255), got {pixels.dtype}")
    if pixels.ndim == 4 and pixels.shape[-1] not in (1, 3, 4) and pixels.shape[1] in (1, 3):
        raise DataError(
            f"{path}: x_{split} is channels-first {pixels.shape}; make it channels-last with x.transpose(0, 2, 3, 1)"
        )
    if pixels.ndim not in (3, 4) or (pixels.ndim == 4 and pixels.shape[-1] not in (1, 3, 4)):
        raise DataError(
            f"{path}: x_{split} must be (N, H, W) or (N, H, W, C) with 1, 3 or 4 channels, got {pixels.shape}"
        )
    for name, array in (("y", labels), ("f", files)):
        if array is not None and len(array) != len(pixels):
            raise DataError(f"{path}: x_{split} has {len(pixels)} images, {name}_{split} has {len(array)} entries")
    if len(labels) and not 0 <= labels.min() <= labels.max() < count:
        raise DataError(
            f"{path}: y_{split} ranges from {labels.min()} to {labels.max()}, but labels of {count} classes must be 0 to "
            f"{count - 1}"
        )
    names = [f"{split}/{i}" for i in range(len(pixels))] if files is None else [_text(name) for name in files.tolist()]
    return ArrayImages(
        pixels[..., 0] if pixels.shape[-1:] == (1,) and pixels.ndim == 4 else pixels, names=names, labels=labels
    )


def _text(name: object) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)
