"""Annotations in a text file per image."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attngraft.counting import counted
from attngraft.errors import DataError
from attngraft.opening import read_text
from attngraft.tasks.detection.annotated import AnnotatedImages, Checks, ObjectList
from attngraft.tasks.images.stored import image_size

Entry = tuple[str, Path, Path | None]  #: name, image, and its file; None: no objects
Parse = Callable[[str, ObjectList, Path], None]  #: adds the objects of a text; raises ValueError for another form

_LIMIT = 2**24  #: bytes of a file


def read_files(entries: Sequence[Entry], parse: Parse, checks: Checks) -> AnnotatedImages:
    """Read the files of a split, and the sizes of its images."""

    def opened(entry: Entry) -> tuple[tuple[int, int], str] | str:
        _, image, file = entry
        try:
            return image_size(image), "" if file is None else read_text(file, limit=_LIMIT)
        except DataError as error:
            return str(error)
        except (OSError, UnicodeDecodeError) as error:
            return f"{file}: cannot be read as text ({error}); save it again in UTF-8, or remove it"

    names, images, annotations = [], [], []
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        found = counted(threads.map(opened, entries), "annotations read", total=len(entries))
        for (name, image, file), each in zip(entries, found, strict=True):
            if isinstance(each, str):
                checks.mistakes.append(each)
                continue
            size, text = each
            objects = ObjectList(size, checks, where=image)
            if file is not None:
                try:
                    parse(text, objects, file)
                except ValueError as error:
                    checks.mistakes.append(f"{file}: {error}; correct it")
            names.append(name)
            images.append(image)
            annotations.append(objects.close())
    return AnnotatedImages(names=tuple(names), images=tuple(images), annotations=tuple(annotations))
