"""Images to show: files, data, what a run was validated on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attngraft.errors import DataError, UsageError
from attngraft.targets.images import (
    images_from_data,
    images_from_files,
    images_from_run,
    numbered_names,
    shortest_names,
    true_classes,
    true_label_map,
)
from attngraft.training.run_folder import read_run
from tests.export.runs import make_run
from tests.tasks.segmentation.drawings import section, write_drawings


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    """Two classes, ten images each; the third image of the first class lies on its side."""
    random = np.random.default_rng(0)
    for part, count in (("train", 10), ("val", 6)):
        for name in ("daisy", "tulip"):
            folder = tmp_path / "flowers" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 255, (20, 30, 3), dtype=np.uint8)
                exif = Image.Exif()
                exif[0x0112] = 6 if (name, number) == ("daisy", 2) else 1
                Image.fromarray(pixels).save(folder / f"{number}.jpg", exif=exif)
    return tmp_path / "flowers"


def test_files_are_upright(flowers: Path) -> None:
    files = [str(flowers / "val" / "daisy" / f"{number}.jpg") for number in range(4)]
    image_set = images_from_files(files)
    assert image_set.names == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"]
    assert [image_set.open(place).size for place in range(4)] == [(30, 20), (30, 20), (20, 30), (30, 20)]
    assert image_set.labels is None
    assert images_from_files(files[:1]).source == files[0]


def test_images_of_one_name_are_told_apart(flowers: Path) -> None:
    files = [str(flowers / "val" / name / "1.jpg") for name in ("daisy", "tulip")]
    files += [str(flowers / "train" / "daisy" / "1.jpg"), str(flowers / "val" / "daisy" / "2.jpg"), files[0]]
    names = ["val/daisy/1.jpg", "tulip/1.jpg", "train/daisy/1.jpg", "2.jpg", "val/daisy/1.jpg (2)"]
    assert images_from_files(files).names == names
    assert shortest_names(["1.jpg", "a/1.jpg", "/b/1.jpg"]) == ["1.jpg", "a/1.jpg", "b/1.jpg"]
    assert numbered_names(["x", "x", "x (2)", "x", "y"]) == ["x", "x (2)", "x (2) (2)", "x (3)", "y"]


def test_who_named_the_images(flowers: Path, tmp_path: Path) -> None:
    record = read_run(make_run(tmp_path / "run", task={"name": "classification", "data": {"source": str(flowers)}}))
    assert not images_from_run(record).user_chosen
    assert images_from_run(record, split="train").user_chosen
    assert images_from_run(record, data=str(flowers)).user_chosen
    assert images_from_data(str(flowers)).user_chosen
    assert images_from_files([str(flowers / "val" / "daisy" / "1.jpg")]).user_chosen


def test_data_and_parts_of_them(flowers: Path) -> None:
    image_set = images_from_data(str(flowers))
    assert len(image_set) == 12
    assert image_set.classes == ("daisy", "tulip")
    assert image_set.labels is not None
    assert image_set.labels.tolist() == [0] * 6 + [1] * 6
    assert image_set.sample(4) == [0, 4, 7, 11], "evenly, so that both classes are there"
    assert image_set.sample(100) == list(range(12))
    assert len(images_from_data(str(flowers), split="train")) == 20
    with pytest.raises(DataError, match="^--split tests: .*no split 'tests'"):
        images_from_data(str(flowers), split="tests")


def test_of_a_run(flowers: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", task={"name": "classification", "data": {"source": str(flowers)}})
    record = read_run(run)
    assert list(images_from_run(record).names) == list(images_from_data(str(flowers)).names)
    assert len(images_from_run(record, split="train")) == 20
    lost = read_run(make_run(tmp_path / "lost"))
    with pytest.raises(DataError, match="/secret/place/flowers"):
        images_from_run(lost)
    assert len(images_from_run(lost, data=str(flowers))) == 12


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no images"):
        images_from_files([])
    with pytest.raises(DataError, match=r"nowhere\.png"):
        images_from_files([str(tmp_path / "nowhere.png")]).open(0)
    with pytest.raises(DataError, match="cannot be read as an image"):
        images_from_files([__file__]).open(0)


def test_images_of_a_run_are_those_of_validation(flowers: Path, tmp_path: Path) -> None:
    """Also if the data have a test split, and if validation was drawn at random."""
    (flowers / "val").rename(flowers / "test")
    data = {"source": str(flowers), "val_fraction": 0.3}
    record = read_run(make_run(tmp_path / "run", task={"name": "classification", "data": data}))
    own = images_from_run(record)
    assert len(own) == 6 and all(name.startswith("train/") for name in own.names)
    assert own.source == f"{flowers} (validation)"
    assert list(images_from_run(record, split="val").names) == list(own.names)
    assert images_from_run(record, split="test").names[0] == "test/daisy/0.jpg"


def test_the_true_class_is_the_folder_or_the_label_in_the_data_of_the_run(flowers: Path, tmp_path: Path) -> None:
    classes = ("daisy", "tulip")
    image = flowers / "val" / "tulip" / "1.jpg"
    assert true_classes(image, classes=classes, record=None) == ("tulip",)
    table = tmp_path / "table"
    table.mkdir()
    rows = ["image,label,split"]
    for number in range(8):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(table / f"{number}.png")
        rows.append(f"{number}.png,{classes[number % 2]},{'val' if number > 3 else 'train'}")
    (table / "labels.csv").write_text("\n".join(rows) + "\n")
    task = {"name": "classification", "data": {"source": str(table / "labels.csv")}}
    record = read_run(make_run(tmp_path / "run", task=task, classes=classes))
    assert true_classes(table / "5.png", classes=classes, record=record) == ("tulip",)
    assert true_classes(table / "6.png", classes=classes, record=record) == ("daisy",)
    assert true_classes(table / "5.png", classes=classes, record=None) == ()
    Image.new("RGB", (20, 20)).save(tmp_path / "5.png")
    assert true_classes(tmp_path / "5.png", classes=classes, record=record) == (), "another file of this name"
    (table / "labels.csv").unlink()
    assert true_classes(table / "5.png", classes=classes, record=record) == (), "the data have moved"


def test_images_with_masks_of_a_run_of_segmentation(tmp_path: Path) -> None:
    record = read_run(make_run(tmp_path / "run", task=section(tmp_path / "data")))
    own = images_from_run(record)
    assert list(own.names) == [f"images/val/{number}.png" for number in range(24, 29)] and not own.user_chosen
    assert own.labels is None and own.label_map is not None
    mask = tmp_path / "data" / "masks" / "val" / "25.png"
    with Image.open(mask) as opened:
        expected = np.array(opened)
    assert (own.label_map(1) == expected).all()
    assert own.open(1).size == expected.shape[::-1]
    assert len(images_from_run(record, split="train")) == 24
    with pytest.raises(DataError, match="no split 'tests'; splits: train, val"):
        images_from_run(record, split="tests")
    other = images_from_run(record, data=str(write_drawings(tmp_path / "other", train=3, val=0)))
    assert len(other) == 3 and other.user_chosen and other.source.endswith("(all)")
    image = tmp_path / "data" / "images" / "val" / "25.png"
    known = true_label_map(image, record)
    assert known is not None and (known == expected).all()
    assert true_label_map(mask, record) is None
    assert true_label_map(image, None) is None
    (tmp_path / "data").rename(tmp_path / "moved")
    assert true_label_map(image, record) is None
    assert true_label_map(image, read_run(make_run(tmp_path / "classes"))) is None
