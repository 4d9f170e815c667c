"""Test sets for models of ImageNet's 1000 classes, downloaded by the user: contents, source and layout.

The classes of each set and ReaL's labels are timm's lists (`timm.data`).
"""

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
_WNIDS = "{data}/n01440764/..., a folder per class, named by its WordNet id: {classes} folders, {images:,} images"
_VALIDATION = re.compile(r"ILSVRC2012_val_(\d{8})", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """Description of a test set."""

    __test__ = False  # not a pytest class

    title: str
    summary: str
    images: int  #: number of images in the complete set
    subset: str = ""  #: name of timm's list of the set's classes; empty: all 1000
    numbered: bool = False  #: folders may be named 0 to 999 instead of by WordNet ids
    by_name: bool = False  #: ReaL: labels follow from the names of ImageNet's validation files
    download: str = ""
    layout: str = _WNIDS


@dataclass(frozen=True, kw_only=True)
class TestImages:
    """Images of a test set's folder."""

    __test__ = False

    images: FolderImages  #: labels are ImageNet's, 0 to 999
    classes: tuple[int, ...] | None  #: the only classes that the model may predict; None: all
    accepted: Mapping[str, Sequence[int]] = field(
        default_factory=dict
    )  #: image name -> all labels that count as correct
    notes: tuple[str, ...] = ()


TEST_SETS: Mapping[str, TestSet] = {
    "imagenet": TestSet(
        title="ImageNet validation",
        summary="ImageNet's validation images",
        images=50_000,
        download="ILSVRC2012_img_val.tar, https://image-net.org/download-images.php (free of charge, after registration); "
        "sorted into classes by valprep.sh, https://github.com/soumith/imagenetloader.torch",
    ),
    "real": TestSet(
        title="ImageNet ReaL",
        summary="ImageNet's validation images with reassessed labels (Beyer et al. 2020), any of which counts",
        images=50_000,
        by_name=True,
        download="ILSVRC2012_img_val.tar, https://image-net.org/download-images.php (free of charge, after registration); "
        "the labels come with timm",
        layout="{data}/ILSVRC2012_val_00000001.JPEG to ..._00050000.JPEG, all in one folder or in folders of any name: "
        "{images:,} images",
    ),
    "v2": TestSet(
        title="ImageNet-V2",
        summary="ImageNet-V2, matched frequency (Recht et al. 2019)",
        images=10_000,
        numbered=True,
        download="imagenetv2-matched-frequency.tar.gz, https://huggingface.co/datasets/vaishaal/ImageNetV2",
        layout="{data}/0/... to {data}/999/..., a folder per class, named by its number (or WordNet id): {classes} folders, "
        "{images:,} images",
    ),
    "a": TestSet(
        title="ImageNet-A",
        summary="ImageNet-A, 200 classes (Hendrycks et al. 2021), among which the model chooses",
        images=7_500,
        subset="imagenet_a",
        download="imagenet-a.tar, https://github.com/hendrycks/natural-adv-examples",
    ),
    "r": TestSet(
        title="ImageNet-R",
        summary="ImageNet-R, renditions of 200 classes (Hendrycks et al. 2021), among which the model chooses",
        images=30_000,
        subset="imagenet_r",
        download="imagenet-r.tar, https://github.com/hendrycks/imagenet-r",
    ),
    "sketch": TestSet(
        title="ImageNet-Sketch",
        summary="ImageNet-Sketch (Wang et al. 2019)",
        images=50_889,
        download="ImageNet-Sketch.zip, https://github.com/HaohanWang/ImageNet-Sketch",
    ),
}


def how_to_get(name: str, *, data: str = "FOLDER") -> str:
    """Return download instructions for a suite's images: source, layout and options."""
    test_set = TEST_SETS[name]
    classes = len(_subset(test_set.subset)) if test_set.subset else CLASSES
    layout = test_set.layout.format(data=data, classes=classes, images=test_set.images)
    return f"download {test_set.download}; unpack it as {layout}; then give --data {data} or --suite {name}={data}"


def open_test_set(name: str, folder: Path) -> TestImages:
    """Open the images of a test set and check their folders.

    Raises:
        DataError: the folder does not exist or has a different layout; the message gives the download and expected layout.
    """
    test_set = TEST_SETS[name]
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; {how_to_get(name, data=str(folder))}")
    listing = list_folder(folder)
    files = sorted(listing.files)
    if test_set.by_name:
        return _real(name, folder, files)
    expected = _folder_names(test_set)
    by_class = by_top_folder(files)
    outside = by_class.pop("", [])
    naming = next((names for names in expected if by_class.keys() & names.keys()), expected[0])
    missing, other = sorted(naming.keys() - by_class.keys()), sorted(by_class.keys() - naming.keys())
    if missing or other:
        raise DataError(_wrong_folders(name, folder, missing, other, len(naming)))
    if outside:
        raise DataError(
            f"{folder}: {len(outside):,} image{'s' * (len(outside) > 1)} outside the class folders ({outside[0]}); "
            f"move them into the folder of their class, or out of {folder}"
        )
    names = [file for label in naming for file in by_class[label]]
    labels = np.array([naming[label] for label in naming for _ in by_class[label]], dtype=np.int64)
    return TestImages(
        images=FolderImages(folder, names=names, labels=labels),
        classes=tuple(_subset(test_set.subset)) if test_set.subset else None,
        notes=_incomplete(folder, test_set, len(names)),
    )


def check_test_set(name: str, folder: str, classes: Sequence[str] | None, where: str) -> None:
    """Check a test set's folder, and that a model with these classes, if known, can be evaluated on it.

    Raises:
        DataError: see `open_test_set` and `imagenet_order`.
    """
    open_test_set(name, Path(folder))
    if classes is not None:
        imagenet_order(classes, run=where)


def by_top_folder(files: Iterable[str]) -> dict[str, list[str]]:
    """Group files by top-level folder; files without a folder are under ""."""
    folders: dict[str, list[str]] = {}
    for file in files:
        folders.setdefault(file.split("/")[0] if "/" in file else "", []).append(file)
    return folders


def _real(name: str, folder: Path, files: Sequence[str]) -> TestImages:
    labels = real_labels()
    numbers = {file: int(match[1]) for file in files if (match := _VALIDATION.search(os.path.basename(file)))}
    if not numbers:
        raise DataError(
            f"{folder}: no file is named like ImageNet's validation images; {how_to_get(name, data=str(folder))}"
        )
    beyond = [file for file, number in numbers.items() if not 1 <= number <= len(labels)]
    if beyond:
        raise DataError(
            f"{folder}/{beyond[0]}: not one of ImageNet's validation images, which are numbered 1 to {len(labels)}; "
            "remove it"
        )
    kept = {file: labels[number - 1] for file, number in numbers.items() if labels[number - 1]}
    if not kept:
        raise DataError(
            f"{folder}: ReaL has no label for any of its {len(numbers)} images; add more of ImageNet's validation images"
        )
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


def _folder_names(test_set: TestSet) -> list[dict[str, int]]:
    """Return the supported namings of the class folders, each as a mapping from folder name to label."""
    wordnet_ids = synsets()
    indices = _subset(test_set.subset) if test_set.subset else range(CLASSES)
    namings = [{wordnet_ids[index]: index for index in indices}]
    if test_set.numbered:
        namings.append({str(index): index for index in indices})
    return namings


def _wrong_folders(name: str, folder: Path, missing: Sequence[str], other: Sequence[str], wanted: int) -> str:
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {wanted} class folders are missing or empty ({', '.join(missing[:3])}, ...)")
    if other:
        parts.append(f"{len(other)} folders are not among its classes ({', '.join(other[:3])}, ...)")
    return f"{folder}: {'; '.join(parts)}; {how_to_get(name, data=str(folder))}"


def _incomplete(folder: Path, test_set: TestSet, images: int) -> tuple[str, ...]:
    if images == test_set.images:
        return ()
    return (f"{folder} contains {images:,} of {test_set.title}'s {test_set.images:,} images.",)


@cache
def synsets() -> tuple[str, ...]:
    """Return the WordNet ids of ImageNet's classes, in timm's order."""
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())


