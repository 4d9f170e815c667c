"""One picture of many: some images of every class, and those that are there twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from attngraft.errors import DataError
from attngraft.files import atomic_file
from attngraft.tasks.images.inspection import Inspection
from attngraft.tasks.images.sources import Images, in_mode

_TILE, _GAP, _LABEL = 96, 4, 150  #: pixels
_COLUMNS, _CLASSES, _TWINS = 8, 40, 8
_INK, _GRAY, _RED = (30, 30, 30), (120, 120, 120), (190, 30, 30)

Row = tuple[str, str, list[tuple[Images, int]], tuple[int, int, int]]  #: title, below it, images, color


def save_contact_sheet(inspection: Inspection, path: Path) -> Path:
    """A row of up to 8 images for each of the first 40 classes, spread over its training images, and a row for each of the
    first 8 groups of images that are in both parts; as .png.

    Raises:
        DataError: there is nothing to show.
        StorageError: it cannot be written.
    """
    rows = [*_of_classes(inspection), *_of_twins(inspection)]
    if not any(images for _, _, images, _ in rows):
        raise DataError(f"{inspection.survey.parts.where}: no image that can be shown on a contact sheet")
    width = _LABEL + _COLUMNS * (_TILE + _GAP)
    sheet = Image.new("RGB", (width, len(rows) * (_TILE + _GAP) + _GAP), "white")
    pen, fonts = ImageDraw.Draw(sheet), (ImageFont.load_default(14), ImageFont.load_default(11))
    for place, (title, below, images, color) in enumerate(rows):
        top = _GAP + place * (_TILE + _GAP)
        pen.text((_GAP, top + 4), _short(pen, title, fonts[0]), fill=color, font=fonts[0])
        pen.text((_GAP, top + 24), _short(pen, below, fonts[1]), fill=_GRAY, font=fonts[1])
        for column, (source, index) in enumerate(images[:_COLUMNS]):
            tile = _tile(source, index)
            left = _LABEL + column * (_TILE + _GAP)
            sheet.paste(tile, (left + (_TILE - tile.width) // 2, top + (_TILE - tile.height) // 2))
    with atomic_file(path) as file:
        sheet.save(file, "png")
    return path


def _of_classes(inspection: Inspection) -> list[Row]:
    parts, train = inspection.survey.parts, inspection.survey.parts.train
    counts = inspection.counts()
    rows: list[Row] = []
    for label, name in enumerate(parts.classes[:_CLASSES]):
        has = train.labels[:, label] > 0 if parts.multilabel else train.labels == label
        members = np.flatnonzero(has)
        chosen = members[np.linspace(0, len(members) - 1, min(_COLUMNS, len(members))).astype(int)]
        said = ", ".join(f"{part} {numbers[label]}" for part, numbers in counts.items())
        rows.append((name, said, [(train, int(index)) for index in chosen], _INK))
    left = len(parts.classes) - _CLASSES
    if left > 0:
        rows.append((f"and {left} more classes", "", [], _GRAY))
    return rows


def _of_twins(inspection: Inspection) -> list[Row]:
    places = {
        (part, name): (images, index)
        for part, images in inspection.images().items()
        for index, name in enumerate(images.names)
    }
    rows: list[Row] = []
    for group in inspection.survey.found.leaks[:_TWINS]:
        shown = [places[twin.part, twin.name] for twin in group if (twin.part, twin.name) in places]
        rows.append(("in both parts", ", ".join(dict.fromkeys(twin.label for twin in group)), shown, _RED))
    return rows


def _tile(images: Images, index: int) -> Image.Image:
    """An image, no larger than a tile; small ones are enlarged by whole pixels."""
    image = in_mode(images.open(index), "RGB")
    scale = _TILE // max(image.size)
    if scale > 1:
        return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    return ImageOps.contain(image, (_TILE, _TILE)) if max(image.size) > _TILE else image


def _short(pen: ImageDraw.ImageDraw, text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
    """`text`, cut so that it fits beside the images."""
    if pen.textlength(text, font=font) <= _LABEL - 2 * _GAP:
        return text
    while text and pen.textlength(f"{text}…", font=font) > _LABEL - 2 * _GAP:
        text = text[:-1]
    return f"{text}…"
