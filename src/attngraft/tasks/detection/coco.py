"""Objects of COCO annotations; see `images.coco` for where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from attngraft.counting import counted
from attngraft.errors import DataError
from attngraft.image_files import SEQUENTIAL
from attngraft.opening import JSON_LIMIT, read_mapping
from attngraft.suggest import cut, quoted, repeated
from attngraft.tasks.detection.annotated import AnnotatedImages, Checks, ObjectList, ReadObjects, number
from attngraft.tasks.detection.config import ObjectDataConfig
from attngraft.tasks.detection.run_lengths import of_annotation
from attngraft.tasks.images.coco import image_folder, path_below, split_files
from attngraft.tasks.images.folders import SPLITS

OBJECTS = ("instances_",)  #: start of the names of files with objects, unlike captions and keypoints

Categories = dict[int, str]  #: names by id, in ascending order


def read_coco(root: Path, config: ObjectDataConfig) -> ReadObjects:
    """Read the annotation files of a folder, or a single one.

    Raises:
        DataError: a file is not such annotations, an image is missing, or objects cannot be used.
    """
    if root.is_file():
        file, name = root, root.stem.removeprefix(OBJECTS[0])
        root = file.parent.parent if file.parent.name == "annotations" else file.parent
        files = {"train": (name, file)}
    else:
        files = split_files(root, SPLITS, OBJECTS)
    checks, parts, categories = Checks(), dict[str, AnnotatedImages](), Categories()
    for split, (name, file) in files.items():
        parts[split], own = _read(root, name, file, checks, config.images)
        if categories and own != categories:
            raise DataError(f"{file}: its categories differ from those of the other splits; make them the same")
        categories = own
    parts, masks, notes = checks.close(parts)
    return ReadObjects(
        classes=tuple(categories.values()), category_ids=tuple(categories), parts=parts, masks=masks, notes=notes
    )


def _read(root: Path, split: str, file: Path, checks: Checks, given: str | None) -> tuple[AnnotatedImages, Categories]:
    try:
        content = read_mapping(file, limit=JSON_LIMIT)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as JSON ({cut(str(error))}); save or download it again") from None
    images, annotations, listed = (_entries(file, content, key) for key in ("images", "annotations", "categories"))
    if not images:
        raise DataError(f"{file}: the list 'images' is empty; add images")
    categories = _categories(file, listed)
    numbers = {key: label for label, key in enumerate(categories)}
    by_image: dict[int | str, list[tuple[str, Mapping[str, Any]]]] = {each: [] for each in _ids(file, images, "images")}
    seen: set[int | str] = set()
    for place, each in enumerate(annotations):
        key, image, category = (each.get(name) for name in ("id", "image_id", "category_id"))
        where = f"{file}: annotations[{place}]" if key is None else f"{file}: annotation {quoted(key)}"
        if key is not None and (not _is_id(key) or key in seen):
            checks.mistakes.append(f"{where}: its id {'occurs twice' if _is_id(key) else 'is no number'}; change one")
        elif not _is_id(image) or image not in by_image:
            checks.mistakes.append(
                f"{where}: is of the image {quoted(image)}, which is not listed{_other_type(image)}; add or remove it"
            )
        elif not _is_id(category) or category not in numbers:
            checks.mistakes.append(
                f"{where}: has the category {quoted(category)}, which is not listed{_other_type(category)}; add it"
            )
        else:
            by_image[image].append((where, each))
        if _is_id(key):
            seen.add(key)
    folder = image_folder(root, split, file, [str(each.get("file_name")) for each in images], given=given)
    names, paths, found = [], [], []
    for entry in counted(images, f"images of {file.name} read"):
        path = _image(folder, root, entry, file, checks)
        if path is None:
            continue
        objects = ObjectList((entry["width"], entry["height"]), checks, where=path)
        for where, each in by_image[entry["id"]]:
            try:
                _add(objects, each, numbers, (entry["width"], entry["height"]), where)
            except (ValueError, LookupError, TypeError, OverflowError) as error:
                checks.mistakes.append(f"{where}: {cut(str(error), 200)}; correct or remove it")
        names.append(path.relative_to(root).as_posix())
        paths.append(path)
        found.append(objects.close())
    if (twice := repeated(names)) is not None:
        checks.mistakes.append(f"{file}: two entries of 'images' have the file {twice}; remove one")
    order = sorted(range(len(names)), key=names.__getitem__)
    part = AnnotatedImages(names=tuple(names), images=tuple(paths), annotations=tuple(found))
    return part.take(order), categories  # type: ignore[arg-type]


def _add(
    objects: ObjectList, given: Mapping[str, Any], numbers: Mapping[int, int], size: tuple[int, int], where: str
) -> None:
    mask = of_annotation(given["segmentation"], size) if given.get("segmentation") else None
    box: list[float] = []
    if given.get("bbox") or mask is None:
        corner = given.get("bbox")
        if not isinstance(corner, list) or len(corner) != 4:
            raise ValueError(f"its bbox {quoted(corner)} is not a list of left, top, width and height")
        left, top, width, height = map(number, corner)
        box = [left, top, left + width, top + height]
    crowd, area = given.get("iscrowd", 0), given.get("area")
    if crowd not in (0, 1):
        raise ValueError(f"iscrowd is {quoted(crowd)}, not 0 or 1")
    if area is not None and number(area) < 0:
        raise ValueError(f"its area {area:g} is negative")
    label = numbers[given["category_id"]]
    objects.add(box, label, where=where, mask=mask, crowd=bool(crowd), area=None if area is None else float(area))


def _image(folder: Path, root: Path, entry: Mapping[str, Any], file: Path, checks: Checks) -> Path | None:
    """Return the path of an image; None, with a note of the mistake, if the entry cannot be used."""
    name, width, height = (entry.get(key) for key in ("file_name", "width", "height"))
    where = f"{file}: image {quoted(entry['id'])}"
    try:
        path = path_below(root, folder, name)
    except ValueError as error:
        checks.mistakes.append(f"{where}: {error}; correct it")
        return None
    if not path.is_file():
        checks.mistakes.append(f"{path}: is missing, but {file} lists it; add it, or remove its entry")
    elif type(width) is not int or type(height) is not int or min(width, height) < 1 or width * height > SEQUENTIAL:
        size = f"{quoted(width)} x {quoted(height)}"
        checks.mistakes.append(f"{where}: its width and height {size} are not those of an image; correct them")
    else:
        return path
    return None


def _categories(file: Path, listed: Sequence[Mapping[str, Any]]) -> Categories:
    ids = _ids(file, listed, "categories")
    for key, each in zip(ids, listed, strict=True):
        if not isinstance(key, int) or not isinstance(each.get("name"), str):
            raise DataError(f"{file}: the category {quoted(key)} must have a number as its id, and a name; correct it")
    if not ids:
        raise DataError(f"{file}: the list 'categories' is empty; add the classes")
    return dict(sorted((each["id"], each["name"]) for each in listed))


def _entries(file: Path, content: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = content.get(key)
    if not isinstance(found, list) or not all(isinstance(entry, Mapping) for entry in found):
        raise DataError(
            f"{file}: not COCO annotations of objects: no list {key!r} of objects; save or download it again"
        )
    return found


def _ids(file: Path, entries: Sequence[Mapping[str, Any]], key: str) -> list[int | str]:
    found: dict[int | str, None] = {}
    for place, entry in enumerate(entries):
        own = entry.get("id")
        if not _is_id(own):
            raise DataError(
                f"{file}: {key}[{place}] has the id {quoted(own)}, which is no number of at most 63 bits; correct it"
            )
        if own in found:
            raise DataError(f"{file}: two {key} have the same id {quoted(own)}; change one")
        found[own] = None
    return list(found)


def _other_type(value: Any) -> str:
    """Return a hint for an id that may only look like a listed one."""
    return "" if type(value) is int else " (1, '1' and 1.0 differ)"


def _is_id(value: Any) -> TypeGuard[int | str]:
    """Return whether a value is an id; numbers are limited as in the run's facts."""
    return isinstance(value, int | str) and not (
        isinstance(value, bool) or (isinstance(value, int) and abs(value) >= 2**63)
    )
