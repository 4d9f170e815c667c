"""Test sets for models of ImageNet's 1000 classes, which the user downloads: what they are, from where, how they lie.

Which classes a set has, and ReaL's labels, are timm's own lists (`timm.data`).
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.images.sources.folder import FolderImages, list_folder

CLASSES = 1000
_VALIDATION = re.compile(r"ILSVRC2012_val_(\d{8})", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """Images in a folder per class."""

    __test__ = False  # no test of pytest's

    title: str
    summary: str
    images: int  #: how many there are when all of them are there
    subset: str = ""  #: of timm's lists of classes that it has; empty: all 1000
    numbered: bool = False  #: folders may be 0 to 999 instead of WordNet ids
    by_name: bool = False  #: ReaL: labels follow from the names of ImageNet's validation files
    where: str = ""
    layout: str = ""


@dataclass(frozen=True, kw_only=True)
class TestImages:
    """What was found in the folder."""

    __test__ = False

    images: FolderImages  #: labels are ImageNet's, 0 to 999
    classes: tuple[int, ...] | None  #: those that may be answered; None: all
    accepted: Mapping[str, Sequence[int]] = field(default_factory=dict)  #: by name, the labels that count as right
    notes: tuple[str, ...] = ()


_WNIDS = "{data}/n01440764/..., a folder per class, named by its WordNet id: {classes} folders, {images:,} images"

TEST_SETS: Mapping[str, TestSet] = {
    "imagenet": TestSet(
        title="ImageNet validation",
        summary="ImageNet's validation images",
        images=50_000,
        where="ILSVRC2012_img_val.tar, https://image-net.org/download-images.php (free of charge, after registration); "
        "sorted into classes by valprep.sh, https://github.com/soumith/imagenetloader.torch",
        layout=_WNIDS,
    ),
    "real": TestSet(
        title="ImageNet ReaL",
        summary="ImageNet's validation images with reassessed labels (Beyer et al. 2020), any of which counts",
        images=50_000,
        by_name=True,
        where="ILSVRC2012_img_val.tar, https://image-net.org/download-images.php (free of charge, after registration); the "
        "labels come with timm",
        layout="{data}/ILSVRC2012_val_00000001.JPEG to ..._00050000.JPEG, all in one folder or in folders of any name: "
        "{images:,} images",
    ),
    "v2": TestSet(
        title="ImageNet-V2",
        summary="ImageNet-V2, matched frequency (Recht et al. 2019)",
        images=10_000,
        numbered=True,
        where="imagenetv2-matched-frequency.tar.gz, https://huggingface.co/datasets/vaishaal/ImageNetV2",
        layout="{data}/0/... to {data}/999/..., a folder per class, named by its number (or WordNet id): {classes} folders, "
        "{images:,} images",
    ),
    "a": TestSet(
        title="ImageNet-A",
        summary="ImageNet-A, 200 classes (Hendrycks et al. 2021), among which the model chooses",
        images=7_500,
        subset="imagenet_a",
        where="imagenet-a.tar, https://github.com/hendrycks/natural-adv-examples",
        layout=_WNIDS,
    ),
    "r": TestSet(
        title="ImageNet-R",
        summary="ImageNet-R, renditions of 200 classes (Hendrycks et al. 2021), among which the model chooses",
        images=30_000,
        subset="imagenet_r",
        where="imagenet-r.tar, https://github.com/hendrycks/imagenet-r",
        layout=_WNIDS,
    ),
    "sketch": TestSet(
        title="ImageNet-Sketch",
        summary="ImageNet-Sketch (Wang et al. 2019)",
        images=50_889,
        where="ImageNet-Sketch.zip, https://github.com/HaohanWang/ImageNet-Sketch",
        layout=_WNIDS,
    ),
}


def how_to_get(name: str, *, data: str = "FOLDER") -> str:
    """What to download for a suite, from where, and how to lay it out."""
    found = TEST_SETS[name]
    classes = len(_subset(found.subset)) if found.subset else CLASSES
    layout = found.layout.format(data=data, classes=classes, images=found.images)
    return f"download {found.where}; unpack it so that it lies as {layout}; then give --data {data} or --suite {name}={data}"


def open_test_set(name: str, folder: Path) -> TestImages:
    """The images of a test set, their folders checked.

    Raises:
        DataError: the folder is not there, or not laid out as it should be; says what to download, and how it should lie.
    """
    found = TEST_SETS[name]
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; {how_to_get(name, data=str(folder))}")
    listing = list_folder(folder)
    files = sorted(listing.files)
    if found.by_name:
        return _real(name, folder, files)
    wanted = _folders(found)
    by_class = by_top_folder(files)
    outside = by_class.pop("", [])
    naming = next((names for names in wanted if by_class.keys() & names.keys()), wanted[0])
    missing, other = sorted(naming.keys() - by_class.keys()), sorted(by_class.keys() - naming.keys())
    if missing or other:
        raise DataError(_wrong_folders(name, folder, missing, other, len(naming)))
    if outside:
        raise DataError(
            f"{folder}: {len(outside):,} image{'s' * (len(outside) > 1)} beside the class folders ({outside[0]}), whose "
            "class is not known: move them into its folder, or away"
        )
    names = [file for label in naming for file in by_class[label]]
    labels = np.array([naming[label] for label in naming for _ in by_class[label]], dtype=np.int64)
    return TestImages(
        images=FolderImages(folder, names=names, labels=labels),
        classes=tuple(_subset(found.subset)) if found.subset else None,
        notes=_incomplete(folder, found, len(names)),
    )


def by_top_folder(files: Iterable[str]) -> dict[str, list[str]]:
    """Files, as listed, by the uppermost folder that they are in; those in none under the empty name."""
    found: dict[str, list[str]] = {}
    for file in files:
        found.setdefault(file.split("/")[0] if "/" in file else "", []).append(file)
    return found


def _real(name: str, folder: Path, files: Sequence[str]) -> TestImages:
    labels = real_labels()
    numbers = {file: int(match[1]) for file in files if (match := _VALIDATION.search(os.path.basename(file)))}
    if not numbers:
        raise DataError(
            f"{folder}: holds no file named as ImageNet's validation images are; {how_to_get(name, data=str(folder))}"
        )
    beyond = [file for file, number in numbers.items() if not 1 <= number <= len(labels)]
    if beyond:
        raise DataError(f"{folder}/{beyond[0]}: ImageNet's validation images have the numbers 1 to {len(labels)}")
    kept = {file: labels[number - 1] for file, number in numbers.items() if labels[number - 1]}
    if not kept:
        raise DataError(f"{folder}: ReaL has no label for any of its {len(numbers)} images")
    skipped = len(numbers) - len(kept)
    return TestImages(
        images=FolderImages(
            folder, names=list(kept), labels=np.array([each[0] for each in kept.values()], dtype=np.int64)
        ),
        classes=None,
        accepted=kept,
        notes=(
            *_incomplete(folder, TEST_SETS[name], len(numbers)),
            *([f"{skipped:,} images have no label in ReaL and are skipped."] if skipped else []),
        ),
    )


def _folders(found: TestSet) -> list[dict[str, int]]:
    """The ways in which class folders may be named, each with its labels."""
    every = synsets()
    indices = _subset(found.subset) if found.subset else range(CLASSES)
    ways = [{every[index]: index for index in indices}]
    if found.numbered:
        ways.append({str(index): index for index in indices})
    return ways


def _wrong_folders(name: str, folder: Path, missing: Sequence[str], other: Sequence[str], wanted: int) -> str:
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {wanted} class folders are missing or empty ({', '.join(missing[:3])}, ...)")
    if other:
        parts.append(f"{len(other)} folders are none of its classes ({', '.join(other[:3])}, ...)")
    return f"{folder}: {'; '.join(parts)}; {how_to_get(name, data=str(folder))}"


def _incomplete(folder: Path, found: TestSet, images: int) -> tuple[str, ...]:
    return () if images == found.images else (f"{folder} holds {images:,} of {found.title}'s {found.images:,} images.",)


@cache
def synsets() -> tuple[str, ...]:
    """The WordNet ids of ImageNet's classes, in timm's order."""
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())


@cache
def real_labels() -> tuple[tuple[int, ...], ...]:
    """ReaL's labels of the 50,000 validation images, in the order of their numbers; none where no label is right."""
    content = pkgutil.get_data("timm.data", "_info/imagenet_real_labels.json")
    return tuple(tuple(labels) for labels in json.loads(content or b"[]"))


@cache
def _subset(name: str) -> tuple[int, ...]:
    """Numbers of the classes that a set has."""
    content = pkgutil.get_data("timm.data", f"_info/{name}_indices.txt")
    return tuple(int(line) for line in (content or b"").split())


def imagenet_order(classes: Sequence[str], *, run: Path) -> np.ndarray:
    """(1000,): the place of each of ImageNet's classes, in timm's order, among a run's.

    Raises:
        DataError: the run's classes are others.
    """
    if len(classes) != CLASSES:
        raise DataError(
            f"{run}: its model has {len(classes)} classes ({', '.join(map(str, classes[:3]))}, ...), and this suite's "
            f"images are of ImageNet's {CLASSES}: evaluate a model that was trained on ImageNet, or leave the suite out"
        )
    place = {name: index for index, name in enumerate(classes)}
    numbers = [str(index) for index in range(CLASSES)]
    for names in (synsets(), numbers):
        if place.keys() == set(names):
            return np.array([place[name] for name in names])
    raise DataError(
        f"{run}: its model has {CLASSES} classes, but they are not named as ImageNet's (n01440764, ..., or 0 to 999): which "
        "is which cannot be told"
    )
