"""Pascal VOC: lists, difficult objects, and mistakes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from attngraft.errors import DataError
from tests.tasks.detection.scenes import CLASSES, opened, scene, voc, write_text, write_voc


def replaced(folder: Path, text: str) -> None:
    """Write the data set with another file for its first image."""
    write_voc(folder)
    write_text(folder / "Annotations/00.xml", text)


def test_lists(tmp_path: Path) -> None:
    write_voc(tmp_path)
    lists = tmp_path / "ImageSets/Main"
    (lists / "train.txt").rename(lists / "trainval.txt")
    (lists / "trainval.txt").write_text("00  1\n01 -1\n06\n")
    assert [name[-6:] for name in opened(tmp_path).train.names] == ["00.png", "01.png"]
    (lists / "test.txt").write_text("02\n")
    assert opened(tmp_path).parts()["test"].names == ("JPEGImages/02.png",)
    shutil.rmtree(tmp_path / "ImageSets")
    source = opened(tmp_path, val_fraction=1 / 3)
    assert (len(source.train), len(source.val)) == (6, 3)
    assert source.classes == CLASSES
    (tmp_path / "JPEGImages").rename(tmp_path / "images")
    (tmp_path / "Annotations").rename(tmp_path / "annotations")
    assert len(opened(tmp_path).train) == 7


def test_difficult_objects_are_ignored(tmp_path: Path) -> None:
    pixels, objects = scene(0)
    replaced(tmp_path, voc(pixels, objects, difficult=1))
    found = opened(tmp_path).train.objects(0)
    assert found.crowd.tolist() == [True]
    assert opened(tmp_path).train.objects(1).crowd.tolist() == [False, False]


BOX = "<bndbox><xmin>3</xmin><ymin>3</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
OBJECT = "<annotation><object>{}</object></annotation>"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation>", r"00\.xml: is not XML \(no element found.*\); correct it"),
        ("", "is not XML"),
        (OBJECT.format("<name>a</name><name>b</name>" + BOX), "object 1 has two elements name; correct it"),
        (OBJECT.format("<name>a</name>" + BOX + BOX), "object 1 has two elements bndbox"),
        (f"<annotation><objects><object><name>a</name>{BOX}</object></objects></annotation>", "inside of another element"),
        ("<annotation><size><width>48</width></size><size></size></annotation>", "has two sizes"),
        ("<html><object></object></html>", r"00\.xml: starts with <html>, not <annotation>; correct it"),
        (OBJECT.format("<name>a</name><difficult>maybe</difficult>" + BOX), "object 1 has difficult 'maybe', not 0 or 1"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', "declares a document type"),
        ("<annotation>&b;</annotation>", "is not XML"),
        (OBJECT.format(BOX), "object 1 has no name"),
        (OBJECT.format("<name> </name>" + BOX), "object 1 has no name"),
        (OBJECT.format("<name>a</name>"), "object 1 has no bndbox"),
        (OBJECT.format("<name>a</name>" + BOX.replace("<xmin>3</xmin>", "")), "object 1 has the box .* not numbers"),
        (OBJECT.format("<name>a</name>" + BOX.replace("<ymin>", "<xmin>1</xmin><ymin>")), "a side of its box twice"),
        (OBJECT.format("<name>a</name>" + BOX.replace("9", "1_0")), "object 1 has the box .* not numbers"),
        (OBJECT.format("<name>a</name>" + BOX.replace("9", "nan")), "object 1 has the box .* not numbers"),
        (OBJECT.format("<name>a</name>" + BOX.replace("9", "1e400")), "object 1 has the box .* not numbers"),
        (OBJECT.format("<name>a</name>" + BOX.replace("9", "2")), r"object 1: the box .* has no area"),
        (OBJECT.format("<name>a</name>" + BOX.replace("3", "80").replace("9", "90")), "object 1: the box .* is outside"),
        (OBJECT.format("<name>a\n\x7f</name>" + BOX), "contains a control character"),
        ("<annotation><size><width>9</width><height>9</height></size></annotation>",
         r"00\.xml: is of 9 x 9 pixels, but its image has 48 x 36; correct it"),
    ],
)  # fmt: skip
def test_wrong_files(tmp_path: Path, text: str, message: str) -> None:
    replaced(tmp_path, text)
    with pytest.raises(DataError, match=message):
        opened(tmp_path)


def test_name_spaces_and_capitals(tmp_path: Path) -> None:
    text = OBJECT.format("<Name>disc</Name><difficult>True</difficult>" + BOX.replace("xmin", "XMin"))
    replaced(tmp_path, text.replace("<annotation>", '<annotation xmlns="urn:x">').replace("object>", "Object>"))
    (tmp_path / "Annotations/00.xml").rename(tmp_path / "Annotations/00.XML")
    found = opened(tmp_path).train.objects(0)
    assert (found.boxes.tolist(), found.crowd.tolist()) == ([[2, 2, 9, 9]], [True])


def test_boxes_in_parts_of_the_sides(tmp_path: Path) -> None:
    box = BOX.replace("3", "0.3").replace("9", "0.9")
    write_voc(tmp_path)
    for file in (tmp_path / "Annotations").iterdir():
        write_text(file, OBJECT.format("<name>disc</name>" + box))
    with pytest.raises(DataError, match="object 1: this and 8 more of 9 boxes are smaller than 2 pixels"):
        opened(tmp_path)


def test_long_lists(tmp_path: Path) -> None:
    write_voc(tmp_path)
    lists = tmp_path / "ImageSets/Main"
    (lists / "train.txt").write_text("".join(f"{number}\n" for number in [*range(50_000), 49_999]))
    with pytest.raises(DataError, match="lists '49999' twice"):
        opened(tmp_path)
    (lists / "train.txt").rename(lists / "trainval.txt")
    (lists / "trainval.txt").write_text("".join(f"a{number}\n" for number in range(50_000)))
    (lists / "val.txt").write_text("".join(f"b{number}\n" for number in range(50_000)))
    with pytest.raises(DataError, match=r"no a0\.xml in"):
        opened(tmp_path)


def test_size_may_be_missing(tmp_path: Path) -> None:
    pixels, objects = scene(0)
    sizes = (
        "",
        "<size><width>0</width><height>0</height></size>",
        "<size><width>48.0</width><height>36.0</height></size>",
    )
    for size in sizes:
        text = voc(pixels, objects)
        start, end = text.index("<size>"), text.index("</size>") + len("</size>")
        replaced(tmp_path, text[:start] + size + text[end:])
        assert len(opened(tmp_path).train.objects(0)) == 1


def test_missing_files(tmp_path: Path) -> None:
    write_voc(tmp_path)
    (tmp_path / "JPEGImages/00.png").unlink()
    with pytest.raises(DataError, match=r"Annotations/00\.xml: has no image 00\.\* in .*JPEGImages; add it, or remove"):
        opened(tmp_path)
    write_voc(tmp_path)
    (tmp_path / "Annotations/00.xml").unlink()
    with pytest.raises(DataError, match=r"Main/train\.txt: no 00\.xml in .*Annotations; add it, or remove the line"):
        opened(tmp_path)
    write_voc(tmp_path)
    (tmp_path / "Annotations/00.XML").write_text("<annotation></annotation>")
    with pytest.raises(DataError, match=r"00\.xml: 00\.XML has the same name; keep one of them"):
        opened(tmp_path)
    (tmp_path / "Annotations/00.XML").unlink()
    (tmp_path / "ImageSets/Main/train.txt").write_text("00\n00\n")
    with pytest.raises(DataError, match=r"train\.txt: lists '00' twice"):
        opened(tmp_path)
    shutil.rmtree(tmp_path / "JPEGImages")
    with pytest.raises(DataError, match="no folders JPEGImages and Annotations"):
        opened(tmp_path)
