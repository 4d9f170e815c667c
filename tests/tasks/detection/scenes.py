"""Drawn squares and discs with their masks, written in all formats of annotated objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attngraft.tasks.detection.config import ObjectDataConfig
from attngraft.tasks.detection.source import ObjectSource, open_objects
from attngraft.tasks.images.inputs import HostInput

CLASSES = ("disc", "square")
HOST = HostInput.from_model({"input_size": (3, 32, 32)})
COUNTS = {"train": 6, "val": 3}
#: fields of the task's section that make a detector tiny
SMALL: dict[str, Any] = {"width": 8, "box_width": 16, "mask_layers": 1, "samples": 16, "anchors": [6, 8, 12, 16, 24]}


def scene(index: int) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """Return an image (H, W, 3) uint8 and the label and mask (H, W) of up to three objects; every fourth has none."""
    random = np.random.default_rng(index)
    height, width = 36 + index % 3, 48 - index % 2
    y, x = np.mgrid[:height, :width]
    pixels, found = random.integers(0, 60, (height, width, 3)), []
    for column in range((index + 1) % 4):
        label, radius = int(random.integers(2)), int(random.integers(3, 7))
        row, middle = int(random.integers(7, height - 7)), 8 + 15 * column
        far = np.maximum(abs(y - row), abs(x - middle)) if label else np.hypot(y - row, x - middle)
        mask = far < radius
        pixels[mask] = (220, 90, 30) if label else (40, 160, 230)
        found.append((label, mask))
    return pixels.astype(np.uint8), found


def scenes(counts: dict[str, int] = COUNTS) -> Iterator[tuple[str, str, np.ndarray, list[tuple[int, np.ndarray]]]]:
    """Yield split, name, image and objects."""
    number = 0
    for split, count in counts.items():
        for _ in range(count):
            yield split, f"{number:02d}", *scene(number)
            number += 1


def box_of(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a mask."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def save(path: Path, pixels: np.ndarray) -> None:
    """Save an image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_text(path: Path, text: str) -> None:
    """Write a file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def lengths(mask: np.ndarray) -> list[int]:
    """Return uncompressed run lengths."""
    flat = np.concatenate([[0], mask.T.reshape(-1).astype(int)])
    edges = np.flatnonzero(np.diff(flat))
    return np.diff(edges, prepend=0, append=mask.size).tolist()


def coco(split: str, counts: dict[str, int] = COUNTS) -> dict[str, Any]:
    """Return the annotations of a split, whose categories are 7 and 3."""
    images, annotations = [], []
    for number, (part, name, pixels, objects) in enumerate(scenes(counts)):
        if part != split:
            continue
        height, width = pixels.shape[:2]
        images.append({"id": number, "file_name": f"{name}.png", "width": width, "height": height})
        for place, (label, mask) in enumerate(objects):
            left, top, right, bottom = box_of(mask)
            annotations.append(
                {
                    "id": 10 * number + place,
                    "image_id": number,
                    "category_id": (3, 7)[label],
                    "bbox": [left, top, right - left, bottom - top],
                    "area": int(mask.sum()),
                    "iscrowd": 0,
                    "segmentation": {"size": [height, width], "counts": lengths(mask)},
                }
            )
    categories = [{"id": 7, "name": "square"}, {"id": 3, "name": "disc"}]
    return {"images": images, "annotations": annotations, "categories": categories}


def write_coco(folder: Path, counts: dict[str, int] = COUNTS) -> Path:
    """Write images/SPLIT and annotations/instances_SPLIT.json."""
    for split, name, pixels, _ in scenes(counts):
        save(folder / "images" / split / f"{name}.png", pixels)
    for split in counts:
        write_text(folder / f"annotations/instances_{split}.json", json.dumps(coco(split, counts)))
    return folder


def write_masks(folder: Path, dtype: type = np.uint8) -> Path:
    """Write images/SPLIT and masks/SPLIT."""
    for split, name, pixels, objects in scenes():
        save(folder / "images" / split / f"{name}.png", pixels)
        labels = np.zeros(pixels.shape[:2], dtype=dtype)
        for number, (_, mask) in enumerate(objects, start=1):
            labels[mask] = number
        save(folder / "masks" / split / f"{name}.png", labels)
    return folder


def write_bowl(folder: Path) -> Path:
    """Write a folder per image, with a mask file per object, without splits."""
    for _, name, pixels, objects in scenes():
        save(folder / name / "images" / f"{name}.png", pixels)
        (folder / name / "masks").mkdir()
        for number, (_, mask) in enumerate(objects):
            save(folder / name / "masks" / f"{number}.png", mask.astype(np.uint8) * 255)
    return folder


def yolo(objects: list[tuple[int, np.ndarray]]) -> str:
    """Return the lines of boxes of an image."""
    lines = []
    for label, mask in objects:
        left, top, right, bottom = box_of(mask)
        height, width = mask.shape
        middle = (left + right) / 2 / width, (top + bottom) / 2 / height
        lines.append(f"{label} {middle[0]!r} {middle[1]!r} {(right - left) / width!r} {(bottom - top) / height!r}\n")
    return "".join(lines)


def write_yolo(folder: Path) -> Path:
    """Write data.yaml, images/SPLIT and labels/SPLIT; images without objects have no file."""
    for split, name, pixels, objects in scenes():
        save(folder / "images" / split / f"{name}.png", pixels)
        if objects:
            write_text(folder / "labels" / split / f"{name}.txt", yolo(objects))
    write_text(folder / "data.yaml", f"train: ../train/images\nnames: [{', '.join(CLASSES)}]\n")
    return folder


def voc(pixels: np.ndarray, objects: list[tuple[int, np.ndarray]], *, difficult: int = 0) -> str:
    """Return the XML of an image."""
    height, width = pixels.shape[:2]
    parts = []
    for label, mask in objects:
        left, top, right, bottom = box_of(mask)
        sides = {"xmin": left + 1, "ymin": top + 1, "xmax": right, "ymax": bottom}
        box = "".join(f"<{key}>{side}</{key}>" for key, side in sides.items())
        parts.append(
            f"<object><name>{CLASSES[label]}</name><difficult>{difficult}</difficult><bndbox>{box}</bndbox></object>"
        )
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation>{size}{''.join(parts)}</annotation>"


def write_voc(folder: Path) -> Path:
    """Write JPEGImages, Annotations and ImageSets/Main."""
    names: dict[str, list[str]] = {}
    for split, name, pixels, objects in scenes():
        save(folder / "JPEGImages" / f"{name}.png", pixels)
        write_text(folder / "Annotations" / f"{name}.xml", voc(pixels, objects))
        names.setdefault(split, []).append(name)
    for split, listed in names.items():
        write_text(folder / f"ImageSets/Main/{split}.txt", "".join(f"{name}\n" for name in listed))
    return folder


WRITERS = {"coco": write_coco, "masks": write_masks, "yolo": write_yolo, "voc": write_voc}


def opened(folder: Path, **fields: Any) -> ObjectSource:
    """Open a folder."""
    return open_objects(ObjectDataConfig(source=str(folder), **fields))
