"""COCO annotations: forms of masks and boxes, layouts, and mistakes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.errors import DataError
from attngraft.tasks.detection.facts import read_facts
from attngraft.tasks.detection.run_lengths import decoded, of_label_map, of_polygons
from tests.tasks.detection.scenes import CLASSES, coco, opened, save, scenes, write_coco, write_text


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object], split: str = "train") -> None:
    """Write the data set with changed annotations of a split."""
    write_coco(folder)
    content = coco(split)
    change(content)
    write_text(folder / f"annotations/instances_{split}.json", json.dumps(content))


def first(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["annotations"][0].update(fields)


def test_forms_of_masks(tmp_path: Path) -> None:
    """A polygon, both kinds of run lengths, and pieces give the same mask, which a crowd may have too."""
    rectangle = [10.0, 8.0, 20.0, 8.0, 20.0, 14.0, 10.0, 14.0]
    plane = np.zeros((36, 48), dtype=bool)
    plane[8:14, 10:20] = True
    (run,) = of_label_map(plane.astype(int))
    lengths = [36 * 10 + 8, *[6, 30] * 9, 6, 36 * 28 + 22]
    halves = [[10, 8, 20, 8, 20, 11, 10, 11], [10, 11, 20, 11, 20, 14, 10, 14]]
    for number, given in enumerate(
        [
            [rectangle],
            halves,
            {"size": [36, 48], "counts": lengths},
            {"size": [36, 48], "counts": run["counts"].decode()},
        ]
    ):
        folder = tmp_path / str(number)
        rewrite(folder, first(segmentation=given, iscrowd=int(number == 2), bbox=None, area=None))
        objects = opened(folder).train.objects(0)
        assert objects.masks is not None
        assert np.array_equal(decoded(objects.masks[:1], (48, 36))[0], plane)
        assert objects.boxes[0].tolist() == [10, 8, 20, 14]
        assert objects.areas[0] == 60
        assert objects.crowd[0] == (number == 2)


def test_label_maps_of_all_values() -> None:
    random = np.random.default_rng(0)
    for height, width, count in [(1, 1, 2), (5, 7, 3), (7, 4, 9)]:
        for _ in range(20):
            labels = random.integers(0, count, (height, width))
            values = [value for value in np.unique(labels) if value]
            planes = decoded(of_label_map(labels), (width, height))
            assert np.array_equal(planes, (labels[None] == np.array(values)[:, None, None]).reshape(planes.shape))


def test_layouts(tmp_path: Path) -> None:
    write_coco(tmp_path / "a")
    a = opened(tmp_path / "a")
    for split in ("train", "val"):
        content = coco(split)
        folder = tmp_path / "roboflow" / {"val": "valid"}.get(split, split)
        write_text(folder / "_annotations.coco.json", json.dumps(content))
        for part, name, pixels, _ in scenes():
            if part == split:
                save(folder / f"{name}.png", pixels)
                save(tmp_path / "b" / f"{split}2017" / f"{name}.png", pixels)
        write_text(tmp_path / f"b/annotations/instances_{split}2017.json", json.dumps(content))
    for source in (opened(tmp_path / "roboflow"), opened(tmp_path / "b")):
        for one, other in zip(a.parts().values(), source.parts().values(), strict=True):
            assert one.fingerprint() == other.fingerprint()
    lone = opened(tmp_path / "b/annotations/instances_train2017.json", val_fraction=0.5)
    assert len(lone.train) == len(lone.val) == 3
    assert lone.classes == CLASSES


def test_boxes_only(tmp_path: Path) -> None:
    def remove(content: dict[str, Any]) -> None:
        for each in content["annotations"]:
            del each["segmentation"], each["area"], each["iscrowd"]

    rewrite(tmp_path, remove)
    source = opened(tmp_path)
    assert not source.masks
    assert all(part.objects(i).masks is None for part in source.parts().values() for i in range(len(part)))
    assert source.notes == ("9 of 13 objects have no mask, so that only boxes are used.",)
    objects = source.train.objects(0)
    assert objects.areas.tolist() == np.prod(objects.boxes[:, 2:] - objects.boxes[:, :2], axis=1).tolist()


def test_boxes_at_the_border(tmp_path: Path) -> None:
    """Boxes are clipped, with a note if they stick out by more than a pixel."""
    rewrite(tmp_path, first(bbox=[-0.5, 3, 20, 33.9], segmentation=[[0, 3, 19, 3, 19, 36, 0, 36]]))
    source = opened(tmp_path)
    assert source.train.objects(0).boxes[0].tolist() == [0, 3, 19.5, 36]
    assert source.notes == ()
    rewrite(tmp_path, first(bbox=[-5, 3, 20, 20], segmentation=[[0, 3, 15, 3, 15, 23, 0, 23]]))
    source = opened(tmp_path)
    assert source.train.objects(0).boxes[0].tolist() == [0, 3, 15, 23]
    assert source.notes == ("Boxes that are partly outside of their image, and clipped: 1.",)


def test_few_boxes_of_no_area_are_left_out(tmp_path: Path) -> None:
    def flat(content: dict[str, Any]) -> None:
        one = {"image_id": content["images"][0]["id"], "category_id": 7, "bbox": [1, 1, 3, 3]}
        content["annotations"] = [one] * 999 + [{**one, "id": 5, "bbox": [1, 1, 3, 0]}]

    rewrite(tmp_path, flat)
    source = opened(tmp_path)
    assert len(source.train.objects(0)) == 999
    assert "Boxes or masks of no area that are left out: 1 (" in source.notes[0]
    assert "annotation 5" in source.notes[0]


ONE = r"instances_train\.json: annotation 0: "


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bbox": [50, 3, 5, 5]}, ONE + r"the box \[50, 3, 55, 8\] .* is outside of the 48 x 36 image; correct or remove"),
        ({"bbox": [5, 3, 0, 5]}, ONE + r"the box \[5, 3, 5, 8\] .* has no area; correct or remove it"),
        ({"bbox": [5, 3, -2, 5]}, ONE + r".* has no area"),
        ({"bbox": [5, 3, float("nan"), 5]}, ONE + "nan is not a finite number"),
        ({"bbox": [5, 3, float("inf"), 5]}, ONE + "inf is not a finite number"),
        ({"bbox": [5, 3, 10**400, 5]}, ONE + ".*is not a finite number"),
        ({"bbox": [5, 3, True, 5]}, ONE + "True is not a finite number"),
        ({"bbox": [5, 3, 5]}, ONE + r"its bbox \[5, 3, 5\] is not a list of left, top, width and height"),
        ({"bbox": "x"}, ONE + "its bbox 'x' is not a list"),
        ({"bbox": None, "segmentation": None}, ONE + "its bbox None is not a list"),
        ({"area": -1}, ONE + "its area -1 is negative"),
        ({"area": "x"}, ONE + "'x' is not a finite number"),
        ({"iscrowd": 2}, ONE + "iscrowd is 2, not 0 or 1"),
        ({"category_id": 8}, ONE + "has the category 8, which is not listed; add it"),
        ({"category_id": [8]}, ONE + r"has the category \[8\], which is not listed"),
        ({"image_id": 80}, ONE + "is of the image 80, which is not listed; add or remove it"),
        ({"id": 10}, "annotation 10: its id occurs twice; change one"),
        ({"id": [1]}, r"annotation \[1\]: its id is no number"),
        ({"segmentation": [[1, 1, 2, 2]]}, ONE + "a polygon has 2 points, but needs 3; correct"),
        ({"segmentation": [[1, 1, 2, 2, 3]]}, ONE + "a polygon must be a list of finite numbers"),
        ({"segmentation": [[1, 1, 2, 2, 3, float("nan")]]}, ONE + "a polygon must be a list of finite numbers"),
        ({"segmentation": [[1, 1, 2, 2, 3, 1e9]]}, ONE + "a polygon lies far outside of the image"),
        ({"segmentation": [[1, [2], 3]]}, ONE + "a polygon must be a list of finite numbers"),
        ({"segmentation": [[1, 1, "2", 2, 3, 1]]}, ONE + "a polygon must be a list of finite numbers"),
        ({"segmentation": [{"x": 1}]}, ONE + "a polygon must be a list of finite numbers"),
        ({"segmentation": "x"}, ONE + "a mask must be a list of polygons, or an object with counts"),
        ({"segmentation": {"size": [36, 48], "counts": [5]}}, ONE + "the run lengths have 5 pixels, the image 1,728"),
        ({"segmentation": {"size": [48, 36], "counts": [1728]}}, ONE + r"the run lengths are of \[48, 36\], not \[36, 48\]"),
        ({"segmentation": {"size": [36, 48], "counts": [-1, 1729]}}, ONE + "the run lengths have"),
        ({"segmentation": {"size": [36, 48], "counts": [1728.0]}}, ONE + "run lengths must be integers"),
        ({"segmentation": {"size": [36, 48], "counts": "oo1"}}, ONE + "the run lengths have"),
        ({"segmentation": {"size": [36, 48], "counts": "~~~~"}}, ONE + "a run length contains '~'"),
        ({"segmentation": {"size": [36, 48], "counts": "00\u00e1"}}, ONE + "a run length contains '\u00e1'"),
        ({"segmentation": {"size": [36, 48]}}, ONE + "'counts'"),
    ],
)  # fmt: skip
def test_wrong_annotations(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    rewrite(tmp_path, first(**fields))
    with pytest.raises(DataError, match=message):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["images"][0].update(file_name="x.png"), r"images/train/x\.png: is missing, but .*instances_train"),
        (lambda c: c["images"][0].update(file_name="../val/06.png"), r"image 0: its file_name .* is not a path below"),
        (lambda c: c["images"][0].update(file_name=["x"]), "image 0: its file_name .* is not a path below"),
        (lambda c: c["images"][0].update(file_name="01.png"), r"two entries of 'images' have the file images/train/01\.png"),
        (lambda c: c["images"][0].update(id=1), "two images have the same id 1; change one"),
        (lambda c: c["images"][0].update(id=None), r"images\[0\] has the id None, which is no number"),
        (lambda c: c["categories"][0].update(id=2**70), r"categories\[0\] has the id 11.*no number of at most 63 bits"),
        (lambda c: c["images"][0].update(width=0), "image 0: its width and height 0 x 36 are not those of an image"),
        (lambda c: c["images"][0].update(height="36"), "image 0: its width and height 48 x '36' are not those"),
        (lambda c: c["images"][0].update(width=10**9), "image 0: its width and height"),
        (lambda c: c["categories"][0].update(id=3), "two categories have the same id 3"),
        (lambda c: c["categories"][0].update(name=None), "the category 7 must have a number as its id, and a name"),
        (lambda c: c["categories"].pop(), "categories differ from those of the other splits"),
        (lambda c: c.update(categories=[], annotations=[]), "the list 'categories' is empty; add the classes"),
        (lambda c: c.update(images=[], annotations=[]), "the list 'images' is empty; add images"),
        (lambda c: c.pop("annotations"), "no list 'annotations' of objects; save or download it again"),
        (lambda c: c.update(images=[1]), "no list 'images' of objects"),
    ],
)  # fmt: skip
def test_wrong_files(tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    rewrite(tmp_path, change)
    with pytest.raises(DataError, match=message):
        opened(tmp_path)


def every(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda content: [change(each) for each in content["annotations"]]


def test_boxes_in_parts_of_the_sides(tmp_path: Path) -> None:
    rewrite(tmp_path, every(lambda each: each.update(bbox=[side / 48 for side in each["bbox"]])))
    with pytest.raises(DataError, match=ONE + "this and 8 more of 13 boxes are smaller than 2 pixels; give"):
        opened(tmp_path)


def test_boxes_that_do_not_fit_their_masks(tmp_path: Path) -> None:
    rewrite(tmp_path, first(bbox=[0, 0, 3, 3]))
    (note,) = opened(tmp_path).notes
    assert note.startswith("Boxes that do not fit their masks: 1 (") and "annotation 0" in note
    rewrite(tmp_path, every(lambda each: each.update(bbox=[0, 0, 3, 3])))
    with pytest.raises(DataError, match=ONE + "this and 8 more of 13 boxes do not fit their masks; give left"):
        opened(tmp_path)


def test_masks_without_a_pixel(tmp_path: Path) -> None:
    rewrite(tmp_path, first(segmentation=[[5, 5, 5, 5, 5, 5]]))
    with pytest.raises(DataError, match=ONE + "the mask has no pixel; correct or remove it"):
        opened(tmp_path)
    parts = every(lambda each: each.update(segmentation=[[0.1, 0.1, 0.2, 0.1, 0.2, 0.2]]))
    rewrite(tmp_path, parts)
    with pytest.raises(
        DataError, match=ONE + "the mask has no pixel.*; the same for 8 more of 13 objects: give"
    ) as error:
        opened(tmp_path)
    assert "\n" not in str(error.value)


def test_a_few_tiny_boxes_are_noted(tmp_path: Path) -> None:
    rewrite(tmp_path, first(bbox=[5, 5, 1, 1], segmentation=None))
    assert opened(tmp_path).notes[0].startswith("Boxes smaller than 2 pixels: 1 (")


def test_two_files_of_a_split(tmp_path: Path) -> None:
    write_coco(tmp_path)
    shutil.copy(tmp_path / "annotations/instances_val.json", tmp_path / "annotations/instances_val2014.json")
    with pytest.raises(DataError, match=r"val2014\.json: annotations of val, as instances_val\.json; remove or rename"):
        opened(tmp_path)


def test_ids_of_other_types(tmp_path: Path) -> None:
    for field, value in {"image_id": "0", "category_id": 3.0}.items():
        rewrite(tmp_path, first(**{field: value}))
        with pytest.raises(DataError, match=rf"{value}.*, which is not listed \(1, '1' and 1.0 differ\); add"):
            opened(tmp_path)


def test_up_to_ten_mistakes_are_listed(tmp_path: Path) -> None:
    def wrong(content: dict[str, Any]) -> None:
        for number in range(14):
            content["annotations"].append({"id": 500 + number, "image_id": 1, "category_id": 7, "bbox": [90, 90, 1, 1]})

    rewrite(tmp_path, wrong)
    with pytest.raises(DataError) as caught:
        opened(tmp_path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert "annotation 509: the box [90, 90, 91, 91]" in lines[9]
    assert lines[10] == "and 4 more mistakes"


def test_unreadable_files(tmp_path: Path) -> None:
    write_coco(tmp_path)
    file = tmp_path / "annotations/instances_train.json"
    for text in ("{", "[" * 200 + "]" * 200, "[]"):
        file.write_text(text)
        with pytest.raises(DataError, match=r"instances_train\.json: cannot be read as JSON"):
            opened(tmp_path)


def test_images_elsewhere(tmp_path: Path) -> None:
    write_coco(tmp_path)
    (tmp_path / "images").rename(tmp_path / "pictures")
    with pytest.raises(DataError, match=r"its images are not in .*; put them there"):
        opened(tmp_path)
    assert len(opened(tmp_path, images="pictures").train) == 6


def test_long_outlines_are_refused() -> None:
    zigzag = [value for x in range(3000) for value in (x, 0, x, 3000)]
    with pytest.raises(ValueError, match=r"an outline of .* pixels is too long; use run lengths"):
        of_polygons([zigzag], (3000, 3000))


def test_crowds_alone_are_no_objects(tmp_path: Path) -> None:
    def crowds(content: dict[str, Any]) -> None:
        for each in content["annotations"]:
            each["iscrowd"] = 1

    rewrite(tmp_path, crowds)
    source = opened(tmp_path)
    with pytest.raises(DataError, match="no objects; annotate some"):
        read_facts(source.train, source.classes)
