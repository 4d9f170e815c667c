"""Features of images: the grid of a host, one row per position, written to an HDF5 file (`features`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from attngraft.counting import count
from attngraft.errors import AttngraftError, DataError, FolderError, HostError
from attngraft.files import writing
from attngraft.opening import DAMAGE, check_regular
from attngraft.suggest import cut
from attngraft.tasks.captioning.features import ENDING, HOST, PRETRAINED, key_of, open_hdf5
from attngraft.tasks.images.inputs import HostInput, image_to_tensor
from attngraft.tasks.images.stored import read_image


def grid_features(model: nn.Module, images: Tensor) -> Tensor:
    """Return the last map of a host as rows, (B, R, C): after its last norm, without prefix tokens, pooling and head.

    Args:
        model: a host with `forward_intermediates`, or `forward_features` that returns tokens (B, N, C).
        images: normalized images (B, 3, H, W).

    Raises:
        HostError: the host has neither.
    """
    intermediates, features = (getattr(model, name, None) for name in ("forward_intermediates", "forward_features"))
    if callable(intermediates):
        found: Tensor = intermediates(images, indices=1, norm=True, output_fmt="NCHW", intermediates_only=True)[-1]
        return found.flatten(2).transpose(1, 2)
    if callable(features):
        found = features(images)
        if isinstance(found, Tensor) and found.ndim == 3:
            return found[:, getattr(model, "num_prefix_tokens", 0) :]
    raise HostError(
        f"{type(model).__name__}: has neither forward_intermediates nor tokens in forward_features, which return a grid of "
        "features; use a timm host, such as timm:resnet50"
    )


class FeatureWriter:
    """An HDF5 file of features that grows, with the host's name and whether it has trained weights.

    While it is written, it is called `.<name>.part`; the block's end, also by an error or an interrupt, gives it its name.
    Entries of an existing file are kept.

    Args:
        path: the file.
        facts: attributes of the file; those of an existing file must be the same.

    Raises:
        FolderError: an existing file is damaged, or has features of another host or other weights.
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
                if each.exists():
                    check_regular(each)
            if self._path.exists() and not self._part.exists():
                os.replace(self._path, self._part)
        new = not self._part.exists()
        try:
            with writing(self._path) if new else self._reopening():
                self._file = open_hdf5(self._part, "w" if new else "r+")
                if new:
                    self._file.attrs.update(self._facts)
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
            found = self._file.attrs.get(name)
            if str(found) != str(value):
                raise FolderError(
                    f"{self._path}: has features with {name}={cut(str(found))}, not {cut(str(value))}; use another --out"
                )

    def __contains__(self, name: str) -> bool:
        return f"{key_of(name)}{ENDING}" in self._file

    def add(self, features: Mapping[str, Tensor]) -> None:
        """Write the rows (R, C) of some images, by name, to the disk.

        Raises:
            StorageError: the disk is full.
        """
        with writing(self._path):
            for name, rows in features.items():
                self._file.create_dataset(f"{key_of(name)}{ENDING}", data=rows.float().cpu().numpy())
            self._file.flush()


def write_features(
    model: nn.Module,
    images: Mapping[str, Path],
    out: Path,
    *,
    host: str,
    pretrained: bool,
    batch: int = 32,
    device: torch.device | None = None,
) -> tuple[int, int]:
    """Compute the features of images that `out` lacks, and return the numbers of new and of kept ones.

    Whole images are resized to the host's input size, so their aspect ratio changes but nothing is cut off.

    Args:
        model: the host.
        images: files by name.
        host: name of the host and its weights, kept in the file.
        pretrained: whether the host has trained weights.

    Raises:
        DataError: an image cannot be read; those before it are kept.
        HostError: the host has no grid of features.
        FolderError, StorageError: see `FeatureWriter`.
    """
    given = HostInput.from_model(resolve_model_data_config(model))
    device = device or torch.device("cpu")
    model = model.to(device).eval()
    facts = {HOST: host, PRETRAINED: pretrained, "input_size": f"{given.height}x{given.width}"}
    with FeatureWriter(out, facts) as file:
        missing = [name for name in images if name not in file]
        chunks = [missing[start : start + batch] for start in range(0, len(missing), batch)]
        count("images", 0, len(missing))
        for number, names in enumerate(chunks, start=1):
            pixels = given.normalize(torch.stack(_read([images[name] for name in names], given)).to(device))
            with torch.inference_mode():
                rows = grid_features(model, pixels)
            if not rows.isfinite().all():
                raise DataError(f"{images[names[0]]}: the features are not finite; use other weights")
            file.add(dict(zip(names, rows, strict=True)))
            count("images", min(number * batch, len(missing)), len(missing))
    return len(missing), len(images) - len(missing)


def _read(files: Sequence[Path], host: HostInput) -> list[Tensor]:
    """Return images resized to the host's input, uint8 (C, H, W)."""

    def resized(file: Path) -> Tensor:
        image = read_image(file).convert(host.mode)
        return image_to_tensor(image.resize((host.width, host.height), Image.Resampling.BICUBIC))

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return list(threads.map(resized, files))
