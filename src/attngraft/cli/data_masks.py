"""`attngraft data check` for images with masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.markup import escape
from rich.table import Table

from attngraft.cli.checked import (
    COLUMNS,
    ROWS,
    common_sizes,
    listed_sizes,
    refusals_printed,
    save_outputs,
    save_tiles,
)
from attngraft.cli.output import output_console, print_json
from attngraft.cli.proposal import compare_command, default_recipe
from attngraft.strict import read
from attngraft.tasks.segmentation import Segmentation
from attngraft.tasks.segmentation.codec import overlay
from attngraft.tasks.segmentation.config import MaskDataConfig
from attngraft.tasks.segmentation.source import Counted, MaskSource, count_labels, open_masks
from attngraft.timing.memory import free_on
from attngraft.training.build import build_task, model_data_config
from attngraft.training.memory import estimate_memory
from attngraft.training.profiler import run_device

_CLASSES = 150  #: most classes listed


def check_masks(settings: Mapping[str, Any], split: Path | None, sheet: Path | None, *, as_json: bool) -> None:
    """Read all masks and print classes, shares of pixels and sizes; exit with 2 if training would be refused."""
    config = read(MaskDataConfig, dict(settings), where="task.data")
    with refusals_printed("segmentation", as_json=as_json):
        source = open_masks(config)
        counted = {name: count_labels(images) for name, images in source.parts().items()}
    notes = [*source.notes, *source.copies(), *_memory_notes(source, counted, settings)]
    shares = {name: counts / max(1, counts.sum()) for name, (counts, _) in counted.items()}
    sizes = {name: Counter(found) for name, (_, found) in counted.items()}
    if as_json:
        print_json(_json(source, shares, sizes, notes))
    else:
        _show(source, shares, sizes, config, notes)
    save_outputs(source.drawn, split, sheet, save_sheet=partial(_save_sheet, source))


def _memory_notes(source: MaskSource, counted: Mapping[str, Counted], settings: Mapping[str, Any]) -> list[str]:
    """Estimate the memory that evaluation takes with the default recipe."""
    recipe = default_recipe("segmentation", dict(settings))
    task, host = cast(Segmentation, build_task(recipe)), model_data_config(recipe)
    found = estimate_memory(recipe, task, task.task_data(source, counted, model_data_config=host))
    if found is None:
        return []
    text = found.warning(free_on(run_device())) or found.described()
    return [f"With the recipe {Segmentation.default_recipe}, {text}."]


def _json(
    source: MaskSource,
    shares: Mapping[str, np.ndarray],
    sizes: Mapping[str, Counter[tuple[int, int]]],
    notes: Sequence[str],
) -> dict[str, Any]:
    return {
        "task": "segmentation",
        "where": source.where,
        "split": source.origin,
        "sizes": {name: len(images) for name, images in source.parts().items()},
        "classes": list(source.labels.classes),
        "pixels": {
            name: dict(zip(source.labels.classes, share.tolist(), strict=False)) for name, share in shares.items()
        },
        "ignored": {name: float(share[-1]) for name, share in shares.items()},
        "image_sizes": {name: listed_sizes(found) for name, found in sizes.items()},
        "notes": list(notes),
        "refusals": [],
    }


def _show(
    source: MaskSource,
    shares: Mapping[str, np.ndarray],
    sizes: Mapping[str, Counter[tuple[int, int]]],
    config: MaskDataConfig,
    notes: Sequence[str],
) -> None:
    console, classes = output_console(), source.labels.classes
    console.print(f"[bold]{escape(source.where)}[/bold]: images with masks, {len(classes)} classes, for segmentation")
    console.print(f"Split: {escape(source.origin)}")
    table = Table("split", "images", "sizes", "ignored pixels")
    for name, images in source.parts().items():
        table.add_row(name, f"{len(images):,}", common_sizes(sizes[name]), f"{100 * shares[name][-1]:.1f}%")
    console.print(table)
    table = Table("class", *(f"{name}: pixels" for name in shares))
    for index, name in enumerate(classes[:_CLASSES]):
        table.add_row(escape(name), *(f"{100 * share[index]:.2f}%" for share in shares.values()))
    console.print(table)
    if len(classes) > _CLASSES:
        console.print(f"and {len(classes) - _CLASSES} more classes (--json lists all)")
    missing = [name for name, share in zip(classes, shares["train"], strict=False) if share == 0]
    if missing:
        console.print(f"Note: Classes without a training pixel: {escape(', '.join(missing))}.", soft_wrap=True)
    for note in notes:
        console.print(f"Note: {escape(note)}", soft_wrap=True)
    console.print(f"Ready: {escape(compare_command(config, 'segmentation'))}", soft_wrap=True)


def _save_sheet(source: MaskSource, path: Path) -> None:
    """Save a picture of training images, each beside its labels."""
    images, colors = source.train, source.labels.colors
    chosen = np.linspace(0, len(images) - 1, min(COLUMNS * ROWS // 2, len(images))).round().astype(int)
    pictures = []
    for index in chosen.tolist():
        image = images.image(index)
        pictures += [image, overlay(image, images.label(index), colors)]
    save_tiles(pictures, path)
