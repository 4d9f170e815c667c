"""Contact sheet of a data set: some images of every class, and duplicates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from attngraft.errors import DataError
from attngraft.files import atomic_file
from attngraft.tasks.images.inspection import Inspection
from attngraft.tasks.images.sources import Images, in_mode

_TILE, _GAP, _LABEL = 96, 4, 150  #: pixels
_COLUMNS, _CLASSES, _DUPLICATES = 8, 40, 8
_INK, _GRAY, _RED = (30, 30, 30), (120, 120, 120), (190, 30, 30)

SheetRow = tuple[str, str, list[tuple[Images, int]], tuple[int, int, int]]  #: title, subtitle, images, color


def save_contact_sheet(inspection: Inspection, path: Path) -> Path:
    """Save a .png with one row of images per class and per group of images that are in both splits.

    Rows have up to 8 images, evenly spaced over a class's training images; there are up to 40 classes and 8 groups.

    Raises:
        DataError: no readable images.
        StorageError: the file cannot be written.
    """
    rows = [*_class_rows(inspection), *_duplicate_rows(inspection)]
    if not any(images for _, _, images, _ in rows):
        raise DataError(f"{inspection.survey.source.where}: no readable images for a contact sheet")
    width = _LABEL + _COLUMNS * (_TILE + _GAP)
    sheet = Image.new("RGB", (width, len(rows) * (_TILE + _GAP) + _GAP), "white")
    pen, fonts = ImageDraw.Draw(sheet), (ImageFont.load_default(14), ImageFont.load_default(11))
    for number, (title, subtitle, images, color) in enumerate(rows):
        top = _GAP + number * (_TILE + _GAP)
        pen.text((_GAP, top + 4), _short(pen, title, fonts[0]), fill=color, font=fonts[0])
        pen.text((_GAP, top + 24), _short(pen, subtitle, fonts[1]), fill=_GRAY, font=fonts[1])
        for column, (source, index) in enumerate(images[:_COLUMNS]):
            tile = _tile(source, index)
            left = _LABEL + column * (_TILE + _GAP)
            sheet.paste(tile, (left + (_TILE - tile.width) // 2, top + (_TILE - tile.height) // 2))
    with atomic_file(path) as file:
        sheet.save(file, "png")
    return path


def _class_rows(inspection: Inspection) -> list[SheetRow]:
    source, train = inspection.survey.source, inspection.survey.source.train
    counts = inspection.counts()
    rows: list[SheetRow] = []
    for label, name in enumerate(source.classes[:_CLASSES]):
        members = np.flatnonzero(train.labels[:, label] > 0 if source.multilabel else train.labels == label)
        chosen = members[np.linspace(0, len(members) - 1, min(_COLUMNS, len(members))).astype(int)]
        subtitle = ", ".join(f"{split} {numbers[label]}" for split, numbers in counts.items())
        rows.append((name, subtitle, [(train, int(index)) for index in chosen], _INK))
    left = len(source.classes) - _CLASSES
    if left > 0:
        rows.append((f"and {left} more classes", "", [], _GRAY))
    return rows


def _duplicate_rows(inspection: Inspection) -> list[SheetRow]:
    by_name = {
        (split, name): (images, index)
        for split, images in inspection.images().items()
        for index, name in enumerate(images.names)
    }
    rows: list[SheetRow] = []
    for group in inspection.survey.issues.leaks[:_DUPLICATES]:
        shown = [by_name[image.part, image.name] for image in group if (image.part, image.name) in by_name]
        rows.append(("in both splits", ", ".join(dict.fromkeys(image.label for image in group)), shown, _RED))
    return rows


def _tile(images: Images, index: int) -> Image.Image:
    """Return an image no larger than a tile; small ones are enlarged by an integer factor."""
    image = in_mode(images.open(index), "RGB")
    scale = _TILE // max(image.size)
    if scale > 1:
        return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    return ImageOps.contain(image, (_TILE, _TILE)) if max(image.size) > _TILE else image


def _short(pen: ImageDraw.ImageDraw, text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
    """Cut `text` to the width beside the images."""
    if pen.textlength(text, font=font) <= _LABEL - 2 * _GAP:
        return text
    while text and pen.textlength(f"{text}…", font=font) > _LABEL - 2 * _GAP:
        text = text[:-1]
    return f"{text}…"
