"""`attngraft data check` for images with annotated objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer
from PIL import Image, ImageOps
from rich.markup import escape
from rich.table import Table

from attngraft.cli.output import counts_displayed, echo, output_console, print_json
from attngraft.cli.proposal import compare_command, default_recipe
from attngraft.errors import DataError, UsageError
from attngraft.files import atomic_file
from attngraft.strict import read
from attngraft.tasks.detection.config import DetectionTestConfig, ObjectDataConfig
from attngraft.tasks.detection.drawing import drawn
from attngraft.tasks.detection.facts import ObjectFacts, crowded_note, read_facts
from attngraft.tasks.detection.source import ObjectSource, open_objects
from attngraft.tasks.images.sources.splitting import save_split

_CLASSES = 100  #: most classes listed
_COLUMNS, _ROWS, _TILE = 4, 4, 240  #: of the contact sheet


def check_objects(settings: Mapping[str, Any], split: Path | None, sheet: Path | None, *, as_json: bool) -> None:
    """Read all annotations and print classes and sizes of objects; exit with 2 if training would be refused."""
    config = read(ObjectDataConfig, dict(settings), where="task.data")
    try:
        with counts_displayed():
            source = open_objects(config)
            facts = {name: read_facts(images, source.classes, name=name) for name, images in source.parts().items()}
    except DataError as error:
        if as_json:
            print_json({"task": "detection", "refusals": [str(error)]})
        else:
            output_console().print(f"[bold]Training would be refused:[/bold] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(DataError.exit_code) from None
    test = default_recipe("detection", dict(settings)).task.get("test", {})
    notes = [*source.notes, *crowded_note(facts, test.get("detections", DetectionTestConfig().detections))]
    if as_json:
        print_json(_json(source, facts, notes))
    else:
        _show(source, facts, config, notes)
    if split is not None:
        if not source.drawn:
            raise UsageError("--save-split: these data already have a validation split; add --val-fraction 0.2")
        save_split(split, source.drawn)
        echo(f"Split: {split} (--set task.data.split_file={split})", err=True)
    if sheet is not None:
        _save_sheet(source, sheet)
        echo(f"Contact sheet: {sheet}", err=True)


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
        "image_sizes": {
            name: [{"width": w, "height": h, "images": count} for (w, h), count in Counter(each.sizes).most_common()]
            for name, each in facts.items()
        },
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
        sizes = Counter(each.sizes).most_common()
        common = ", ".join(f"{w}x{h} ({number})" for (w, h), number in sizes[:3])
        more = f", {len(sizes) - 3} more" if len(sizes) > 3 else ""
        areas = ", ".join(f"{number:,}" for number in each.by_area)
        numbers = (len(images), each.empty, int(each.objects.sum()))
        table.add_row(
            name, *(f"{number:,}" for number in numbers), areas, f"{each.crowds:,}", f"{each.most:,}", common + more
        )
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
    chosen = np.linspace(0, len(images) - 1, min(_COLUMNS * _ROWS, len(images))).round().astype(int)
    sheet = Image.new("RGB", (_COLUMNS * _TILE, -(-len(chosen) // _COLUMNS) * _TILE), "white")
    for place, index in enumerate(chosen.tolist()):
        image, objects = images.image(index), images.objects(index)
        if objects.masks is not None:
            image = drawn(image, objects.boxes, objects.labels, objects.masks)
        picture = ImageOps.contain(image, (_TILE, _TILE))
        boxes = objects.boxes * np.tile(np.array(picture.size) / image.size, 2)
        captions = [source.classes[label] if len(source.classes) > 1 else "" for label in objects.labels]
        picture = drawn(picture, boxes, objects.labels, None, captions=captions)
        row, column = divmod(place, _COLUMNS)
        sheet.paste(picture, (column * _TILE, row * _TILE))
    with atomic_file(path) as file:
        sheet.save(file, "png")
