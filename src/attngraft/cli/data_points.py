"""`attngraft data check` for point clouds, with or without parts."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import typer
from PIL import Image, ImageDraw, ImageFont
from rich.markup import escape
from rich.table import Table

from attngraft.cli.checked import print_refusals, refusals_printed, save_outputs
from attngraft.cli.output import output_console, print_json
from attngraft.cli.proposal import compare_command, default_recipe
from attngraft.cli.values import assignments
from attngraft.errors import ConfigError, DataError
from attngraft.files import atomic_file
from attngraft.suggest import shortened
from attngraft.tasks.points.clouds import Cloud, normalize
from attngraft.tasks.points.opened import OpenedClouds, open_clouds, sampling_of
from attngraft.tasks.points.parts import PointParts
from attngraft.tasks.points.task import Points
from attngraft.training.build import build_task
from attngraft.training.recipe import Recipe

_CLASSES = 30  #: most classes listed
_ROWS, _COLUMNS, _TILE, _LABEL = 40, 6, 120, 150  #: of the contact sheet
_AZIMUTH, _ELEVATION = np.deg2rad(35.0), np.deg2rad(20.0)  #: of its view, with z upwards
_NEAR, _FAR = 0.15, 0.75  #: how much white is mixed into the colors of the nearest and the farthest point
_INK = (31, 78, 121)  #: points without parts


def check_points(
    task: str,
    settings: Mapping[str, Any],
    others: Sequence[str],
    split: Path | None,
    sheet: Path | None,
    *,
    as_json: bool,
) -> None:
    """Read all clouds and print classes, points and parts; exit with 2 if training would be refused.

    Args:
        task: `points` or `point_parts`.
        settings: fields of `task.data`.
        others: settings `NAME=VALUE` of other fields of the task.
        split: file for the random split.
        sheet: file for a picture of clouds.
        as_json: print JSON.
    """
    recipe = default_recipe(task, dict(settings))
    recipe = replace(recipe, task={**recipe.task, **assignments(others, option="--set")})
    config = cast(Points | PointParts, build_task(recipe)).config
    with refusals_printed(task, as_json=as_json, errors=(DataError, ConfigError)):
        source = open_clouds(config)
        sampling_of(config, has_normals=source.train.has_normals, known=None)
    notes = [*source.notes, *_batch_note(recipe, len(source.train))]
    refusals = [source.refusal] if source.refusal else []
    if as_json:
        print_json(_json(task, source, notes, refusals))
    else:
        _show(task, source)
        for note in notes:
            output_console().print(f"Note: {escape(note)}", soft_wrap=True)
        print_refusals(refusals)
        if not refusals:
            command = compare_command(config.data, task, also=[f"task.{text}" for text in others])
            output_console().print(f"Ready: {escape(command)}", soft_wrap=True)
    save_outputs(source.drawn, split, sheet, save_sheet=partial(_save_sheet, source))
    if refusals:
        raise typer.Exit(DataError.exit_code)


def _batch_note(recipe: Recipe, clouds: int) -> list[str]:
    size = recipe.train.batch_size
    return [f"Batches of {size} are cut to the {clouds} training clouds."] if size > clouds else []


def _parts(source: OpenedClouds) -> dict[str, list[int]]:
    return {name: list((source.parts or {})[number]) for number, name in enumerate(source.classes)}


def _json(task: str, source: OpenedClouds, notes: Sequence[str], refusals: Sequence[str]) -> dict[str, Any]:
    facts = source.facts()
    shared = {name: facts[name] for name in ("where", "split", "sizes", "classes", "counts", "points")}
    parts = {} if source.parts is None else {"parts": _parts(source)}
    normals = {"normals": source.train.has_normals}
    return {"task": task, **shared, **normals, **parts, "notes": list(notes), "refusals": list(refusals)}


def _show(task: str, source: OpenedClouds) -> None:
    console, facts = output_console(), source.facts()
    normals = "with normals" if source.train.has_normals else "without normals"
    kinds = f"point clouds {normals}, {len(source.classes)} classes, for {task}"
    console.print(f"[bold]{escape(source.where)}[/bold]: {kinds}", soft_wrap=True)
    console.print(f"Split: {escape(source.origin)}", soft_wrap=True)
    table = Table("split", "clouds", "points: smallest, median, largest")
    for name, clouds in source.splits().items():
        low, middle, high = np.quantile(clouds.sizes, [0, 0.5, 1]).astype(int).tolist()
        table.add_row(name, f"{len(clouds):,}", f"{low:,}, {middle:,}, {high:,}")
    console.print(table)
    parts = None if source.parts is None else _parts(source)
    table = Table("class", *(f"{name} clouds" for name in facts["counts"]), *([] if parts is None else ["parts"]))
    for name in source.classes[:_CLASSES]:
        row = [f"{counts[name]:,}" for counts in facts["counts"].values()]
        table.add_row(escape(name), *row, *([] if parts is None else [shortened(parts[name], 8)]))
    console.print(table)
    if len(source.classes) > _CLASSES:
        console.print(f"and {len(source.classes) - _CLASSES} more classes (--json lists all)")


def _save_sheet(source: OpenedClouds, path: Path) -> None:
    """Save a picture with a row of training clouds for each class."""
    classes, train = source.classes[:_ROWS], source.train
    sheet = Image.new("RGB", (_LABEL + _COLUMNS * _TILE, len(classes) * _TILE), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for row, name in enumerate(classes):
        pen.text((8, row * _TILE + 8), shortened([name], 1)[:20], fill=_INK, font=font)
        members = np.flatnonzero(train.categories == row)
        chosen = members[np.linspace(0, len(members) - 1, min(_COLUMNS, len(members))).round().astype(int)]
        for column, index in enumerate(chosen.tolist()):
            own = () if source.parts is None else source.parts[row]
            tile = Image.fromarray(draw_cloud(train.cloud(index), own, size=_TILE))
            sheet.paste(tile, (_LABEL + column * _TILE, row * _TILE))
    with atomic_file(path) as file:
        sheet.save(file, "png")


def draw_cloud(cloud: Cloud, parts: Sequence[int] = (), *, size: int) -> np.ndarray:
    """Return a picture (size, size, 3) uint8 of a cloud from a fixed view: far points are pale, parts have colors."""
    x, y, z = normalize(cloud.points).astype(np.float64).T
    across = np.cos(_AZIMUTH) * x + np.sin(_AZIMUTH) * y
    depth = np.cos(_AZIMUTH) * y - np.sin(_AZIMUTH) * x
    height = np.cos(_ELEVATION) * z + np.sin(_ELEVATION) * depth
    depth = np.cos(_ELEVATION) * depth - np.sin(_ELEVATION) * z
    colors = np.tile(np.array(_INK, dtype=np.float64), (len(x), 1))
    if cloud.parts is not None and len(parts):
        wheel = np.array([colorsys.hsv_to_rgb(0.6 + 0.618 * number, 0.8, 0.8) for number in range(len(parts))])
        colors = 255 * wheel[np.searchsorted(np.asarray(parts), cloud.parts) % len(parts)]
    white = np.interp(depth, (depth.min(), depth.max()), (_NEAR, _FAR))[:, None]
    colors = colors * (1 - white) + 255 * white
    scale = 0.46 * size  # the cloud is in the unit ball
    column = (size / 2 + scale * across).astype(int)
    line = (size / 2 - scale * height).astype(int)
    picture = np.full((size, size, 3), 255, dtype=np.uint8)
    for index in np.argsort(-depth, kind="stable"):  # near points cover far ones
        picture[line[index] : line[index] + 2, column[index] : column[index] + 2] = colors[index]
    return picture
