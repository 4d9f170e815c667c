"""Drawn pictures with captions and features, written in all formats."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from attngraft.tasks.captioning.config import CaptionDataConfig
from attngraft.tasks.captioning.features import as_attribute
from attngraft.tasks.captioning.source import CaptionSource, open_captions
from tests.tasks.images.datasets import picture

COUNTS = {"train": 5, "val": 2, "test": 2}
CHANNELS = 6
COLORS = ("red", "green", "blue")


def entries(counts: dict[str, int] = COUNTS) -> list[tuple[str, str, list[str]]]:
    """Split, file name and captions of each image."""
    splits = [split for split, count in counts.items() for _ in range(count)]
    return [
        (split, f"{number}.png", [f"A {COLORS[number % 3]} square .", f"The square is {COLORS[number % 3]}!"])
        for number, split in enumerate(splits)
    ]


def write_images(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, (_, name, _) in enumerate(entries()):
        picture(number).save(folder / name)


def write_jsonl(folder: Path) -> None:
    for split in COUNTS:
        lines = [json.dumps({"file_name": name, "captions": texts}) for of, name, texts in entries() if of == split]
        (folder / f"captions_{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def write_csv(folder: Path) -> None:
    for split in COUNTS:
        with (folder / f"captions_{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["file_name", "caption"])
            writer.writerows([name, text] for of, name, texts in entries() if of == split for text in texts)


def coco(split: str) -> dict[str, Any]:
    images = [(100 + i, name, texts) for i, (of, name, texts) in enumerate(entries()) if of == split]
    annotations = [{"image_id": key, "caption": text} for key, _, texts in images for text in texts]
    return {
        "images": [{"id": key, "file_name": name} for key, name, _ in images],
        "annotations": [{"id": number, **each} for number, each in enumerate(annotations)],
    }


def write_coco(folder: Path) -> None:
    (folder / "annotations").mkdir()
    for split in COUNTS:
        (folder / f"annotations/captions_{split}2014.json").write_text(json.dumps(coco(split)))


def karpathy(*, ids: bool = False) -> dict[str, Any]:
    """Images in other splits than `entries`: the first is for testing, the second restval."""
    splits = {0: "test", 1: "restval"}
    return {
        "images": [
            {
                "filename": f"{'renamed' if ids else ''}{name}",
                **({"cocoid": 100 + number} if ids else {}),
                "split": splits.get(number, split),
                "sentences": [{"raw": text} for text in texts],
            }
            for number, (split, name, texts) in enumerate(entries())
        ]
    }


def write_karpathy(folder: Path) -> None:
    (folder / "dataset_tiny.json").write_text(json.dumps(karpathy()))


def write_flickr(folder: Path) -> None:
    lines = [f"{name}#{number}\t{text}" for _, name, texts in entries() for number, text in enumerate(texts)]
    (folder / "Flickr8k.token.txt").write_text("".join(f"{line}\n" for line in lines))
    for split, word in {"train": "train", "val": "dev", "test": "test"}.items():
        names = [name for of, name, _ in entries() if of == split]
        (folder / f"Flickr_8k.{word}Images.txt").write_text("".join(f"{name}\n" for name in names))


WRITERS = {
    "jsonl": write_jsonl,
    "csv": write_csv,
    "coco": write_coco,
    "karpathy": write_karpathy,
    "flickr": write_flickr,
}


def rows(number: int, *, regions: int = 4) -> np.ndarray:
    return np.random.default_rng(number).normal(size=(regions, CHANNELS)).astype(np.float32)


def write_features(path: Path, *, ids: bool = False, regions: int = 4, **attributes: Any) -> Path:
    """Features of all images, by COCO's ids or by names; image `i` has `i` regions more."""
    with h5py.File(path, "w") as file:
        file.attrs.update({name: as_attribute(value) for name, value in attributes.items()})
        for number, (_, name, _) in enumerate(entries()):
            key = str(100 + number) if ids else name
            file[f"{key}_features"] = rows(number, regions=regions + number)
            file[f"{key}_boxes"] = np.zeros((4, 4))
    return path


def opened(folder: Path, **fields: Any) -> CaptionSource:
    return open_captions(CaptionDataConfig(source=str(folder), **fields))
