"""All formats give the same objects, splits and facts."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attngraft.errors import ConfigError, DataError
from attngraft.tasks.detection import run_lengths
from attngraft.tasks.detection.annotated import Listed
from attngraft.tasks.detection.facts import notes_on, read_facts
from attngraft.tasks.detection.source import ObjectSource
from attngraft.tasks.images.sources.splitting import save_split
from tests.tasks.detection.scenes import (
    CLASSES,
    COUNTS,
    WRITERS,
    box_of,
    coco,
    opened,
    save,
    scenes,
    write_bowl,
    write_coco,
    write_masks,
    write_text,
    write_voc,
)

SHARED = os.environ.get("ATTNGRAFT_SHARED")
shared = pytest.mark.skipif(SHARED is None, reason="requires ATTNGRAFT_SHARED")


def check(source: ObjectSource, *, masks: bool, classes: tuple[str, ...]) -> None:
    parts = source.parts()
    assert {name: len(part) for name, part in parts.items()} == COUNTS
    assert source.classes == classes
    assert source.masks == masks
    assert not source.drawn
    places = dict.fromkeys(COUNTS, 0)
    for split, name, pixels, drawn in scenes():
        part, index = parts[split], places[split]
        places[split] += 1
        assert part.names[index].endswith(f"{name}.png")
        assert part.size(index) == part.image(index).size == pixels.shape[1::-1]
        assert np.array_equal(np.asarray(part.image(index)), pixels)
        objects = part.objects(index)
        assert len(objects) == len(drawn)
        order = [*range(len(drawn))]
        np.testing.assert_allclose(objects.boxes, np.array([box_of(drawn[i][1]) for i in order]).reshape(-1, 4))
        if len(classes) > 1:
            assert objects.labels.tolist() == [drawn[i][0] for i in order]
        assert not objects.crowd.any()
        if masks:
            assert objects.masks is not None
            planes = run_lengths.decoded(objects.masks, part.size(index))
            assert np.array_equal(planes, np.array([mask for _, mask in drawn]).reshape(planes.shape))
            assert objects.areas.tolist() == [mask.sum() for _, mask in drawn]
        else:
            assert objects.masks is None


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("named", [False, True])
def test_formats(tmp_path: Path, form: str, named: bool) -> None:
    WRITERS[form](tmp_path)
    source = opened(tmp_path, format=form if named else None)
    check(source, masks=form in ("coco", "masks"), classes=("object",) if form == "masks" else CLASSES)
    ids = {"coco": (3, 7), "masks": (1,), "yolo": (0, 1), "voc": (1, 2)}
    assert source.category_ids == ids[form]


@pytest.mark.parametrize("form", WRITERS)
def test_facts(tmp_path: Path, form: str) -> None:
    WRITERS[form](tmp_path)
    source = opened(tmp_path)
    facts = read_facts(source.train, source.classes)
    labels = [label for split, _, _, objects in scenes() if split == "train" for label, _ in objects]
    wanted = [len(labels)] if form == "masks" else np.bincount(labels).tolist()
    assert facts.objects.tolist() == wanted
    assert facts.by_area == (len(labels), 0, 0)
    assert facts.most == 3
    assert facts.empty == 1
    assert len(facts.sizes) == 6
    assert facts.sizes[0] == (48, 36)
    assert notes_on({"train": facts}, 3) == []
    (note,) = notes_on({"train": facts}, 2)
    assert note.startswith("Images with more than 2 objects, of which the rest cannot be found: 1, with up to 3; use")


def test_objects_that_occur_twice_are_noted(tmp_path: Path) -> None:
    write_bowl(tmp_path)
    shutil.copy(tmp_path / "01/masks/0.png", tmp_path / "01/masks/9.png")
    source = opened(tmp_path, val_fraction=0.5)
    facts = {name: read_facts(images, source.classes) for name, images in source.parts().items()}
    assert notes_on(facts, 100) == ["Objects that occur twice, with the same class, box and area: 1."]


def test_objects_that_occur_twice_but_for_parts_of_a_pixel(tmp_path: Path) -> None:
    write_voc(tmp_path)
    file = tmp_path / "Annotations/00.xml"
    text = file.read_text()
    one = text[text.index("<object>") : text.index("</object>") + len("</object>")]
    moved = re.sub(r"<xmin>(\d+)", r"<xmin>\1.01", one)
    file.write_text(text.replace(one, one + moved))
    source = opened(tmp_path)
    assert read_facts(source.train, source.classes).twice == 1


def test_a_single_image_without_objects(tmp_path: Path) -> None:
    source = opened(write_masks(tmp_path))
    with pytest.raises(DataError, match=r"val/07\.png of val: no objects; annotate some"):
        read_facts(source.val.take(np.array([1])), source.classes, name="val")


def test_masks_of_one_value_are_noted(tmp_path: Path) -> None:
    write_masks(tmp_path)
    for file in (tmp_path / "masks").rglob("*.png"):
        save(file, 255 * (np.asarray(Image.open(file)) > 0).astype(np.uint8))
    source = opened(tmp_path)
    facts = {name: read_facts(images, source.classes) for name, images in source.parts().items()}
    (note,) = notes_on(facts, 100)
    assert note.startswith("No mask has more than one value besides 0")


def test_copies_in_two_splits_are_noted(tmp_path: Path) -> None:
    write_coco(tmp_path)
    assert opened(tmp_path).copies() == []
    shutil.copytree(tmp_path / "images/train", tmp_path / "images/val", dirs_exist_ok=True)
    content = coco("train")
    write_text(tmp_path / "annotations/instances_val.json", json.dumps(content))
    (note,) = opened(tmp_path).copies()
    assert note.startswith("Leak: 6 val images are copies of images of an earlier split, such as ")


def test_too_many_classes(tmp_path: Path) -> None:
    write_coco(tmp_path)
    for split in COUNTS:
        content = coco(split)
        content["categories"] += [{"id": number, "name": f"class {number}"} for number in range(10, 20010)]
        write_text(tmp_path / f"annotations/instances_{split}.json", json.dumps(content))
    with pytest.raises(DataError, match="20,002 classes, more than 20,000; remove those without objects"):
        opened(tmp_path)


def test_folder_per_image(tmp_path: Path) -> None:
    write_bowl(tmp_path)
    source = opened(tmp_path, val_fraction=0.5)
    assert {name: len(part) for name, part in source.drawn.items()} == {"train": 5, "val": 4}
    drawn = {f"{name}/images/{name}.png": objects for _, name, _, objects in scenes()}
    for index, name in enumerate(source.train.names):
        objects = source.train.objects(index)
        assert objects.boxes.tolist() == [list(box_of(mask)) for _, mask in drawn[name]]


def test_random_split_and_folds(tmp_path: Path) -> None:
    write_masks(tmp_path)
    for folder in ("images", "masks"):
        (tmp_path / folder / "train").rename(tmp_path / folder / "all")
        for file in (tmp_path / folder / "val").iterdir():
            file.rename(tmp_path / folder / "all" / file.name)
        (tmp_path / folder / "val").rmdir()
    source = opened(tmp_path, val_fraction=0.4)
    assert (len(source.train), len(source.val)) == (5, 4)
    saved = save_split(tmp_path / "split.csv", source.drawn)
    again = opened(tmp_path, split_file=str(saved))
    assert again.val.names == source.val.names
    folds = [opened(tmp_path, folds=3, fold=fold).val.names for fold in range(3)]
    assert sorted(sum(folds, ())) == sorted(source.train.names + source.val.names)


def test_fingerprint_follows_annotations(tmp_path: Path) -> None:
    write_coco(tmp_path)
    before = opened(tmp_path).train.fingerprint()
    assert opened(tmp_path).train.fingerprint() == before
    content = coco("train")
    content["annotations"][0]["category_id"] = 10 - content["annotations"][0]["category_id"]
    write_text(tmp_path / "annotations/instances_train.json", json.dumps(content))
    assert opened(tmp_path).train.fingerprint() != before


def test_no_objects_at_all(tmp_path: Path) -> None:
    write_coco(tmp_path)
    write_text(tmp_path / "annotations/instances_train.json", json.dumps({**coco("train"), "annotations": []}))
    source = opened(tmp_path)
    with pytest.raises(DataError, match=r"train/00\.png and 5 more images of training: no objects; annotate some"):
        read_facts(source.train, source.classes, name="training")


def test_image_of_another_size(tmp_path: Path) -> None:
    write_coco(tmp_path)
    (tmp_path / "images/train/00.png").write_bytes((tmp_path / "images/train/01.png").read_bytes())
    with pytest.raises(DataError, match=r"00\.png: 47 x 37, but its annotation is for 48 x 36; correct one of them"):
        read_facts(opened(tmp_path).train, CLASSES)


def test_nothing_found(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no annotations of objects; use COCO"):
        opened(tmp_path)
    with pytest.raises(DataError, match="no such file or folder"):
        opened(tmp_path / "gone")


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_coco(tmp_path)
    monkeypatch.setitem(sys.modules, "faster_coco_eval.core.mask", None)
    with pytest.raises(ConfigError, match=r'pip install "attngraft\[detection\]"'):
        opened(tmp_path)


@shared
def test_both_forms_of_nuclei() -> None:
    folder = Path(str(SHARED)) / "data" / "nuclei"
    ours, theirs = (opened(folder, format=form).parts()["test"] for form in ("coco", "masks"))
    assert ours.names == theirs.names
    for index in range(len(ours)):
        one, other = ours.objects(index), theirs.objects(index)
        assert np.array_equal(one.boxes, other.boxes)
        assert np.array_equal(one.areas, other.areas)
        assert list(one.masks or ()) == list(other.masks or ())


@shared
def test_coco_small() -> None:
    source = opened(Path(str(SHARED)) / "data" / "coco_small")
    assert len(source.classes) == 80
    assert source.category_ids[-1] == 90
    found = {name: read_facts(part, source.classes) for name, part in source.parts().items()}
    counts = {name: (int(each.objects.sum()) + each.crowds, each.crowds) for name, each in found.items()}
    assert counts == {"train": (1899, 18), "val": (624, 5)}
    assert found["train"].empty == 1


def test_only_the_first_texts_are_kept() -> None:
    some, more = Listed(map(str, range(8))), Listed()
    more.check()
    for each in range(1000):
        more.append(f"x{each}")
    assert (str(some), len(more.shown)) == ("0, 1, 2, 3, 4, 5, 6, 7", 10)
    some.extend(more)
    assert str(some) == "0, 1, 2, 3, 4, 5, 6, 7, x0, x1 and 998 more"
    with pytest.raises(DataError, match=r"x0\nx1\nand 998 more mistakes$"):
        some.check()
