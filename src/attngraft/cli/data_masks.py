"""`attngraft data check` for images with masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

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
from attngraft.tasks.images.sources.splitting import save_split
from attngraft.tasks.segmentation import Segmentation
from attngraft.tasks.segmentation.codec import overlay
from attngraft.tasks.segmentation.config import MaskDataConfig
from attngraft.tasks.segmentation.source import Counted, MaskSource, count_labels, open_masks
from attngraft.timing.memory import free_on
from attngraft.training.build import build_task, model_data_config
from attngraft.training.memory import estimate_memory
from attngraft.training.profiler import run_device

_CLASSES = 150  #: most classes listed
_COLUMNS, _ROWS, _TILE = 4, 4, 240  #: of the contact sheet


def check_masks(settings: Mapping[str, Any], split: Path | None, sheet: Path | None, *, as_json: bool) -> None:
    """Read all masks and print classes, shares of pixels and sizes; exit with 2 if training would be refused."""
    config = read(MaskDataConfig, dict(settings), where="task.data")
    try:
        with counts_displayed():
            source = open_masks(config)
            counted = {name: count_labels(images) for name, images in source.parts().items()}
    except DataError as error:
        if as_json:
            print_json({"task": "segmentation", "refusals": [str(error)]})
        else:
            output_console().print(
                f"[bold]Training would be refused:[/bold] {escape(str(error))}", soft_wrap=True
            )  # fmt: skip
        raise typer.Exit(DataError.exit_code) from None
    notes = [*source.notes, *_memory_notes(source, counted, settings)]
    shares = {name: counts / max(1, counts.sum()) for name, (counts, _) in counted.items()}
    sizes = {name: Counter(found) for name, (_, found) in counted.items()}
    if as_json:
        print_json(_json(source, shares, sizes, notes))
    else:
        _show(source, shares, sizes, config, notes)
    if split is not None:
        if not source.drawn:
            raise UsageError("--save-split: these data already have a validation split; add --val-fraction 0.2")
        save_split(split, source.drawn)
        echo(f"Split: {split} (--set task.data.split_file={split})", err=True)
    if sheet is not None:
        _save_sheet(source, sheet)
        echo(f"Contact sheet: {sheet}", err=True)


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
        "image_sizes": {
            name: [{"width": w, "height": h, "images": number} for (w, h), number in found.most_common()]
            for name, found in sizes.items()
        },
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
        common = ", ".join(f"{w}x{h} ({number})" for (w, h), number in sizes[name].most_common(3))
        more = f", {len(sizes[name]) - 3} more" if len(sizes[name]) > 3 else ""
        table.add_row(name, f"{len(images):,}", common + more, f"{100 * shares[name][-1]:.1f}%")
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
    chosen = np.linspace(0, len(images) - 1, min(_COLUMNS * _ROWS // 2, len(images))).round().astype(int)
    sheet = Image.new("RGB", (_COLUMNS * _TILE, -(-2 * len(chosen) // _COLUMNS) * _TILE), "white")
    for place, index in enumerate(chosen):
        image = images.image(int(index))
        for side, picture in enumerate((image, overlay(image, images.label(int(index)), colors))):
            row, column = divmod(2 * place + side, _COLUMNS)
            sheet.paste(ImageOps.contain(picture, (_TILE, _TILE)), (column * _TILE, row * _TILE))
    with atomic_file(path) as file:
        sheet.save(file, "png")
