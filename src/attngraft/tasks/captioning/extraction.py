"""Features of images, written to an HDF5 file (`features`)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attngraft.counting import count
from attngraft.errors import AttngraftError, DataError, FolderError
from attngraft.files import writing
from attngraft.hdf5 import array_in
from attngraft.opening import DAMAGE, check_regular, open_regular
from attngraft.suggest import cut
from attngraft.tasks.captioning.encoder import EncoderConfig, create_encoder, read_images
from attngraft.tasks.captioning.features import (
    ENDING,
    as_attribute,
    described,
    key_of,
    mistake,
    open_hdf5,
    text_attribute,
)

_STAMP = (
    "image"  #: attribute of an image's array, by which a changed image is found; absent in files of earlier versions
)


class FeatureWriter:
    """An HDF5 file of features that grows, with the image model that computed them.

    While it is written, it is called `.<name>.part`; the block's end, also by an error or an interrupt, gives it its name.
    Entries of an existing file are kept.

    Args:
        path: the file.
        facts: attributes of the file; those of an existing file must be the same.

    Raises:
        FolderError: an existing file is damaged or a link, or has features of another model or other weights.
        ConfigError: h5py is not installed.
        StorageError: the file cannot be written.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self._path, self._part, self._facts = path, path.with_name(f".{path.name}.part"), dict(facts)
        self._file: Any = None

    def __enter__(self) -> FeatureWriter:
        with writing(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            for each in (self._path, self._part):
                if each.is_symlink():
                    raise FolderError(
                        f"{each}: is a link, through which nothing is written; delete it, or use another --out"
                    )
                if each.exists():
                    check_regular(each)
            if self._path.exists() and not self._part.exists():
                os.replace(self._path, self._part)
        new = not self._part.exists()
        try:
            with writing(self._path) if new else self._reopening():
                self._file = open_hdf5(self._part, "w" if new else "r+")
                if new:
                    self._file.attrs.update({name: as_attribute(str(value)) for name, value in self._facts.items()})
                self._compare()
        except BaseException:
            self._close()
            raise
        return self

    @contextmanager
    def _reopening(self) -> Iterator[None]:
        try:
            yield
        except AttngraftError:
            raise
        except BlockingIOError:
            raise FolderError(
                f"{self._path}: is in use by another process; wait for it, or use another --out"
            ) from None
        except DAMAGE as error:
            raise FolderError(
                f"{self._path}: cannot be read as features in HDF5 ({cut(str(error))}); delete it, or use another --out"
            ) from None

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        with writing(self._path):
            if self._file is not None:
                self._file.close()
            if self._part.exists():
                os.replace(self._part, self._path)

    def _compare(self) -> None:
        for name, value in self._facts.items():
            found = text_attribute(self._file, name)
            if str(found) != str(value):
                raise FolderError(
                    f"{self._path}: has features with {name}={cut(str(found))}, not {cut(str(value))}; use another --out"
                )

    def has(self, name: str, image: Path, shape: tuple[int, ...]) -> bool:
        """Return whether the file has features of an image, of this shape and computed since the image last changed."""
        with self._reopening():
            array = array_in(self._file, f"{key_of(name)}{ENDING}")
            if array is None or array.shape != shape or array.dtype.kind != "f":
                return False
            return text_attribute(array, _STAMP) in (None, _stamp(image)) and not mistake(array[()])

    def add(self, features: Mapping[str, Tensor], images: Mapping[str, Path]) -> None:
        """Write the rows (R, C) of some images, by name, to the disk, with a digest of each image.

        Raises:
            StorageError: the disk is full.
        """
        with writing(self._path):
            for name, rows in features.items():
                entry = f"{key_of(name)}{ENDING}"
                if self._file.get(entry, getlink=True) is not None:
                    del self._file[entry]
                written = self._file.create_dataset(entry, data=rows.float().cpu().numpy())
                written.attrs[_STAMP] = as_attribute(_stamp(images[name]))
            self._file.flush()


def _stamp(image: Path) -> str:
    """Return the size and a digest of an image's file; empty if it cannot be read."""
    try:
        with open_regular(image) as file:
            return f"{os.fstat(file.fileno()).st_size} {hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"
    except OSError:  # reported when the image is read
        return ""


def write_features(
    config: EncoderConfig, images: Mapping[str, Path], out: Path, *, batch: int = 32, device: torch.device | None = None
) -> tuple[int, int]:
    """Compute the features of images that `out` lacks or that changed; return the numbers of new and of kept ones.

    Whole images are resized to the encoder's input size, so their aspect ratio changes but nothing is cut off.

    Args:
        config: the image model.
        images: files by name.

    Raises:
        DataError: an image cannot be read; those before it are kept.
        HostError: the model has no grid of features.
        FolderError, StorageError: see `FeatureWriter`.
    """
    encoder = create_encoder(config)
    facts = {**described(config), "digest": encoder.digest()}
    encoder = encoder.to(device or torch.device("cpu")).eval()
    with FeatureWriter(out, facts) as file:
        with torch.inference_mode():
            shape = tuple(encoder(encoder.blank())[0].shape)
        missing = [name for name in images if not file.has(name, images[name], shape)]
        count("images", 0, len(missing))
        for start in range(0, len(missing), batch):
            names = missing[start : start + batch]
            pixels = read_images([images[name] for name in names], encoder.given)
            with torch.inference_mode():
                rows = encoder(pixels.to(device))
            if not rows.isfinite().all():
                raise DataError(f"{images[names[0]]}: the features are not finite; use other weights")
            file.add(dict(zip(names, rows, strict=True)), images)
            count("images", start + len(names), len(missing))
    return len(missing), len(images) - len(missing)
