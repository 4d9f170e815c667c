"""Images with captions, split into training, validation and test.

The formats are those of `files`. A file of Karpathy (`dataset_*.json`) divides the images of all other files anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from attngraft.errors import DataError
from attngraft.files import user_path
from attngraft.opening import access_errors
from attngraft.suggest import cut, shortened
from attngraft.tasks.captioning.config import CaptionDataConfig
from attngraft.tasks.captioning.files import (
    Captioned,
    by_key,
    read_caption_table,
    read_coco_captions,
    read_flickr,
    read_karpathy,
    read_names,
)
from attngraft.tasks.captioning.vocabulary import words_of
from attngraft.tasks.images.coco import coco_files
from attngraft.tasks.images.folders import SPLITS
from attngraft.tasks.images.sources.table import KINDS
from attngraft.tasks.images.split_source import SplitSource, split_images

T = TypeVar("T")
Parts = dict[str, list[Captioned]]  #: images by split

_GIVE = (
    "give a folder with annotations/captions_train*.json (COCO), captions_train.jsonl or .csv, *.token.txt (Flickr) or "
    "dataset_*.json (Karpathy), or one such file"
)
_LISTED = 5  #: most names in a message
_PROBED = 20  #: number of images to look for when searching for their folder
_FOLDERS = ("images", "Images", "Flicker8k_Dataset", "flickr30k-images", "")


@dataclass(frozen=True, kw_only=True)
class CaptionedImages:
    """Images of a split and their captions; only names are certain to exist, since features replace the images."""

    names: tuple[str, ...]
    images: tuple[Path, ...]
    captions: tuple[tuple[str, ...], ...]
    keys: tuple[int | None, ...]  #: COCO's ids
    places: tuple[str, ...]  #: file and entry, for messages

    def __len__(self) -> int:
        return len(self.names)

    def take(self, indices: Iterable[int]) -> CaptionedImages:
        """Return the images at `indices`."""
        chosen = [int(i) for i in indices]
        return CaptionedImages(
            names=tuple(self.names[i] for i in chosen),
            images=tuple(self.images[i] for i in chosen),
            captions=tuple(self.captions[i] for i in chosen),
            keys=tuple(self.keys[i] for i in chosen),
            places=tuple(self.places[i] for i in chosen),
        )

    def joined(self, other: CaptionedImages) -> CaptionedImages:
        """Return these images and those of another split."""
        return CaptionedImages(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )


CaptionSource = SplitSource[CaptionedImages]


@access_errors()
def open_captions(config: CaptionDataConfig, *, saved_split: Path | None = None) -> CaptionSource:
    """Read the captions and split the images; `saved_split` is a file that replaces the random split.

    Raises:
        DataError: the data cannot be used; the message names the file, the entry and the remedy.
    """
    path = user_path(config.source)
    root = path if path.is_dir() else path.parent
    found, origin, notes = _read(path)
    _refuse_copies(found)
    file = _karpathy_file(path, config) if saved_split is None else None
    if file is not None:
        found, origin = _assigned(found, file), f"the splits of {file.name}"
    if not found:
        raise DataError(
            f"{path}: its captions are in a file of Karpathy, which also splits them; remove val_fraction, split_file and "
            "folds, or give the captions in another format too"
        )
    if "train" not in found:
        raise DataError(f"{path}: no captions for training (found: {', '.join(found) or 'none'}); {_GIVE}")
    parts = {split: _gathered(images, root, config.images) for split, images in found.items() if images}
    if file is not None and (missing := {"train", "val"} - parts.keys()):
        noun = {"train": "training", "val": "validation"}[min(missing)]
        raise DataError(f"{path}: no images for {noun} ({origin}); add some, or change the split")
    if file is not None:  # which has assigned the images
        config = replace(config, split_file=None, val_fraction=None)
    training = _captions(parts["train"]) if "train" in parts else ()
    if wordless := [name for name, captions in training if not words_of(captions)]:
        notes.append(f"{len(wordless)} training captions have no word, such as one of {wordless[0]}; remove them.")
    return split_images(parts, config, root=path, origin=origin, notes=notes, saved_split=saved_split)


def _captions(images: CaptionedImages) -> Iterable[tuple[str, str]]:
    return (
        (name, caption) for name, captions in zip(images.names, images.captions, strict=True) for caption in captions
    )


def _read(path: Path) -> tuple[Parts, str, list[str]]:
    """Return the images of each split, a description of the splits, and notes; none for a folder with Karpathy's alone."""
    origin = "the splits of the data"
    if path.is_file():
        if path.suffix.lower() in KINDS:
            notes = list[str]()
            return {"train": read_caption_table(path, notes)}, origin, notes
        if path.suffix.lower() == ".json":
            karpathy = path.name.startswith("dataset_")
            return ({}, origin, []) if karpathy else ({"train": read_coco_captions(path, split="")}, origin, [])
        return _read_flickr(path)
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder; {_GIVE}")
    files = {re.sub(r"\d+$", "", name): (name, file) for name, file in coco_files(path, ("captions_",)).items()}
    coco = _of_splits(files)
    if coco and all(file.name.startswith("captions_") for _, file in coco.values()):
        notes = _unread(path, [file for _, file in coco.values()])
        return {split: read_coco_captions(file, split=name) for split, (name, file) in coco.items()}, origin, notes
    tables = {file.stem: file for file in sorted(path.glob("captions*")) if file.suffix.lower() in KINDS}
    of_splits = _of_splits({name.removeprefix("captions_"): file for name, file in tables.items()})
    if not of_splits and "captions" in tables:
        of_splits = {"train": tables["captions"]}
    if of_splits:
        notes = _unread(path, list(of_splits.values()))
        return {split: read_caption_table(file, notes) for split, file in of_splits.items()}, origin, notes
    tokens = [file for file in sorted(path.rglob("*.token*")) if file.name.endswith((".token", ".token.txt"))]
    tokens = sorted(tokens, key=lambda file: "lemma" in file.name)
    if tokens:
        found, origin, notes = _read_flickr(tokens[0])
        return found, origin, _unused(path, tokens, tokens[:1]) + notes
    if any(path.glob("dataset_*.json")):
        return {}, origin, []
    raise DataError(f"{path}: no captions in this folder; {_GIVE}")


