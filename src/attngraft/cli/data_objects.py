"""`attngraft data check` for images with annotated objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ImageOps
from rich.markup import escape
from rich.table import Table

from attngraft.cli.checked import (
    COLUMNS,
    ROWS,
    TILE,
    common_sizes,
    listed_sizes,
    refusals_printed,
    save_outputs,
    save_tiles,
)
from attngraft.cli.output import output_console, print_json
from attngraft.cli.proposal import compare_command, default_recipe
from attngraft.strict import read
from attngraft.tasks.detection.config import DetectionTestConfig, ObjectDataConfig
from attngraft.tasks.detection.drawing import drawn, resized
from attngraft.tasks.detection.facts import ObjectFacts, notes_on, read_facts
from attngraft.tasks.detection.source import ObjectSource, open_objects

_CLASSES = 100  #: most classes listed


def check_objects(settings: Mapping[str, Any], split: Path | None, sheet: Path | None, *, as_json: bool) -> None:
    """Read all annotations and print classes and sizes of objects; exit with 2 if training would be refused."""
    config = read(ObjectDataConfig, dict(settings), where="task.data")
    with refusals_printed("detection", as_json=as_json):
        source = open_objects(config)
        facts = {name: read_facts(images, source.classes, name=name) for name, images in source.parts().items()}
    test = default_recipe("detection", dict(settings)).task.get("test", {})
    detections = test.get("detections", DetectionTestConfig().detections)
    notes = [*source.notes, *source.copies(), *notes_on(facts, detections)]
    if as_json:
        print_json(_json(source, facts, notes))
    else:
        _show(source, facts, config, notes)
    save_outputs(source.drawn, split, sheet, save_sheet=partial(_save_sheet, source))


def _json(source: ObjectSource, facts: Mapping[str, ObjectFacts], notes: Sequence[str]) -> dict[str, Any]:
    return {
        "task": "detection",
        "where": source.where,
        "split": source.origin,
        "sizes": {name: len(images) for name, images in source.parts().items()},
        "classes": list(source.classes),
        "category_ids": list(source.category_ids),
        "masks": source.masks,
        "objects": {
            name: dict(zip(source.classes, each.objects.tolist(), strict=True)) for name, each in facts.items()
        },
        "areas": {
            name: dict(zip(("small", "medium", "large"), each.by_area, strict=True)) for name, each in facts.items()
        },
        "ignored": {name: each.crowds for name, each in facts.items()},
        "most_objects": {name: each.most for name, each in facts.items()},
        "without_objects": {name: each.empty for name, each in facts.items()},
        "image_sizes": {name: listed_sizes(Counter(each.sizes)) for name, each in facts.items()},
        "notes": list(notes),
        "refusals": [],
    }


def _show(
    source: ObjectSource, facts: Mapping[str, ObjectFacts], config: ObjectDataConfig, notes: Sequence[str]
) -> None:
    console, classes = output_console(), source.classes
    what = f"images with {'masks' if source.masks else 'boxes'} of objects"
    count = f"{len(classes)} class{'es' if len(classes) > 1 else ''}"
    console.print(f"[bold]{escape(source.where)}[/bold]: {what}, {count}, for detection")
    console.print(f"Split: {escape(source.origin)}")
    table = Table("split", "images", "without objects", "objects", "small, medium, large", "ignored", "most", "sizes")
    for name, images in source.parts().items():
        each = facts[name]
        sizes = common_sizes(Counter(each.sizes))
        areas = ", ".join(f"{number:,}" for number in each.by_area)
        numbers = (len(images), each.empty, int(each.objects.sum()))
        table.add_row(name, *(f"{number:,}" for number in numbers), areas, f"{each.crowds:,}", f"{each.most:,}", sizes)
    console.print(table)
    table = Table("id", "class", *(f"{name}: objects" for name in facts))
    for index, name in enumerate(classes[:_CLASSES]):
        counts = (f"{each.objects[index]:,}" for each in facts.values())
        table.add_row(str(source.category_ids[index]), escape(name), *counts)
    console.print(table)
    if len(classes) > _CLASSES:
        console.print(f"and {len(classes) - _CLASSES} more classes (--json lists all)")
    missing = [name for name, number in zip(classes, facts["train"].objects, strict=True) if number == 0]
    if missing:
        console.print(f"Note: Classes without a training object: {escape(', '.join(missing))}.", soft_wrap=True)
    for note in notes:
        console.print(f"Note: {escape(note)}", soft_wrap=True)
    also = () if source.masks else ("task.head=faster_rcnn",)
    console.print(f"Ready: {escape(compare_command(config, 'detection', also=also))}", soft_wrap=True)


def _save_sheet(source: ObjectSource, path: Path) -> None:
    """Save a picture of training images with their boxes and masks."""
    images = source.train
    chosen = np.linspace(0, len(images) - 1, min(COLUMNS * ROWS, len(images))).round().astype(int)
    pictures = []
    for index in chosen.tolist():
        image, objects = images.image(index), images.objects(index)
        size = image.size
        if objects.masks is not None:
            if max(size) > 4 * TILE:  # drawing masks takes 50 bytes per pixel
                image = ImageOps.contain(image, (4 * TILE, 4 * TILE))
            image = drawn(image, objects.boxes, objects.labels, [resized(mask, image.size) for mask in objects.masks])
        small = ImageOps.contain(image, (TILE, TILE))  # boxes and captions are drawn in its size, to be readable
        boxes = objects.boxes * np.tile(np.array(small.size) / size, 2)
        captions = [source.classes[label] if len(source.classes) > 1 else "" for label in objects.labels]
        pictures.append(drawn(small, boxes, objects.labels, None, captions=captions))
    save_tiles(pictures, path)
