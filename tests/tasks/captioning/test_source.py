"""Captions of all formats are the same images and captions; what is wrong is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import ConfigError, DataError
from attngraft.strict import read
from attngraft.tasks.captioning.config import CaptionDataConfig, CaptioningConfig
from attngraft.tasks.captioning.source import open_captions
from tests.tasks.captioning import pictures
from tests.tasks.captioning.pictures import COUNTS, WRITERS, entries, karpathy, opened


@pytest.mark.parametrize("kind", WRITERS)
def test_formats_have_the_same_captions(tmp_path: Path, kind: str) -> None:
    WRITERS[kind](tmp_path)
    pictures.write_images(tmp_path / "images")
    parts = opened(tmp_path).parts()
    found = {images.names[i]: list(images.captions[i]) for images in parts.values() for i in range(len(images))}
    assert found == {name: texts for _, name, texts in entries()}
    assert all(path.is_file() for images in parts.values() for path in images.images)
    if kind != "karpathy":
        assert {split: len(images) for split, images in parts.items()} == COUNTS
    else:  # the first is for testing, the second restval
        assert parts["test"].names == ("0.png", "7.png", "8.png") and "1.png" in parts["train"].names


def test_karpathy_divides_coco_by_id_and_others_by_name(tmp_path: Path) -> None:
    pictures.write_coco(tmp_path)
    file = tmp_path / "dataset_coco.json"
    file.write_text(json.dumps(karpathy(ids=True)))
    source = opened(tmp_path)
    assert source.test is not None and source.test.names == ("0.png", "7.png", "8.png") and source.test.keys[0] == 100
    assert source.origin == "the splits of dataset_coco.json" and source.drawn == {}
    other = tmp_path / "elsewhere.json"
    other.write_text(json.dumps(karpathy()))
    assert opened(tmp_path, split_file=str(other)).parts().keys() == {"train", "val", "test"}


def test_rows_in_a_cell_are_noted(tmp_path: Path) -> None:
    pictures.write_csv(tmp_path)
    pictures.write_images(tmp_path / "images")
    assert not opened(tmp_path).notes
    file = tmp_path / "captions_train.csv"
    lines = file.read_text().splitlines()
    lines[1], lines[4] = lines[1].replace(",", ',"'), lines[4] + '"'
    file.write_text("\n".join(lines))
    note = "captions_train.csv: row 2: a cell spans 4 lines that look like rows; check the quotation marks."
    assert opened(tmp_path).notes == opened(file, val_fraction=0.4).notes == (note,)


def test_captions_without_validation_are_divided_at_random(tmp_path: Path) -> None:
    pictures.write_jsonl(tmp_path)
    (tmp_path / "captions_val.jsonl").unlink()
    source = opened(tmp_path)
    assert (len(source.train), len(source.val), len(source.test or ())) == (4, 1, 2)
    assert source.drawn.keys() == {"train", "val"}
    assert opened(tmp_path / "captions_train.jsonl").val.names == source.val.names
    folds = [opened(tmp_path, folds=2, fold=fold).val.names for fold in range(2)]
    assert not {*folds[0]} & {*folds[1]}
    saved = tmp_path / "split.csv"
    saved.write_text("name,part\n" + "".join(f"{i}.png,{'val' if i < 3 else 'train'}\n" for i in range(5)))
    config = CaptionDataConfig(source=str(tmp_path))
    assert open_captions(config, saved_split=saved).val.names == ("0.png", "1.png", "2.png")
    assert len(opened(tmp_path, split_file=str(saved)).val) == 3


def test_images_in_no_list_of_flickr_are_not_used(tmp_path: Path) -> None:
    pictures.write_flickr(tmp_path)
    (tmp_path / "Flickr_8k.testImages.txt").write_text("7.png\n")
    source = opened(tmp_path)
    assert source.test is not None and len(source.test) == 1
    assert source.notes == (f"1 image is in no list of {tmp_path}, and not used.",)
    for file in tmp_path.glob("*Images.txt"):
        file.unlink()
    assert len(opened(tmp_path).drawn["train"]) == 7


def damage(folder: Path, file: str, old: str, new: str, *, count: int = 1) -> None:
    path = folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, count))


WRONG: list[tuple[str, str, str, str, str]] = [
    (
        "jsonl",
        "captions_val.jsonl",
        "A blue square .",
        " ",
        "captions_val.jsonl: line 1: a caption of 5.png is empty; write",
    ),
    (
        "jsonl",
        "captions_val.jsonl",
        '"A blue square .", "The square is blue!"',
        "",
        "line 1: 5.png has no captions; write",
    ),
    ("jsonl", "captions_val.jsonl", '"A blue square ."', "7", "line 1: a caption of 5.png is 7, not text"),
    (
        "jsonl",
        "captions_val.jsonl",
        '"5.png"',
        '"../5.png"',
        "line 1: file_name: '../5.png' is not the path of an image",
    ),
    (
        "jsonl",
        "captions_val.jsonl",
        '"5.png"',
        "null",
        "line 1: file_name: None is not the path of an image below the data",
    ),
    ("jsonl", "captions_val.jsonl", '"5.png"', '"0.png"', r"0.png is also in .*captions_train.jsonl: line 1; remove"),
    ("jsonl", "captions_val.jsonl", '"5.png"', '"./0.png"', r"./0.png is also in .*captions_train.jsonl: line 1"),
    ("jsonl", "captions_val.jsonl", "A blue square .", "a " * 2501, "line 1: a caption of 5.png has 5,002 characters"),
    (
        "jsonl",
        "captions_val.jsonl",
        "[",
        "[" + '"a",' * 100,
        "line 1: 5.png has more than 100 captions; remove some",
    ),
    ("jsonl", "captions_val.jsonl", "A blue square .", "a " * 1001, "line 1: a caption of 5.png has 1,001 words, more"),
    ("csv", "captions_val.csv", "A blue square .", "['a']", "row 2: the captions of 5.png are a list in one cell"),
    ("csv", "captions_val.csv", "file_name,", "path,", r"no column file_name or image.*rename the column"),
    ("csv", "captions_val.csv", "A blue square .", "", "captions_val.csv: row 2: a caption of 5.png is empty"),
    ("csv", "captions_val.csv", "file_name,caption", "file_name,words", "no column captions or caption"),
    (
        "coco",
        "annotations/captions_val2014.json",
        '"A blue square ."',
        '""',
        "annotation 0: a caption of 5.png is empty",
    ),
    (
        "coco",
        "annotations/captions_val2014.json",
        '"image_id": 105',
        '"image_id": 9',
        "annotation 0: there is no image 9",
    ),
    (
        "coco",
        "annotations/captions_val2014.json",
        '"id": 106,',
        '"id": 105,',
        "not captions of COCO .*id of two images",
    ),
    ("coco", "annotations/captions_val2014.json", '"images"', '"pictures"', "not captions of COCO .*download it again"),
    ("coco", "annotations/captions_val2014.json", '"5.png"', '"/a.png"', "'/a.png' is not the path of an image below"),
    ("coco", "annotations/captions_val2014.json", '"5.png"', '"a/../../b.png"', "is not the path of an image below"),
    (
        "coco",
        "annotations/captions_val2014.json",
        "A blue",
        "\\ud83d",
        "not captions of COCO .*surrogates not.*download it again",
    ),
    (
        "karpathy",
        "dataset_tiny.json",
        '"val"',
        '"dev"',
        "image 5: the split 'dev' must be one of train, restval, val, test",
    ),
    ("karpathy", "dataset_tiny.json", '"filename"', '"file"', "dataset_tiny.json: not a split file of Karpathy"),
    ("karpathy", "dataset_tiny.json", '"1.png"', '"0.png"', r"image 1: 0.png is (also in|listed twice)"),
    (
        "flickr",
        "Flickr8k.token.txt",
        "5.png#0\t",
        "5.png ",
        "token.txt: line 11: expected NAME.jpg#0, a tab and a caption",
    ),
    (
        "flickr",
        "Flickr8k.token.txt",
        "5.png#0",
        "../5.png#0",
        r"token.txt: line 11: '\.\./5.png' is not the path of an",
    ),
    ("flickr", "Flickr8k.token.txt", "A blue square .", " ", "token.txt: line 5: a caption of 2.png is empty"),
    (
        "flickr",
        "Flickr_8k.devImages.txt",
        "5.png",
        "x.png",
        r"devImages.txt: line 1: x.png has no captions in .*token.txt",
    ),
    ("flickr", "Flickr_8k.devImages.txt", "5.png", "0.png", "devImages.txt: line 1: 0.png is also in another split"),
]


@pytest.mark.parametrize(("kind", "file", "old", "new", "message"), WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, kind: str, file: str, old: str, new: str, message: str) -> None:
    WRITERS[kind](tmp_path)
    damage(tmp_path, file, old, new)
    with pytest.raises(DataError, match=message) as error:
        opened(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_an_empty_list_of_training_images_is_refused(tmp_path: Path) -> None:
    WRITERS["flickr"](tmp_path)
    (tmp_path / "Flickr_8k.trainImages.txt").write_text("")
    with pytest.raises(DataError, match=re.escape(str(tmp_path))) as error:
        opened(tmp_path)
    assert "train" in str(error.value)


def test_images_without_a_reference_are_refused(tmp_path: Path) -> None:
    pictures.write_coco(tmp_path)
    file = tmp_path / "annotations/captions_test2014.json"
    file.write_text(json.dumps({**pictures.coco("test"), "annotations": []}))
    with pytest.raises(DataError, match=r"captions_test2014.json: image 107: 7.png has no captions; add some"):
        opened(tmp_path)


def test_a_split_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    pictures.write_jsonl(tmp_path)
    file = tmp_path / "dataset_tiny.json"
    content = karpathy()
    file.write_text(json.dumps({"images": content["images"][1:]}))
    with pytest.raises(DataError, match=r"dataset_tiny.json: does not list 1 images of the captions \(0.png\)"):
        opened(tmp_path)
    file.write_text(json.dumps({"images": [*content["images"], {**content["images"][0], "filename": "new.png"}]}))
    with pytest.raises(DataError, match=r"image 9: the captions have no image new.png; add its captions, or remove it"):
        opened(tmp_path)
    file.write_text(json.dumps({"images": [*content["images"], content["images"][0]]}))
    with pytest.raises(DataError, match=r"image 9: 0.png is listed twice; remove one"):
        opened(tmp_path)
    (tmp_path / "dataset_other.json").write_text("{}")
    with pytest.raises(DataError, match=r"contains dataset_other.json, dataset_tiny.json; choose one with --set"):
        opened(tmp_path)


def test_files_that_are_not_used_are_noted(tmp_path: Path) -> None:
    pictures.write_jsonl(tmp_path)
    assert opened(tmp_path).notes == ()
    (tmp_path / "captions_val.jsonl").rename(tmp_path / "captions_holdout.jsonl")
    assert opened(tmp_path).notes == (
        "Not used: captions_holdout.jsonl; used: captions_train.jsonl, captions_test.jsonl.",
    )


def test_files_of_flickr_that_are_not_used_are_noted(tmp_path: Path) -> None:
    pictures.write_flickr(tmp_path)
    expected = opened(tmp_path)
    assert expected.notes == ()
    for name in ("Flickr8k.lemma.token.txt", "other/Flickr8k.token.txt", "more.trainImages.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("8.png#0\tA square .\n")
    found = opened(tmp_path)
    assert found.train.names == expected.train.names
    assert found.notes == (
        "Not used: Flickr8k.lemma.token.txt, other/Flickr8k.token.txt; used: Flickr8k.token.txt.",
        "Not used: more.trainImages.txt; used: Flickr_8k.trainImages.txt.",
    )


def test_the_splits_of_karpathy_alone_cannot_be_replaced(tmp_path: Path) -> None:
    pictures.write_karpathy(tmp_path)
    with pytest.raises(DataError, match=r"its captions are in a file of Karpathy, .*; remove val_fraction"):
        opened(tmp_path, val_fraction=0.5)


def test_sources_without_captions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no captions in this folder; give a folder with"):
        opened(tmp_path)
    with pytest.raises(DataError, match=r"no such file or folder"):
        opened(tmp_path / "missing")
    pictures.write_jsonl(tmp_path)
    with pytest.raises(
        DataError, match=r"pictures: contains none of the images, such as 0.png; correct task.data.images"
    ):
        opened(tmp_path, images="pictures")
    (tmp_path / "captions_train.jsonl").unlink()
    with pytest.raises(DataError, match=r"no captions for training \(found: val, test\)"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"data": {"source": " "}}, "task.data.source: is empty; give a folder with captions"),
        (
            {"data": {"source": "x", "folds": 2, "fold": 0, "split_file": "d.json"}},
            "cannot be combined with a split file",
        ),
        ({"data": {"source": "x"}, "max_length": 1}, "task.max_length: must be at least 2"),
        (
            {"data": {"source": "x"}, "decoding": {"beams": 2**40}},
            r"task\.decoding\.beams: must lie between 1 and 1000",
        ),
        ({"data": {"source": "x"}, "vocabulary": {"min_count": 0}}, "min_count: must be at least 1"),
        ({"data": {"source": "x"}, "features": " "}, "task.features: must name a file"),
    ],
)
def test_wrong_settings_are_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(CaptioningConfig, section, where="task")


def test_captions_without_a_word_are_noted(tmp_path: Path) -> None:
    pictures.write_jsonl(tmp_path)
    pictures.write_images(tmp_path / "images")
    file = tmp_path / "captions_train.jsonl"
    file.write_text(file.read_text().replace("A red square .", "... !"))
    assert opened(tmp_path).notes == ("2 training captions have no word, such as one of 0.png; remove them.",)