def _unread(path: Path, used: Sequence[Path]) -> list[str]:
    """Return a note on the files of captions in a folder that are not used."""
    files = [file for folder in (path / "annotations", path) for file in sorted(folder.glob("captions*"))]
    return _unused(path, [file for file in files if file.suffix.lower() in (".json", *KINDS)], used)


def _unused(folder: Path, files: Sequence[Path], used: Sequence[Path]) -> list[str]:
    """Return a note on the files that are not used."""
    left = sorted(str(file.relative_to(folder)) for file in {*files} - {*used})
    names = [str(file.relative_to(folder)) for file in used]
    return [f"Not used: {shortened(left, _LISTED)}; used: {', '.join(names)}."] if left else []


def _of_splits(found: Mapping[str, T]) -> dict[str, T]:
    return {split: found[name] for split, names in SPLITS.items() for name in names if name in found}


def _read_flickr(file: Path) -> tuple[Parts, str, list[str]]:
    """Read a token file and the lists of the splits beside it, `*trainImages.txt`, `*devImages.txt`, `*testImages.txt`."""
    images = {image.name: image for image in read_flickr(file)}
    parts, listed, notes = Parts(), set[str](), list[str]()
    for split, word in {"train": "train", "val": "dev", "test": "test"}.items():
        lists = sorted(file.parent.glob(f"*{word}Images.txt"))
        notes += _unused(file.parent, lists, lists[:1])
        for each in lists[:1]:
            parts[split] = []
            for name, where in read_names(each).items():
                if name not in images:
                    raise DataError(f"{where}: {cut(name)} has no captions in {file}; add some, or remove this line")
                if name in listed:
                    raise DataError(f"{where}: {cut(name)} is also in another split; remove it from one of them")
                parts[split].append(images[name])
                listed.add(name)
    if not parts:
        return {"train": list(images.values())}, "the images", []
    left = len(images) - len(listed)
    if left:
        notes.append(f"{left} image{' is' if left == 1 else 's are'} in no list of {file.parent}, and not used.")
    return parts, "the lists of the data", notes


