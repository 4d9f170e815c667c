"""YOLO labels: layouts, polygons, and mistakes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from attngraft.errors import DataError
from attngraft.tasks.detection.run_lengths import decoded
from tests.tasks.detection.scenes import CLASSES, opened, write_text, write_yolo


def replaced(folder: Path, text: str) -> None:
    """Write the data set with other lines for its first image."""
    write_yolo(folder)
    write_text(folder / "labels/train/00.txt", text)


def test_layouts(tmp_path: Path) -> None:
    write_yolo(tmp_path / "a")
    wanted = opened(tmp_path / "a").train.fingerprint()
    for split, other in {"train": "train", "val": "valid"}.items():
        for kind in ("images", "labels"):
            shutil.copytree(tmp_path / "a" / kind / split, tmp_path / "b" / other / kind)
            shutil.copytree(tmp_path / "a" / kind / split, tmp_path / "c" / kind / f"{split}2017")
    write_text(tmp_path / "b/data.yaml", "names: {0: disc, 1: square}\ntrain: ../train/images\nval: ../valid/images\n")
    write_text(tmp_path / "c/data.yaml", "names:\n- disc\n- square\ntrain: images/train2017\nval: images/val2017\n")
    for name in ("b", "c", "c/data.yaml"):
        source = opened(tmp_path / name)
        assert source.train.fingerprint() == wanted
        assert {key: len(part) for key, part in source.parts().items()} == {"train": 6, "val": 3}
    for kind in ("images", "labels"):
        shutil.copytree(tmp_path / "a" / kind / "train", tmp_path / "d" / kind)
    write_text(tmp_path / "d/data.yaml", "names: [disc, square]\n")
    write_text(tmp_path / "d/labels/classes.txt", "disc\nsquare\n")
    assert len(opened(tmp_path / "d", val_fraction=0.5).val) == 3


def test_sparse_numbers(tmp_path: Path) -> None:
    replaced(tmp_path, "")
    write_text(tmp_path / "data.yaml", "names: {5: square, 1: disc, 0: triangle}\n")
    for file in (tmp_path / "labels").rglob("*.txt"):
        file.write_text("5 0.5 0.5 0.2 0.2\n")
    source = opened(tmp_path)
    assert source.classes == ("triangle", "disc", "square")
    assert source.category_ids == (0, 1, 5)
    assert source.train.objects(0).labels.tolist() == [2]


def test_polygons(tmp_path: Path) -> None:
    write_yolo(tmp_path)
    for file in (tmp_path / "labels").rglob("*.txt"):
        file.write_text("1 0.25 0.25 0.75 0.25 0.75 0.5 0.25 0.5\n")
    source = opened(tmp_path)
    assert source.masks
    objects = source.train.objects(0)
    assert objects.boxes.tolist() == [[12, 9, 36, 18]]
    assert objects.masks is not None
    plane = np.zeros((36, 48), dtype=bool)
    plane[9:18, 12:36] = True
    assert np.array_equal(decoded(objects.masks, (48, 36))[0], plane)
    (tmp_path / "labels/train/00.txt").write_text("1 0.5 0.5 0.2 0.2\n")
    source = opened(tmp_path)
    assert not source.masks
    assert source.notes[0].startswith("1 of ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 0.5 0.5 0.2", r"line 1: '0 0.5 0.5 0.2' is not `class x y width height`, nor"),
        ("\n0 0.5 0.5 0.2 0.2 0.9", r"line 2: .* is not `class x y width height`"),
        ("0 0.1 0.1 0.2 0.2 0.3", "is not `class x y width height`"),
        ("2 0.5 0.5 0.2 0.2", r"line 1: the class '2' is not a number in the names of data\.yaml; correct it"),
        ("-1 0.5 0.5 0.2 0.2", "the class '-1' is not a number in the names"),
        ("disc 0.5 0.5 0.2 0.2", "the class 'disc' is not a number in the names"),
        ("0 0.5 0.5 x 0.2", "contains a word that is no number"),
        ("0 0.5 0.5 0.1_8 0.2", "contains a word that is no number"),
        ("0 0.5 nan 0.2 0.2", "contains numbers that are no parts of the image's width and height, 0 to 1"),
        ("0 0.5 inf 0.2 0.2", "contains numbers that are no parts"),
        ("0 20 20 5 5", "contains numbers that are no parts"),
        ("0 1.5 0.5 0.2 0.2", r"the box .* is outside of the 48 x 36 image"),
        ("0 0.5 0.5 0 0.2", r"the box .* has no area"),
    ],
)
def test_wrong_lines(tmp_path: Path, text: str, message: str) -> None:
    replaced(tmp_path, f"{text}\n")
    with pytest.raises(DataError, match=rf"labels/train/00\.txt, {message}" if message.startswith("line") else message):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("names: []\n", r"data\.yaml: names is \[\]; list the names of the classes"),
        ("names: x\n", "names is 'x'; list the names"),
        ("names: [a, b]\nnc: 7\n", r"data\.yaml: nc is 7, but names has 2 classes; correct it"),
        (f"names: {{{2**70}: b}}\n", "is not the number and the name of a class"),
        ("names: {a: b}\n", "names: 'a': 'b' is not the number and the name of a class"),
        ("names: [[a]]\n", r"names: 0: \['a'\] is not the number and the name"),
        ("names: [a, a]\n", "two classes have the same name"),
        ("names: [a, b]\nkpt_shape: [4, 2]\n", "kpt_shape: keypoints are not read; remove them from the labels"),
        ("names: [\n", r"data\.yaml, line \d+, column \d+: not valid YAML"),
        ("- a\n", r"data\.yaml: expected sections"),
    ],
)
def test_wrong_names(tmp_path: Path, text: str, message: str) -> None:
    write_yolo(tmp_path)
    write_text(tmp_path / "data.yaml", text)
    with pytest.raises(DataError, match=message):
        opened(tmp_path, format="yolo")


@pytest.mark.parametrize("entry", ["[images/train]", "list.txt", "3"])
def test_splits_that_are_no_folder(tmp_path: Path, entry: str) -> None:
    write_yolo(tmp_path)
    write_text(tmp_path / "data.yaml", f"names: [a, b]\ntrain: {entry}\n")
    with pytest.raises(DataError, match=r"data\.yaml: train is .*; give one folder of images, such as images/train"):
        opened(tmp_path)


def test_folders_that_do_not_exist_are_noted(tmp_path: Path) -> None:
    write_yolo(tmp_path)
    write_text(tmp_path / "data.yaml", "names: [a, b]\ntrain: ../images/train\nval: images/holdout\n")
    (note,) = opened(tmp_path).notes
    assert "val is 'images/holdout', which is no folder in" in note
    assert note.endswith("used instead: " + str(tmp_path / "images/val") + ".")


def test_another_path_is_noted(tmp_path: Path) -> None:
    write_yolo(tmp_path / "shapes")
    for path, notes in (("../shapes", 0), (".", 0), ("../other", 1)):
        write_text(tmp_path / "shapes/data.yaml", f"names: [a, b]\npath: {path}\n")
        found = opened(tmp_path / "shapes").notes
        assert len(found) == notes
        assert all("path is '../other'; used instead: the folder of this file" in note for note in found)


def test_folders_without_labels(tmp_path: Path) -> None:
    write_yolo(tmp_path)
    (tmp_path / "labels/train/00.txt").rename(tmp_path / "labels/train/00.TXT")
    assert len(opened(tmp_path).train.objects(0)) == 1
    shutil.rmtree(tmp_path / "labels/val")
    with pytest.raises(DataError, match=r"data\.yaml: no folder of labels for .*images/val; add .*, or correct val"):
        opened(tmp_path)


def test_many_objects(tmp_path: Path) -> None:
    replaced(tmp_path, "0 0.5 0.5 0.2 0.2\n" * 16385)
    with pytest.raises(DataError, match=r"00\.png: 16,385 objects, more than 16,384; cut the image into tiles"):
        opened(tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    write_yolo(tmp_path)
    (tmp_path / "images/train/00.png").unlink()
    with pytest.raises(DataError, match=r"labels/train/00\.txt: has no image 00\.\* in .*images/train; add it"):
        opened(tmp_path)
    write_yolo(tmp_path)
    (tmp_path / "labels/train/00.txt").write_bytes(b"\xff\xfe0")
    with pytest.raises(DataError, match=r"00\.txt: cannot be read as text .*; save it again in UTF-8, or remove it"):
        opened(tmp_path)
    (tmp_path / "labels/train/00.TXT").write_text("")
    with pytest.raises(DataError, match=r"00\.txt: 00\.TXT has the same name; keep one of them"):
        opened(tmp_path)
    (tmp_path / "labels/train/00.TXT").unlink()
    write_yolo(tmp_path)
    (tmp_path / "images/train/00.png").write_bytes(b"x")
    with pytest.raises(DataError, match=r"00\.png: cannot be read as an image"):
        opened(tmp_path)
    (tmp_path / "data.yaml").write_bytes("names: [a]".encode("utf-16"))
    with pytest.raises(DataError, match=r"data\.yaml: cannot be read: 'utf-8' codec"):
        opened(tmp_path)
    (tmp_path / "data.yaml").unlink()
    with pytest.raises(DataError, match=r"no data\.yaml; add one with a line `names: \[cat, dog\]`"):
        opened(tmp_path)
    write_text(tmp_path / "data.yaml", "names: [a]\n")
    shutil.rmtree(tmp_path / "labels")
    with pytest.raises(DataError, match="no folders images/train and labels/train"):
        opened(tmp_path, format="yolo")


def test_classes(tmp_path: Path) -> None:
    assert opened(write_yolo(tmp_path)).classes == CLASSES
