"""Folders of images and masks: layouts, classes, values and colors of masks, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attngraft import image_files
from attngraft.counting import counts_shown
from attngraft.errors import DataError
from attngraft.tasks.images.boundaries import IGNORED
from attngraft.tasks.images.sources import decoding
from attngraft.tasks.images.sources.splitting import save_split
from attngraft.tasks.images.stored import read_mask
from attngraft.tasks.segmentation import source
from attngraft.tasks.segmentation.config import MaskDataConfig
from attngraft.tasks.segmentation.source import MaskSource, count_labels, open_masks
from tests.cli.test_export import run

SIZE = (6, 8)


def save(path: Path, pixels: Any, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(np.asarray(pixels, dtype=np.uint8))
    image.save(path, **options)


def write(folder: Path, images: str, masks: str, *, count: int = 3, ends: tuple[str, str] = ("", "")) -> None:
    """Images `images/NAME.jpg` and masks `masks/NAME.png` whose label is that of the row modulo 3."""
    for index in range(count):
        save(folder / images / f"{index}{ends[0]}.jpg", np.full((*SIZE, 3), 40 * index))
        save(folder / masks / f"{index}{ends[1]}.png", np.arange(SIZE[0])[:, None].repeat(SIZE[1], 1) % 3)


def opened(folder: Path, **fields: Any) -> MaskSource:
    return open_masks(MaskDataConfig(source=str(folder), **fields))


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        ("images/{}", "masks/{}"),
        ("{}/images", "{}/labels"),
        ("images/{}", "annotations/{}"),
        ("JPEGImages/{}/drive", "SegmentationClass/{}/drive"),
    ],
)
def test_layouts_with_splits(tmp_path: Path, images: str, masks: str) -> None:
    for split, count in {"training": 3, "validation": 2, "test": 1}.items():
        write(tmp_path, images.format(split), masks.format(split), count=count)
    source = opened(tmp_path)
    assert {name: len(part) for name, part in source.parts().items()} == {"train": 3, "val": 2, "test": 1}
    assert source.labels.classes == ("class 0", "class 1", "class 2")
    assert len({name for part in source.parts().values() for name in part.names}) == 6
    assert not source.drawn
    counts, sizes = count_labels(source.train)
    assert counts.tolist() == [48, 48, 48, 0]
    assert sizes == [(8, 6)] * 3


def test_ade20k(tmp_path: Path) -> None:
    for split in ("training", "validation"):
        write(tmp_path, f"images/{split}", f"annotations/{split}")
    (tmp_path / "objectInfo150.txt").write_text("Idx\tRatio\tName\n1\t0.2\twall\n2\t0.1\tbuilding, edifice\n")
    source = opened(tmp_path)
    assert source.labels.classes == ("wall", "building")
    assert np.unique(source.val.label(0)).tolist() == [0, 1, IGNORED]
    for rows in (
        "wall\n",
        "1\twall\n999\tbuilding\n",
        "1\twall\n1\tbuilding\n",
        "1\t0.2\twall\n2\n",
        "1\t\n",
        "1_0\twall\n",
    ):
        (tmp_path / "objectInfo150.txt").write_text(f"Idx\n{rows}")
        with pytest.raises(DataError, match="is not the table of ADE20K"):
            opened(tmp_path)


def test_cityscapes(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write(
            tmp_path,
            f"leftImg8bit/{split}/bonn",
            f"gtFine/{split}/bonn",
            ends=("_leftImg8bit", "_gtFine_labelIds"),
        )
        save(tmp_path / f"gtFine/{split}/bonn/0_gtFine_labelIds.png", np.full(SIZE, 7))
        save(tmp_path / f"gtFine/{split}/bonn/0_gtFine_color.png", np.zeros((*SIZE, 3)))
    source = opened(tmp_path)
    assert len(source.labels.classes) == 19
    assert set(source.train.label(0).flat) == {0}  # road
    assert set(source.train.label(1).flat) == {IGNORED}


@pytest.mark.parametrize("form", ["polygon", "list", "text"])
def test_coco_instances(tmp_path: Path, form: str) -> None:
    """The large object is drawn first, whatever its place in the file; runs go down columns."""
    given: dict[str, Any] = {
        "polygon": [[1, 2, 3, 2, 3, 4, 1, 4]],
        "list": {"size": SIZE, "counts": [8, 2, 4, 2, 32]},
        "text": {"size": SIZE, "counts": "8240l0"},
    }
    large = [[0, 0, 8, 0, 8, 5, 0, 5]]
    for split in ("train2017", "val2017"):
        save(tmp_path / split / "0.jpg", np.zeros((*SIZE, 3)))
        content = {
            "images": [{"id": 7, "file_name": "0.jpg", "width": 8, "height": 6}],
            "categories": [{"id": 90, "name": "cup"}, {"id": 3, "name": "table"}],
            "annotations": [
                {"image_id": 7, "category_id": 90, "segmentation": given[form]},
                {"image_id": 7, "category_id": 3, "segmentation": large},
            ],
        }
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / f"annotations/instances_{split}.json").write_text(json.dumps(content))
    source = opened(tmp_path)
    assert source.labels.classes == ("background", "table", "cup")
    label = source.train.label(0)
    assert label[2:4, 1:3].tolist() == [[2, 2], [2, 2]]
    assert label[0].tolist() == [1] * 8
    assert label[5].tolist() == [0] * 8
    assert opened(tmp_path, ignore=("background",)).val.label(0)[5].tolist() == [IGNORED] * 8
    (tmp_path / "val2017/0.jpg").unlink()
    with pytest.raises(DataError, match=r"its images are not in .*val2017"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("polygon", "twice", "reason"),
    [
        ([float("nan")] * 6, None, "finite numbers"),
        ([0, 0, 1, 1, 2, 2, 3], None, "finite numbers"),
        ([[0, 0], [1, 1], [2, 2]], None, "finite numbers"),
        ([0, 0, 1, 1], None, "a polygon has 2 points, but needs 3"),
        ([0, 0, 2e6, 1, 2, 2], None, r"far outside of the image, at 2e\+06"),
        ([0, 0, 1, 1, 2, 2], "images", "two images have the same id"),
        ([0, 0, 1, 1, 2, 2], "categories", "two categories have the same id"),
    ],
)
def test_wrong_coco_files(tmp_path: Path, polygon: list[Any], twice: str | None, reason: str) -> None:
    save(tmp_path / "0.png", np.zeros((*SIZE, 3)))
    content: dict[str, Any] = {
        "images": [{"id": 7, "file_name": "0.png", "width": 8, "height": 6}],
        "categories": [{"id": 1, "name": "cup"}],
        "annotations": [{"image_id": 7, "category_id": 1, "segmentation": [polygon]}],
    }
    if twice:
        content[twice] *= 2
    for split in ("train", "val"):
        (tmp_path / f"instances_{split}.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=reason):
        opened(tmp_path).train.label(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": {"file_name": "../0.png"}}, r"its file_name '\.\./0\.png' is not a path below"),
        ({"images": {"file_name": "/0.png"}}, "is not a path below"),
        ({"images": {"file_name": 5}}, "is not a path below"),
        ({"images": {"file_name": "1.png"}}, r"lists 1\.png twice; join the entries"),
        ({"categories": {"color": [300, -5, 0]}}, r"the color \[300, -5, 0\] of 'cup' is not three whole numbers"),
        ({"categories": {"color": "red"}}, "the color 'red' of 'cup'"),
        ({"categories": {"color": [1, 2]}}, "three whole numbers from 0"),
        ({"categories": {"color": [1.5, 2, float("nan")]}}, "three whole numbers from 0"),
    ],
)
def test_coco_paths_and_colors(tmp_path: Path, change: dict[str, dict[str, Any]], message: str) -> None:
    for name in ("0.png", "1.png", "d/1.png"):
        save(tmp_path / name, np.zeros((*SIZE, 3)))
    images = [{"id": number, "file_name": f"{number}.png", "width": 8, "height": 6} for number in (1, 0)]
    content = {"images": images, "categories": [{"id": 1, "name": "cup"}], "annotations": []}
    for key, fields in change.items():
        content[key][-1].update(fields)  # type: ignore[attr-defined]
    for split in ("train", "val"):
        (tmp_path / "d" / f"instances_{split}.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        opened(tmp_path / "d")


def test_run_lengths_of_another_size_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "0.png", np.zeros((*SIZE, 3)))
    lengths = {"size": SIZE[::-1], "counts": [8, 2, 4, 2, 32]}  # width and height swapped: as many pixels
    content = {
        "images": [{"id": 7, "file_name": "0.png", "width": 8, "height": 6}],
        "categories": [{"id": 1, "name": "cup"}],
        "annotations": [{"image_id": 7, "category_id": 1, "segmentation": lengths}],
    }
    for split in ("train", "val"):
        (tmp_path / f"instances_{split}.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"the run lengths are of [\[(]8, 6[\])], not \[6, 8\] \(height, width\)"):
        opened(tmp_path).train.label(0)


def test_coco_panoptic(tmp_path: Path) -> None:
    segments = np.zeros((*SIZE, 3))
    segments[1:3], segments[3:] = (5, 1, 0), (9, 0, 2)
    content = {
        "images": [{"id": 7, "file_name": "0.jpg", "width": 8, "height": 6}],
        "categories": [{"id": 1, "name": "person", "color": [1, 2, 3]}, {"id": 200, "name": "rug", "color": [4, 5, 6]}],
        "annotations": [
            {
                "image_id": 7,
                "file_name": "0.png",
                "segments_info": [{"id": 261, "category_id": 200}, {"id": 9 + 2 * 65536, "category_id": 1}],
            }
        ],
    }
    for split in ("train2017", "val2017"):
        save(tmp_path / "images" / split / "0.jpg", np.zeros((*SIZE, 3)))
        save(tmp_path / f"annotations/panoptic_{split}/0.png", segments)
        (tmp_path / f"annotations/panoptic_{split}.json").write_text(json.dumps(content))
    source = opened(tmp_path)
    assert (source.labels.classes, source.labels.colors) == (("person", "rug"), ((1, 2, 3), (4, 5, 6)))
    assert source.train.label(0)[:, 0].tolist() == [IGNORED, 1, 1, 0, 0, 0]
    two = {**content, "annotations": 2 * content["annotations"]}
    (tmp_path / "annotations/panoptic_train2017.json").write_text(json.dumps(two))
    with pytest.raises(DataError, match=r"two lists of segments for 0\.jpg; give each image one"):
        opened(tmp_path)
    twice = json.loads(json.dumps(content))
    twice["annotations"][0]["segments_info"].append({"id": 261, "category_id": 1})
    (tmp_path / "annotations/panoptic_train2017.json").write_text(json.dumps(twice))
    with pytest.raises(DataError, match=r"0\.png has segments without an id of their own; correct them"):
        opened(tmp_path).train.label(0)
    (tmp_path / "annotations/panoptic_train2017.json").write_text(json.dumps(content))
    segments[0] = 77
    save(tmp_path / "annotations/panoptic_train2017/0.png", segments)
    with pytest.raises(
        DataError, match=r"0\.png: contains the segment .*which .*panoptic_train2017\.json does not list"
    ):
        opened(tmp_path).train.label(0)


def test_images_are_upright(tmp_path: Path) -> None:
    """Masks are of the image as viewers show it."""
    write(tmp_path, "images", "masks")
    turned = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(8, 6))
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    save(tmp_path / "images" / "1.jpg", turned, exif=exif)
    source = opened(tmp_path)
    for part in source.parts().values():
        assert set(count_labels(part)[1]) == {(8, 6)}
        for index in range(len(part)):
            assert part.image(index).size == (8, 6)


def test_a_random_split_is_kept(tmp_path: Path) -> None:
    write(tmp_path, "images", "masks", count=10)
    source = opened(tmp_path)
    assert (len(source.train), len(source.val)) == (8, 2)
    save_split(tmp_path / "split.csv", source.drawn)
    write(tmp_path / "more", "images", "masks", count=1)
    again = open_masks(MaskDataConfig(source=str(tmp_path), split_seed=5), saved_split=tmp_path / "split.csv")
    assert again.val.names == source.val.names
    assert opened(tmp_path, split_seed=5).val.names != source.val.names


@pytest.mark.parametrize(
    ("lossless", "lossy"),
    [
        ({"format": "TIFF", "compression": "tiff_lzw"}, {"format": "TIFF", "compression": "jpeg"}),
        ({"format": "WEBP", "lossless": True}, {"format": "WEBP", "quality": 50}),
        ({"format": "WEBP", "lossless": True, "icc_profile": b"abcde"}, {"format": "WEBP", "icc_profile": b"   xVP8L"}),
        ({"format": "PNG"}, {"format": "GIF"}),  # whose writers renumber labels
        ({"format": "TIFF"}, {"format": "TIFF", "save_all": True, "append_images": [Image.new("L", (8, 6))]}),
    ],
)
def test_masks_in_formats_that_change_values(tmp_path: Path, lossless: dict[str, Any], lossy: dict[str, Any]) -> None:
    mask, values = tmp_path / "masks/1.png", np.arange(48, dtype=np.uint8).reshape(6, 8) % 3
    save(mask, values, **lossless)
    assert np.array_equal(read_mask(mask).convert("L"), values)
    save(mask, values, **lossy)
    with pytest.raises(DataError, match=r"masks/1\.png: .*(change.* values.*save masks as PNG|has several pages)"):
        read_mask(mask)


def test_palettes_and_colors_and_names(tmp_path: Path) -> None:
    write(tmp_path, "images", "masks")
    labels = np.arange(SIZE[0])[:, None].repeat(SIZE[1], 1).astype(np.uint8) % 3
    palette = Image.fromarray(labels)
    palette.putpalette([9, 8, 7, 255, 0, 0, 0, 0, 255])
    for index in range(3):
        save(tmp_path / f"masks/{index}.png", palette)
    source = opened(tmp_path)
    assert source.labels.colors == ((9, 8, 7), (255, 0, 0), (0, 0, 255))
    assert np.array_equal(source.train.label(0), labels)
    (tmp_path / "classes.txt").write_text("road 1 2 3\nred car 255 0 0\nVoid 0 0 255\n")
    named = opened(tmp_path)
    assert named.labels.classes == ("road", "red car")
    assert named.labels.colors == ((1, 2, 3), (255, 0, 0))
    assert np.array_equal(named.train.label(0), np.where(labels == 2, IGNORED, labels))
    (tmp_path / "classes.txt").write_text("road 255 0 0\nred car 9 8 7\n")
    with pytest.raises(DataError, match=r"\.png: the label 0, 'road', has the color of 'red car'; give all masks one"):
        opened(tmp_path).train.label(0)
    (tmp_path / "classes.txt").write_text("road 1 2 3\nred\x0c\u2028car 255 0 0\nVoid 0 0 255\n")
    assert opened(tmp_path).labels.classes == ("road", "red car")
    for index in range(3):
        save(tmp_path / f"masks/{index}.png", np.array([[1, 2, 3], [255, 0, 0], [0, 0, 255]])[labels])
    assert np.array_equal(opened(tmp_path).train.label(0), np.where(labels == 2, IGNORED, labels))
    (tmp_path / "classes.txt").write_text("road 1 2 3\nred car 1 2 3\n")
    with pytest.raises(DataError, match="'red car' has the color of another class; give each class its own"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("fields", "classes", "expected"),
    [
        ({"ignore": (1,)}, 2, [0, IGNORED, 1]),
        ({"ignore": ("class 0",)}, 2, [IGNORED, 0, 1]),
        ({"reduce_zero_label": True}, 2, [IGNORED, 0, 1]),
        ({}, 3, [0, 1, 2]),
    ],
)
def test_ignored_labels(tmp_path: Path, fields: dict[str, Any], classes: int, expected: list[int]) -> None:
    write(tmp_path, "images", "masks")
    source = opened(tmp_path, **fields)
    assert len(source.labels.classes) == classes
    assert source.train.label(0)[:3, 0].tolist() == expected


def test_a_class_with_the_ignored_label_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "images", "masks")
    file = tmp_path / "classes.txt"
    file.write_text("0 a\n1 b\n2 c\n255 cell\n")
    with pytest.raises(
        DataError, match=r"classes\.txt: 'cell' has the label 255, which is ignored; give the class another"
    ):
        opened(tmp_path)
    assert opened(tmp_path, ignore=(255,)).labels.classes == ("a", "b", "c")
    file.write_text("0 a\n1 b\n2 c\n255 Void\n")
    assert opened(tmp_path).labels.classes == ("a", "b", "c")


def spoil(folder: Path, what: str) -> None:
    masks = folder / "masks"
    match what:
        case "jpeg":
            (masks / "1.png").unlink()
            save(masks / "1.jpg", np.zeros((*SIZE, 3)))
        case "rgb":
            for path in masks.iterdir():
                save(path, np.zeros((*SIZE, 3)))
        case "size":
            save(masks / "1.png", np.zeros((5, 5)))
        case "label":
            (folder / "classes.txt").write_text("a\nb\nc\n")
            save(masks / "1.png", np.full(SIZE, 200))
        case "negative":
            (masks / "1.png").unlink()
            Image.fromarray(np.full(SIZE, -255, np.int32)).save(masks / "1.tiff")
        case "labels":
            (folder / "classes.txt").write_text("a\nb\nc\n")
            for number in range(3):
                save(masks / f"{number}.png", np.full(SIZE, 200 + number))
        case "binary":
            for path in masks.iterdir():
                save(path, np.eye(*SIZE) * 255)
        case "missing":
            (masks / "1.png").unlink()
        case "extra":
            (folder / "images" / "1.jpg").unlink()
        case "none":
            masks.rename(folder / "other")
        case "classes":
            (folder / "classes.txt").write_text("a\nb\nb\n")
        case "digits":
            (folder / "classes.txt").write_text(f"a\n{'1' * 5000} b\nc\n")
        case "minus":
            (folder / "classes.txt").write_text("a\n-1 b\nc\n")
        case "zeros":
            (folder / "classes.txt").write_text("a\n0000000002 b\nc\n")
        case "control":
            (folder / "classes.txt").write_text("a\nb\x1b\nc\n")
        case "ignored":
            (folder / "classes.txt").write_text("a\nb\nc\n")
            for path in masks.iterdir():
                save(path, np.full(SIZE, 255))
        case "broken":
            (masks / "1.png").write_bytes(b"no image")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("jpeg", r"1\.jpg: JPEG, lossy WebP and GIF change the values.*save masks as PNG"),
        ("rgb", r"a mask in mode RGB; list its classes.*task\.data\.classes_file"),
        ("size", r"1\.png: 5 x 5, but its image images/1\.jpg is 8 x 6; make them the same size"),
        ("label", r"1\.png: contains the label 200, but there are 3 classes.*task\.data\.ignore=\[200\]"),
        ("negative", r"1\.tiff: contains the label -255; labels are 0 to 254, and 255 is ignored"),
        ("labels", r"(?s)\.png: contains the label 20\d, .*\n.*\.png: contains the label 20\d,"),
        ("binary", r"no label from 1 to 254 \(255 is ignored\); save those of the other classes as 1"),
        ("missing", r"1\.jpg: has no mask 1\.\* in .*masks; add it, or remove the file"),
        ("extra", r"1\.png: has no image 1\.\*"),
        ("none", r"no folders images and masks there \(found: images, other\).*--task classification"),
        ("classes", r"classes\.txt, line 3: 'b' repeats a label or a name"),
        ("zeros", r"classes\.txt, line 2: '0000000002 b' is not `name`"),
        ("broken", r"1\.png: cannot be read as a mask"),
        ("digits", r"classes\.txt, line 2: '1+.* is not `name`, `label name` or `name r g b`"),
        ("minus", r"classes\.txt, line 2: '-1 b' is not `name`, `label name` or `name r g b`"),
        ("control", r"the class 'b\\x1b' contains a control character; rename it"),
        ("ignored", r"\.png and \d more masks: all pixels are ignored; correct the masks"),
    ],
)
def test_mistakes_are_named_with_a_remedy(tmp_path: Path, what: str, message: str) -> None:
    write(tmp_path, "images", "masks")
    spoil(tmp_path, what)

    def read() -> None:
        for part in opened(tmp_path).parts().values():
            count_labels(part)

    with pytest.raises(DataError, match=message):
        read()


def test_reading_masks_is_counted(tmp_path: Path) -> None:
    write(tmp_path, "images", "masks", count=3)
    seen = []
    with counts_shown(lambda *count: seen.append(count)):
        count_labels(opened(tmp_path).train)
    assert seen[-1] == ("masks read", 2, 2)


def test_masks_and_headers_are_opened_as_images_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "images", "masks")
    save(tmp_path / "masks" / "1.png", np.zeros((60, 80)))
    save(tmp_path / "images" / "0.jpg", np.zeros((60, 80, 3)))
    monkeypatch.setattr(image_files, "PIXELS", 1000)
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    part = opened(tmp_path).train.joined(opened(tmp_path).val)
    places = {name: index for index, name in enumerate(part.names)}
    with pytest.raises(
        DataError, match=r"masks/1\.png: cannot be read as a mask \(it has 4,800 pixels, more than 1,000"
    ):
        part.label(places["images/1.jpg"])
    monkeypatch.setattr(decoding, "HUGE", 1000)
    monkeypatch.setattr(source, "HUGE", 40)
    with pytest.raises(
        DataError, match=r"images/0\.jpg is 20 x 15; JPEGs of more than 33 million pixels are read at a"
    ):
        count_labels(part.take(np.array([places["images/0.jpg"]])))


def test_data_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "images", "masks", count=10)
    sheet = tmp_path / "sheet.png"
    given = ("--contact-sheet", sheet, "--save-split", tmp_path / "split.csv", "--set", "split_seed=3")
    assert run("data", "check", tmp_path, *given) == 0
    told = capsys.readouterr().out
    assert "images with masks, 3 classes" in told
    assert "33.33%" in told
    assert "--recipe small-segmentation --set task.data.split_seed=3" in told
    with Image.open(sheet) as image:
        assert image.width == 4 * 240
    assert run("data", "check", tmp_path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sizes"] == {"train": 8, "val": 2}
    assert found["image_sizes"]["val"] == [{"width": 8, "height": 6, "images": 2}]
    assert found["notes"][-1].startswith(
        "With the recipe small-segmentation, evaluating the largest image, 8 x 6, takes about"
    )
    spoil(tmp_path, "size")
    assert run("data", "check", tmp_path) == 2
    assert "Training would be refused" in capsys.readouterr().out


def test_camvid(shared: Path) -> None:
    """The shares of the classes, in the shared sample."""
    source = opened(shared / "data" / "camvid")
    assert source.labels.classes[:3] == ("sky", "building", "pole")
    assert len(source.labels.classes) == 11
    counts, sizes = count_labels(source.val)
    assert sizes == [(240, 180)] * 50
    assert counts.tolist() == [
        199995,
        533154,
        11634,
        637381,
        181430,
        365554,
        19035,
        69934,
        36674,
        14629,
        51213,
        39367,  # unlabelled
    ]