def _karpathy_file(path: Path, config: CaptionDataConfig) -> Path | None:
    """Return the file of Karpathy that divides the images: `split_file`, the source itself, or the one in its folder."""
    if config.split_file is not None:
        given = user_path(config.split_file)
        return given if given.suffix == ".json" else None
    if config.val_fraction is not None or config.folds is not None:
        return None
    if path.is_file():
        return path if path.suffix == ".json" and path.name.startswith("dataset_") else None
    files = sorted(path.glob("dataset_*.json"))
    if len(files) > 1:
        raise DataError(
            f"{path}: contains {shortened([file.name for file in files], _LISTED)}; choose one with --set "
            f"task.data.split_file={files[0]}"
        )
    return files[0] if files else None


def _assigned(parts: Parts, file: Path) -> Parts:
    """Return the images divided by a file of Karpathy, which has captions itself if there are no others."""
    listed, known = read_karpathy(file), by_key(image for images in parts.values() for image in images)
    result: Parts = {}
    used = set[int]()
    for image in listed:
        own = image if not parts else known.get(image.name if image.key is None else image.key, known.get(image.name))
        if own is None:
            raise DataError(
                f"{image.where}: the captions have no image {cut(image.name)}; add its captions, or remove it from this file"
            )
        if id(own) in used:
            raise DataError(f"{image.where}: {cut(image.name)} is listed twice; remove one of the entries")
        used.add(id(own))
        result.setdefault(str(image.part), []).append(own)
    missing = [image.name for images in parts.values() for image in images if id(image) not in used]
    if missing:
        raise DataError(
            f"{file}: does not list {len(missing)} images of the captions ({shortened(map(cut, missing), _LISTED)}); "
            "add them, or remove the captions"
        )
    if not parts:
        _refuse_copies(result)
    return result


def _refuse_copies(parts: Parts) -> None:
    known = dict[str, str]()
    for images in parts.values():
        for image in images:
            name = os.path.normpath(image.name)
            if name in known:
                raise DataError(
                    f"{image.where}: {cut(image.name)} is also in {known[name]}; remove or rename one of them"
                )
            known[name] = image.where


def _gathered(images: Sequence[Captioned], root: Path, given: str | None) -> CaptionedImages:
    """Return the images with their paths; the folder of each group is the first that contains some of its images."""
    for image in images:
        if not image.captions:
            raise DataError(f"{image.where}: {cut(image.name)} has no captions; add some, or remove the image")
    folders = dict[str, Path]()
    for image in images:
        if image.folder not in folders:
            names = [each.name for each in images if each.folder == image.folder][:_PROBED]
            folders[image.folder] = _folder(root, image.folder, names, given)
    return CaptionedImages(
        names=tuple(image.name for image in images),
        images=tuple(folders[image.folder] / image.name for image in images),
        captions=tuple(tuple(image.captions) for image in images),
        keys=tuple(image.key for image in images),
        places=tuple(image.where for image in images),
    )


def _folder(root: Path, split: str, names: Sequence[str], given: str | None) -> Path:
    bases = [root / name for name in _FOLDERS] if given is None else [root / given]
    folders = [base / split for base in bases] + (bases if split else [])
    for folder in folders:
        if any((folder / name).is_file() for name in names):
            return folder
    if given is not None:
        raise DataError(f"{root / given}: contains none of the images, such as {names[0]}; correct task.data.images")
    return folders[0]
