"""Common parts of `attngraft data check` for tasks with sources of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from PIL import Image, ImageOps
from rich.markup import escape

from attngraft.cli.output import counts_displayed, echo, output_console, print_json
from attngraft.errors import AttngraftError, DataError, UsageError
from attngraft.files import atomic_file
from attngraft.tasks.images.sources.splitting import Named, save_split

COLUMNS, ROWS = 4, 4  #: of a contact sheet
TILE = 240  #: side of a picture in a contact sheet, in pixels

_SIZES = 3  #: number of sizes of images that are listed


@contextmanager
def refusals_printed(
    task: str, *, as_json: bool, errors: tuple[type[AttngraftError], ...] = (DataError,)
) -> Iterator[None]:
    """Context manager that prints errors of reading data as the refusal of training, and exits with 2."""
    try:
        with counts_displayed():
            yield
    except errors as error:
        if as_json:
            print_json({"task": task, "refusals": [str(error)]})
        else:
            print_refusals([str(error)])
        raise typer.Exit(DataError.exit_code) from None


def print_refusals(refusals: Sequence[str]) -> None:
    """Print why training would be refused."""
    for refusal in refusals:
        output_console().print(f"[bold]Training would be refused:[/bold] {escape(refusal)}", soft_wrap=True)


def save_outputs(
    drawn: Mapping[str, Named], split: Path | None, sheet: Path | None, *, save_sheet: Callable[[Path], None]
) -> None:
    """Save the random split and the contact sheet, if files are given.

    Args:
        drawn: parts of the random split; empty if it is not random.
        split, sheet: the files, or None.
        save_sheet: saves the contact sheet.

    Raises:
        UsageError: the split is not random.
    """
    if split is not None:
        if not drawn:
            raise UsageError("--save-split: these data already have a validation split; add --val-fraction 0.2")
        save_split(split, drawn)
        echo(f"Split: {split} (--set task.data.split_file={split})", err=True)
    if sheet is not None:
        save_sheet(sheet)
        echo(f"Contact sheet: {sheet}", err=True)


def save_tiles(pictures: Iterable[Image.Image], path: Path) -> None:
    """Save pictures as a contact sheet of four columns."""
    tiles = [ImageOps.contain(picture, (TILE, TILE)) for picture in pictures]
    sheet = Image.new("RGB", (COLUMNS * TILE, -(-len(tiles) // COLUMNS) * TILE), "white")
    for place, tile in enumerate(tiles):
        row, column = divmod(place, COLUMNS)
        sheet.paste(tile, (column * TILE, row * TILE))
    with atomic_file(path) as file:
        sheet.save(file, "png")


def common_sizes(sizes: Counter[tuple[int, int]]) -> str:
    """Return the most common sizes (width, height) of images: "360x240 (17), 240x360 (2), 4 more"."""
    common = ", ".join(f"{w}x{h} ({number})" for (w, h), number in sizes.most_common(_SIZES))
    return common + (f", {len(sizes) - _SIZES} more" if len(sizes) > _SIZES else "")


def listed_sizes(sizes: Counter[tuple[int, int]]) -> list[dict[str, int]]:
    """Return all sizes (width, height) of images and their numbers, JSON-ready."""
    return [{"width": w, "height": h, "images": number} for (w, h), number in sizes.most_common()]
