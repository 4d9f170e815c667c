"""Files of captions: COCO's and Karpathy's JSON, tables, and Flickr's token files.

annotations/captions_train2014.json;  captions_train.jsonl;  captions_train.csv;  Flickr8k.token.txt;  dataset_coco.json
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attngraft.errors import DataError
from attngraft.opening import JSON_LIMIT, read_mapping
from attngraft.suggest import cut, quoted
from attngraft.tasks.images.coco import coco_files
from attngraft.tasks.images.sources.table import LabelTable, find_column, read_table, read_utf8

NAME_COLUMNS = ("file_name", "image", "filename", "file")
CAPTION_COLUMNS = ("captions", "caption")

LONGEST, WORDS = 5_000, 1_000  #: characters and words of a caption, whose n-grams are counted in every evaluation
MOST = 100  #: captions of an image

_TOKEN = re.compile(r"(?P<name>[^\t]+?)#\d+\t(?P<caption>.*)")
_LIST = re.compile(r"\[\s*['\"].*['\"]\s*\]", re.DOTALL)  #: of texts, as JSON or as Python writes it
#: names of files of captions
_CAPTIONS = re.compile(r"captions(_.+)?\.(json|jsonl|csv|tsv|parquet)|dataset_.+\.json|.+\.token(\.txt)?")
_WRONG = (KeyError, TypeError, ValueError, AttributeError, OSError)


@dataclass(kw_only=True)
class Captioned:
    """An image and its captions."""

    name: str  #: file name
    where: str  #: place of the image, or of its first caption, for messages
    key: int | None = None  #: COCO's id
    folder: str = ""  #: folder of the image, as in COCO's `train2014`
    captions: list[str] = field(default_factory=list)
    part: str | None = None  #: train, val or test, in a file that says so

    def add(self, caption: Any, where: str) -> None:
        """Append a caption.

        Raises:
            DataError: it is no text, empty or too long, or the image has too many.
        """
        if not isinstance(caption, str) or not caption.strip() or not _is_unicode(caption):
            empty = caption is None or (isinstance(caption, str) and not caption.strip())
            what = "is empty" if empty else f"is {quoted(caption)}, not text"
            raise DataError(f"{where}: a caption of {cut(self.name)} {what}; write one, or remove this entry")
        if len(caption) > LONGEST:
            raise DataError(
                f"{where}: a caption of {cut(self.name)} has {len(caption):,} characters, more than {LONGEST:,}; shorten it"
            )
        words = caption.split()
        if len(words) > WORDS:
            raise DataError(
                f"{where}: a caption of {cut(self.name)} has {len(words):,} words, more than {WORDS:,}; shorten it"
            )
        if len(self.captions) == MOST:
            raise DataError(f"{where}: {cut(self.name)} has more than {MOST:,} captions; remove some")
        self.captions.append(" ".join(words))


def has_captions(path: Path) -> bool:
    """Return whether a file, or a folder without annotations of objects, has captions by its name or the names in it."""
    if path.is_file():
        return bool(_CAPTIONS.fullmatch(path.name))
    annotations = coco_files(path)
    if not path.is_dir() or any(not _CAPTIONS.fullmatch(file.name) for file in annotations.values()):
        return False
    folders = (path, path / "annotations")
    return any(_CAPTIONS.fullmatch(file.name) for folder in folders if folder.is_dir() for file in folder.iterdir())


def read_coco_captions(file: Path, *, split: str) -> list[Captioned]:
    """Read a file of COCO's captions, `images` with ids and `annotations` with captions.

    Args:
        split: name of the split in the file's name, which may be the folder of the images (`train2014`).

    Raises:
        DataError: the file is no such file, or a caption is empty.
    """
    try:
        content, found = read_mapping(file, limit=JSON_LIMIT), dict[int, Captioned]()
        for number, entry in enumerate(content["images"]):
            key = entry["id"]
            if type(key) is not int or key in found:
                raise ValueError(f"the id {quoted(key)} of image {number} is not an integer, or the id of two images")
            found[key] = Captioned(name=_name(entry["file_name"]), where=f"{file}: image {key}", key=key, folder=split)
        for number, entry in enumerate(content.get("annotations", ())):
            where = f"{file}: annotation {quoted(entry.get('id', number))}"
            if entry["image_id"] not in found:
                raise DataError(
                    f"{where}: there is no image {quoted(entry['image_id'])}; add it, or remove the caption"
                )
            found[entry["image_id"]].add(entry["caption"], where)
    except _WRONG as error:
        raise _damaged(file, "captions of COCO", error) from None
    return list(found.values())


def read_karpathy(file: Path) -> list[Captioned]:
    """Read a file of Karpathy, which assigns images with their captions to splits; restval is training.

    Raises:
        DataError: the file is no such file.
    """
    parts = {"train": "train", "restval": "train", "val": "val", "test": "test"}
    found = list[Captioned]()
    try:
        for number, entry in enumerate(read_mapping(file, limit=JSON_LIMIT)["images"]):
            where = f"{file}: image {number}"
            if entry["split"] not in parts:
                raise DataError(
                    f"{where}: the split {quoted(entry['split'])} must be one of {', '.join(parts)}; correct it"
                )
            key, folder = entry.get("cocoid"), entry.get("filepath")
            if key is not None and type(key) is not int:
                raise ValueError(f"the cocoid {quoted(key)} of image {number} is not an integer")
            image = Captioned(
                name=_name(entry["filename"]),
                where=where,
                key=key,
                folder=_name(folder) if folder else "",
                part=parts[entry["split"]],
            )
            for sentence in entry["sentences"]:
                image.add(sentence["raw"], where)
            found.append(image)
    except _WRONG as error:
        raise _damaged(file, "a split file of Karpathy", error) from None
    return found


def read_caption_table(file: Path, notes: list[str]) -> list[Captioned]:
    """Read a .jsonl with `file_name` and `captions`, or a .csv with `file_name` and `caption` and a row for each caption.

    Notes on the table are appended to `notes`.

    Raises:
        DataError: the file cannot be read, or a row lacks a name or a caption.
    """
    table = read_table(file)
    notes += filter(None, [table.note])
    name_column, caption_column = _column(table, NAME_COLUMNS), _column(table, CAPTION_COLUMNS)
    found = dict[str, Captioned]()
    for row, (name, captions) in enumerate(zip(table.columns[name_column], table.columns[caption_column], strict=True)):
        where = table.line(row)
        try:
            image = found.setdefault(_name(name), Captioned(name=name, where=where))
        except ValueError as error:
            raise DataError(f"{where}: {name_column}: {error}; correct it") from None
        if isinstance(captions, str) and _LIST.fullmatch(captions):
            raise DataError(
                f"{where}: the captions of {cut(name)} are a list in one cell; write a row for each caption, or a .jsonl"
            )
        for caption in captions if isinstance(captions, list) else [captions]:
            image.add(caption, where)
        if not image.captions:
            raise DataError(f"{where}: {cut(name)} has no captions; write some, or remove this entry")
    return list(found.values())


def read_flickr(file: Path) -> list[Captioned]:
    """Read a token file of Flickr, whose lines are `NAME.jpg#0`, a tab, and a caption.

    Raises:
        DataError: the file cannot be read, or a line has another form.
    """
    found = dict[str, Captioned]()
    for where, line in _lines(file):
        match = _TOKEN.fullmatch(line)
        if match is None:
            raise DataError(
                f"{where}: expected NAME.jpg#0, a tab and a caption, found {quoted(line)}; correct the line"
            )
        try:
            image = found.setdefault(match["name"], Captioned(name=_name(match["name"]), where=where))
        except ValueError as error:
            raise DataError(f"{where}: {error}; correct the line") from None
        image.add(match["caption"], where)
    if not found:
        raise DataError(f"{file}: has no lines; download it again")
    return list(found.values())


def read_names(file: Path) -> dict[str, str]:
    """Read a list of images of Flickr (`Flickr_8k.trainImages.txt`); return the place of each name."""
    return {line.strip(): where for where, line in _lines(file)}


def _lines(file: Path) -> Iterable[tuple[str, str]]:
    for number, line in enumerate(read_utf8(file).split("\n"), start=1):
        if line.strip():
            yield f"{file}: line {number}", line.removesuffix("\r")


def _name(value: Any) -> str:
    valid = isinstance(value, str) and value.strip() and "\0" not in value and _is_unicode(value)
    if not valid or Path(value).is_absolute() or ".." in Path(value).parts:
        raise ValueError(f"{quoted(value)} is not the path of an image below the data")
    return value


def _is_unicode(text: str) -> bool:
    """Return whether `text` is free of lone surrogates, which JSON may contain."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _column(table: LabelTable, names: tuple[str, ...]) -> str:
    found = find_column(table, names)
    if found is None:
        raise DataError(
            f"{table.where}: no column {' or '.join(names)} (found: {', '.join(table.columns)}); rename the column"
        )
    return found


def _damaged(file: Path, what: str, error: Exception) -> DataError:
    return DataError(f"{file}: not {what} ({type(error).__name__}: {cut(str(error))}); save or download it again")


def by_key(images: Iterable[Captioned]) -> Mapping[int | str, Captioned]:
    """Return images by COCO's id and by name."""
    found = dict[int | str, Captioned]()
    for image in images:
        found[image.name] = image
        if image.key is not None:
            found[image.key] = image
    return found
