"""Folders: what is found, and what is refused before training starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attngraft.counting import counts_shown
from attngraft.errors import ConfigError, DataError
from attngraft.tasks.images.sources import folder as folders
from attngraft.tasks.images.sources.folder import list_folder
from tests.tasks.images.datasets import load, make_folder, picture


def test_parts_and_classes_come_from_folders(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"b2": 3, "b10": 2, "Ärger": 1}, "val": {"b2": 1, "b10": 2, "Ärger": 1}})
    data = load(tmp_path)
    assert data.facts["classes"] == ["b2", "b10", "Ärger"]
    assert data.facts["counts"]["train"] == {"b2": 3, "b10": 2, "Ärger": 1}
    assert data.facts["split"] == "the folders train and val"
    assert data.model_args == {"num_classes": 3}
    assert [data.train.name(i) for i in range(3)] == ["train/b2/0.png", "train/b2/1.png", "train/b2/2.png"]
    assert [data.val[(0, i)][1] for i in range(4)] == [0, 1, 1, 2]


@pytest.mark.parametrize("name", ["valid", "validation", "Val", "test"])
def test_validation_parts_have_several_names(tmp_path: Path, name: str) -> None:
    make_folder(tmp_path, {"Train": {"a": 2, "b": 2}, name: {"a": 1, "b": 1}})
    assert load(tmp_path).facts["split"] == f"the folders Train and {name}"


def test_validation_is_preferred_to_test_unless_named(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 1}, "test": {"a": 3, "b": 3}})
    assert load(tmp_path).facts["sizes"]["val"] == 2
    assert load(tmp_path, data={"val_split": "test"}).facts["sizes"]["val"] == 6


def test_a_test_part_besides_validation_is_judged(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 1}, "test": {"a": 3, "b": 3}})
    data = load(tmp_path)
    assert data.test is not None
    assert data.facts["counts"]["test"] == {"a": 3, "b": 3}
    assert data.test.name(0) == "test/a/0.png"
    assert load(tmp_path, data={"test_split": "none"}).test is None
    assert load(tmp_path, data={"val_split": "test"}).test is None
    named = load(tmp_path, data={"val_split": "test", "test_split": "val"}).test
    assert named is not None
    assert len(named) == 2
    with pytest.raises(DataError, match="no split 'tset'"):
        load(tmp_path, data={"test_split": "tset"})
    with pytest.raises(ConfigError, match="also used for training or validation"):
        load(tmp_path, data={"val_split": "val", "test_split": "val"})


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({"unlabeled": 0}, "no images with such labels"),
        ({"a": 2, "b": 2, "c": 1}, "has the class 'c', which training and validation lack"),
        ({"a": 2}, "no test images of class 'b'"),
    ],
)
def test_a_test_part_without_usable_labels_is_left_out(tmp_path: Path, tree: dict[str, int], why: str) -> None:
    """Such data were usable before a test part was, and stay so; a part that was named is refused."""
    make_folder(tmp_path, {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 1}, "test": tree})
    data = load(tmp_path)
    assert data.test is None
    assert data.facts["classes"] == ["a", "b"]
    assert any("The split test is not used as a test split" in note and why in note for note in data.facts["notes"])
    with pytest.raises(DataError, match=why):
        load(tmp_path, data={"test_split": "test"})


def test_copies_of_training_images_in_the_test_part_are_a_leak(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 1}, "test": {"a": 3, "b": 3}})
    (tmp_path / "test/a/0.png").write_bytes((tmp_path / "train/a/0.png").read_bytes())
    (note,) = [note for note in load(tmp_path).facts["notes"] if note.startswith("Leak")]
    assert note.startswith("Leak: 1 validation or test image is identical to images of an earlier split")


def test_class_folders_are_divided_class_by_class(tmp_path: Path) -> None:
    make_folder(tmp_path, {"a": 10, "b": 5, "c": 2})
    first, again = load(tmp_path, seed=0), load(tmp_path, seed=7)
    assert first.facts["counts"]["val"] == {"a": 2, "b": 1, "c": 1}
    names = [{split.name(i) for i in range(len(split))} for split in (first.train, first.val)]
    assert not names[0] & names[1]
    assert len(names[0] | names[1]) == 17
    assert {again.val.name(i) for i in range(4)} == names[1], "the run's seed must not move the split"
    other = load(tmp_path, data={"split_seed": 1, "val_fraction": 0.5})
    assert other.facts["counts"]["val"] == {"a": 5, "b": 2, "c": 1}
    assert "0.5 of each class" in other.facts["split"]


def test_a_share_of_the_training_part_replaces_the_validation_part(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"a": 4, "b": 4}, "test": {"a": 9, "b": 9}})
    data = load(tmp_path, data={"val_fraction": 0.25})
    assert data.facts["sizes"] == {"train": 6, "val": 2, "test": 18}
    assert data.val.name(0).startswith("train/a/")


def test_chosen_classes_in_chosen_order(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"a": 1, "b": 2, "c": 3}, "val": {"a": 1, "b": 1, "c": 1}})
    data = load(tmp_path, data={"classes": ["c", "a"]})
    assert data.facts["counts"]["train"] == {"c": 3, "a": 1}
    assert [data.train[(0, i)][1] for i in range(4)] == [1, 0, 0, 0]


def test_wrapping_folders_and_leftovers_are_seen_through(tmp_path: Path) -> None:
    make_folder(tmp_path / "flowers-1.0", {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 1}})
    make_folder(tmp_path, {"__MACOSX": {"x": 1}, ".cache": {"y": 1}})
    (tmp_path / "flowers-1.0" / "train" / "a" / "._0.png").write_bytes(b"junk")
    (tmp_path / "flowers-1.0" / "train" / "a" / "Thumbs.db").write_bytes(b"junk")
    data = load(tmp_path)
    assert data.facts["classes"] == ["a", "b"]
    assert data.facts["sizes"] == {"train": 4, "val": 2}


def test_nested_images_belong_to_the_class_folder_and_circles_end(tmp_path: Path) -> None:
    make_folder(tmp_path, {"a": {"x": 3, "y": 3}, "b": {"x": 4}})
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    data = load(tmp_path)
    assert data.facts["classes"] == ["a", "b"]
    assert sum(data.facts["sizes"].values()) == 10 + 0


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK", "LA"])
def test_every_mode_becomes_the_hosts(tmp_path: Path, mode: str) -> None:
    make_folder(tmp_path, {"a": 2, "b": 2})
    file = "0.tif" if mode == "CMYK" else "0.png"
    (tmp_path / "a" / "0.png").unlink()
    picture(5, mode="RGB" if mode == "CMYK" else mode).convert(mode).save(tmp_path / "a" / file)
    data = load(tmp_path, augment={"crop": "resized"})
    examples = [data.train[(0, i)] for i in range(len(data.train))] + [data.val[(0, i)] for i in range(len(data.val))]
    assert {tuple(image.shape) for image, _ in examples} == {(3, 16, 16)}


def test_deep_gray_images_are_scaled_not_clipped(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"a": 1, "b": 1}, "val": {"a": 1, "b": 1}})
    Image.fromarray(np.full((16, 16), 32768, dtype=np.uint16)).save(tmp_path / "val" / "a" / "0.png")
    image, _ = load(tmp_path).val[(0, 0)]
    assert image.unique().tolist() == [128]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "nothing": ({}, {}, r"no images found \(looked for .*\.jpg"),
    "no classes": ({".": 3}, {}, r"3 images but no class folders"),
    "no classes in train": ({"train": 3, "val": 1}, {}, r"no class folders"),
    "one image": ({"a": 1}, {}, r"contains a single image"),
    "one class": ({"a": 4}, {}, r"contains a single class, 'a'"),
    "empty class": ({"a": 4, "b": 0, "c": 2}, {}, r"no images of class 'b'; add some, or select the other classes"),
    "empty classes": (
        {"train": {"a": 4, "b": 0, "c": 0}, "val": {"a": 1, "b": 1, "c": 1}},
        {},
        r"no training images of classes 'b', 'c'",
    ),
    "class only in val": (
        {"train": {"a": 4, "b": 1}, "val": {"a": 1, "b": 1, "c": 1}},
        {},
        r"no training images of class 'c'.*same classes",
    ),
    "class only in train": ({"train": {"a": 4, "b": 1}, "val": {"a": 1}}, {}, r"no validation images of class 'b'"),
    "no validation": (
        {"train": {"a": 4, "b": 1}, "other": {"a": 1}},
        {},
        r"a training split 'train' but no validation split \(found: other\).*val_fraction=0\.2",
    ),
    "no training": ({"val": {"a": 4, "b": 1}, "test": {"a": 1}}, {}, r"found test, val but no training split"),
    "wrong train name": (
        {"train": {"a": 4, "b": 1}, "val": {"a": 1}},
        {"train_split": "trian"},
        r"no split 'trian' \(task\.data\.train_split\) \(did you mean train\?\); available: train, val",
    ),
    "wrong val name": (
        {"train": {"a": 4, "b": 1}, "val": {"a": 1}},
        {"val_split": "dev"},
        r"no split 'dev' \(task\.data\.val_split\)",
    ),
    "val name without train": (
        {"a": 4, "b": 1},
        {"val_split": "b"},
        r"names a validation split, but there is no training split",
    ),
    "cannot be divided": ({"a": 4, "b": 1}, {}, r"class 'b' has a single image, which cannot be split"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_training(tmp_path: Path, case: str) -> None:
    tree, data, message = REFUSED[case]
    make_folder(tmp_path, tree)
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path, data=data)
    assert str(tmp_path) in str(caught.value)


def test_a_class_that_is_not_there(tmp_path: Path) -> None:
    make_folder(tmp_path, {"rose": 3, "tulip": 3})
    with pytest.raises(ConfigError, match=r"no class 'roes' \(did you mean rose\?\); available: rose, tulip"):
        load(tmp_path, data={"classes": ["roes", "tulip"]})


@pytest.mark.parametrize("content", [b"", b"not an image", None])
def test_an_unreadable_first_image_is_named(tmp_path: Path, content: bytes | None) -> None:
    make_folder(tmp_path, {"train": {"a": 2, "b": 1}, "val": {"a": 1, "b": 1}}, size=(64, 64))
    bad = tmp_path / "train" / "a" / "0.png"
    bad.write_bytes(bad.read_bytes()[:300] if content is None else content)
    with pytest.raises(DataError, match=r"(?s)1 image cannot be read, and .* allows 0 of 5 .*train/a/0\.png: "):
        load(tmp_path)


def test_a_file_that_vanished_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"a": 2, "b": 1}, "val": {"a": 1, "b": 1}})
    data = load(tmp_path)
    (tmp_path / "train" / "a" / "1.png").unlink()
    with pytest.raises(DataError, match=r"train/a/1\.png: cannot be opened"):
        data.train[(0, 1)]


def test_images_of_kinds_that_are_not_read_are_told_of(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 1}})
    for name in ("x.HEIC", "y.avif", "z.tga"):
        (tmp_path / "train" / "a" / name).write_bytes(b"ftyp")
    (tmp_path / "train" / "a" / "notes.txt").write_text("nothing")
    data = load(tmp_path)
    assert data.facts["counts"]["train"] == {"a": 2, "b": 2}
    assert data.facts["notes"] == [
        "3 files in unsupported formats were skipped (.avif, .heic, .tga): train/a/x.HEIC, ...; save as JPEG or PNG."
    ]


def test_broken_links_and_fifos_in_place_of_classes_are_noted(tmp_path: Path) -> None:
    make_folder(tmp_path, {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 1}})
    (tmp_path / "train" / "bird").symlink_to("nowhere")
    assert load(tmp_path).facts["notes"] == [
        "train/bird is skipped: neither a file nor a folder; restore or remove broken links, FIFOs and devices."
    ]
    (tmp_path / "val" / "bird").symlink_to("bird")
    os.mkfifo(tmp_path / "val" / "fish")
    (tmp_path / "val" / "notes").symlink_to(__file__)
    assert load(tmp_path).facts["notes"][0].startswith("val/bird and 2 more are skipped: ")


@pytest.mark.parametrize(("field", "names"), [("train", ("Train", "train")), ("val", ("VAL", "val"))])
def test_two_splits_that_differ_only_in_case_are_refused(tmp_path: Path, field: str, names: tuple[str, str]) -> None:
    make_folder(tmp_path, {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 1}})
    make_folder(tmp_path / names[0], {"c": 2, "d": 2})
    if len([*tmp_path.iterdir()]) == 2:
        pytest.skip("the disk ignores case")
    with pytest.raises(DataError, match=rf"the splits {names[0]} and {names[1]} differ only in case; .*{field}_split="):
        load(tmp_path)
    data = load(tmp_path, data={f"{field}_split": names[1], "check": "off"})
    assert data.facts["counts"]["train"] == {"a": 2, "b": 2}


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
@pytest.mark.parametrize("name", ["/proc", "/sys", "/dev", "/proc/self/task"])
def test_folders_of_the_system_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a folder of the system; give the folder with your images"):
        list_folder(Path(name))
    make_folder(tmp_path, {"a": {"x": 1}})
    (tmp_path / "a" / "link").symlink_to(name)
    assert list_folder(tmp_path).files == ("a/x/0.png",)


def test_data_in_shared_memory_are_no_folder_of_the_system() -> None:
    assert folders._SYSTEM.match("/dev/shm") is None
    assert folders._SYSTEM.match("/dev/shm/flowers") is None
    assert folders._SYSTEM.match("/development") is None
    assert folders._SYSTEM.match("/dev/shm2") is not None


def test_folders_far_inside_of_each_other_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_DEEPEST", 4)
    make_folder(tmp_path, {"a/b/c": {"x": 1}})
    assert len(list_folder(tmp_path).files) == 1
    make_folder(tmp_path, {"a/b/c/d": {"x": 1}})
    with pytest.raises(DataError, match="has more than 4 folders inside of each other; give the folder of your images"):
        list_folder(tmp_path)


def test_a_walk_through_folders_without_images_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_WITHOUT_IMAGES", 20)
    for number in range(25):
        (tmp_path / f"{number}").mkdir()
    make_folder(tmp_path, {"a": {"x": 1}})
    counts: list[int] = []
    shown = counts_shown(lambda _, done, __: counts.append(done))
    with shown, pytest.raises(DataError, match=r"21 folders have no images, and only 1 have some; give the folder"):
        list_folder(tmp_path)
    assert counts == list(range(len(counts)))


def test_a_folder_of_annotations_beside_each_image_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_WITHOUT_IMAGES", 20)
    for number in range(30):
        make_folder(tmp_path, {f"c{number}": {"images": 1}})
        for beside in ("boxes", "texts", "masks"):
            (tmp_path / f"c{number}" / beside).mkdir()
    listing = list_folder(tmp_path)
    assert len(listing.files) == 30
    assert len(listing.folders) == 30 * 5