@cache
def real_labels() -> tuple[tuple[int, ...], ...]:
    """Return ReaL's labels of the 50,000 validation images, by number; an image can have no label."""
    content = pkgutil.get_data("timm.data", "_info/imagenet_real_labels.json")
    return tuple(tuple(labels) for labels in json.loads(content or b"[]"))


@cache
def _subset(name: str) -> tuple[int, ...]:
    """Return the indices of a test set's classes among ImageNet's."""
    content = pkgutil.get_data("timm.data", f"_info/{name}_indices.txt")
    return tuple(int(line) for line in (content or b"").split())


def imagenet_order(classes: Sequence[str], *, run: Path | str) -> np.ndarray:
    """Return the index, among a run's classes, of each ImageNet class in timm's order: (1000,).

    Raises:
        DataError: the run's classes are not ImageNet's.
    """
    if len(classes) != CLASSES:
        raise DataError(
            f"{run}: its model has {len(classes)} classes ({', '.join(map(str, classes[:3]))}, ...), but this suite "
            f"has images of ImageNet's {CLASSES}; evaluate a model trained on ImageNet, or remove the suite"
        )
    index_of = {name: index for index, name in enumerate(classes)}
    numbers = [str(index) for index in range(CLASSES)]
    for names in (synsets(), numbers):
        if index_of.keys() == set(names):
            return np.array([index_of[name] for name in names])
    raise DataError(
        f"{run}: its model has {CLASSES} classes, but not with ImageNet's names (n01440764, ..., or 0 to 999); "
        "evaluate a run whose classes have these names"
    )
