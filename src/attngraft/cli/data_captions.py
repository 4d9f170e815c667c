"""`attngraft data check` for images with captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageOps
from rich.markup import escape
from rich.table import Table

from attngraft.cli.checked import COLUMNS, ROWS, TILE, refusals_printed, save_outputs, save_tiles
from attngraft.cli.output import output_console, print_json
from attngraft.cli.proposal import compare_command
from attngraft.errors import ConfigError, DataError
from attngraft.strict import read
from attngraft.tasks.captioning.config import CaptionDataConfig, CaptioningConfig
from attngraft.tasks.captioning.source import CaptionSource
from attngraft.tasks.captioning.task import Captioning
from attngraft.tasks.images.stored import read_image
from attngraft.training.recipe import load_recipe

_TEXT = 34  #: characters of a line below a picture


def check_captions(
    settings: Mapping[str, Any], others: Sequence[str], split: Path | None, sheet: Path | None, *, as_json: bool
) -> None:
    """Read captions and features as training does, and print them; exit with 2 if training would be refused.

    Args:
        settings: fields of `task.data`.
        others: assignments to other fields of `task`, such as `features=features.h5`.
    """
    from attngraft.training.build import model_data_config

    data = read(CaptionDataConfig, dict(settings), where="task.data")
    also = [f"task.{text}" for text in others]
    recipe = load_recipe(str(Captioning.default_recipe), also)
    fields = {name: value for name, value in recipe.task.items() if name != "name"}
    config = read(CaptioningConfig, {**fields, "data": data}, where="task")
    with refusals_printed("captioning", as_json=as_json, errors=(DataError, ConfigError)):
        task = Captioning(config, seed=0)
        facts = task.load(model_data_config=model_data_config(recipe)).facts
        source = task.open_source()
    if as_json:
        names = ("task", "where", "split", "sizes", "captions", "length", "input", "floors", "notes")
        print_json({**{name: facts[name] for name in names}, "refusals": []})
    else:
        _show(facts, config, compare_command(data, "captioning", also=also))
    save_outputs(source.drawn, split, sheet, save_sheet=partial(_save_sheet, source))


def _show(facts: Mapping[str, Any], config: CaptioningConfig, command: str) -> None:
    console, given = output_console(), facts["input"]
    console.print(f"[bold]{escape(facts['where'])}[/bold]: {facts['kind']}, {given['words']:,} words, for captioning")
    console.print(f"Split: {escape(facts['split'])}")
    table = Table("split", "images", "captions", "constant caption: CIDEr-D")
    for name, size in facts["sizes"].items():
        floor = facts["floors"].get(name)
        table.add_row(
            name,
            f"{size:,}",
            f"{facts['captions'][name]:,}",
            "" if floor is None else f"{floor['constant']['cider']:.1f}",
        )
    console.print(table)
    length, encoder = facts["length"], given["encoder"] or {}
    of = encoder.get("name") or ("the image encoder" if config.encoder else "another model, such as a detector")
    console.print(f"Captions: {length['median']} words (median), at most {length['longest']}")
    console.print(
        f"Features: {given['rows']} x {given['channels']} of the first image, of {escape(of)}", soft_wrap=True
    )
    for note in facts["notes"]:
        console.print(f"Note: {escape(note)}", soft_wrap=True)
    console.print(f"Ready: {escape(command)}", soft_wrap=True)


def _save_sheet(source: CaptionSource, path: Path) -> None:
    """Save a picture of training images with their first captions.

    Raises:
        DataError: an image cannot be read.
    """
    images = source.train
    chosen = np.linspace(0, len(images) - 1, min(COLUMNS * ROWS, len(images))).round().astype(int)
    tiles = []
    for index in chosen.tolist():
        tile = Image.new("RGB", (TILE, TILE), "white")
        tile.paste(ImageOps.contain(read_image(images.images[index]).convert("RGB"), (TILE, TILE - 40)), (0, 0))
        words, lines = images.captions[index][0].split(), [""]
        for word in words:
            if len(lines[-1]) + len(word) > _TEXT:
                lines.append("")
            lines[-1] += f"{word} "
        ImageDraw.Draw(tile).multiline_text((4, TILE - 38), "\n".join(lines[:3]), fill="black")
        tiles.append(tile)
    save_tiles(tiles, path)
