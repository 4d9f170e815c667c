"""Checks before training: unreadable images, duplicates across splits, and what happens to them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attngraft import cache
from attngraft.counting import counts_shown
from attngraft.errors import DataError
from attngraft.tasks.images import scan as scan_module
from attngraft.tasks.images.checks import corrupt_limit
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.opening import survey_images
from attngraft.tasks.images.scan import scan
from attngraft.tasks.images.sources import open_source
from tests.tasks.images.datasets import load, make_folder, make_tar, picture

TREE = {"train": {"a": 5, "b": 5}, "val": {"a": 3, "b": 3}}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data", TREE, size=(64, 64))


def spoil(folder: Path) -> None:
    """One of each part: cut off, and empty."""
    cut = folder / "train" / "a" / "1.png"
    cut.write_bytes(cut.read_bytes()[:4000])
    (folder / "val" / "b" / "0.png").write_bytes(b"")


def test_unreadable_images_are_left_out_up_to_a_limit(folder: Path) -> None:
    spoil(folder)
    with pytest.raises(DataError) as refused:
        load(folder)
    message = str(refused.value)
    assert "2 images cannot be read, and task.data.max_corrupt=0.01 allows 0 of 16 (at most 100)" in message
    assert "--set task.data.max_corrupt=2" in message
    assert "\n  train/a/1.png: " in message
    assert "\n  val/b/0.png: the file is empty" in message
    data = load(folder, data={"max_corrupt": 2})
    assert data.facts["sizes"] == {"train": 9, "val": 5}
    assert len(data.facts["check"]["unreadable"]) == 2
    assert data.facts["check"]["unreadable"][0].startswith("train/a/1.png (")
    assert any(note == "Skipped 2 unreadable images: train/a/1.png, val/b/0.png." for note in data.facts["notes"])
    names = [data.train.name(i) for i in range(len(data.train))]
    assert "train/a/1.png" not in names
    assert [data.train[(0, i)][1] for i in range(9)] == [0] * 4 + [1] * 5
    with pytest.raises(DataError, match="allows 1; replace or remove them"):
        load(folder, data={"max_corrupt": 1})
    with pytest.raises(DataError, match=r"task\.data\.max_corrupt=0 allows none"):
        load(folder, data={"max_corrupt": 0})


def test_a_drawn_split_does_not_move_when_a_file_is_repaired(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data", {"a": 20, "b": 20}, size=(64, 64))
    whole = load(folder).val
    good = (folder / "a" / "7.png").read_bytes()
    (folder / "a" / "7.png").write_bytes(good[:300])
    left = load(folder, data={"max_corrupt": 1}).val
    (folder / "a" / "7.png").write_bytes(good)
    expected = {whole.name(i) for i in range(len(whole))} - {"a/7.png"}
    assert {left.name(i) for i in range(len(left))} == expected
    repaired = load(folder).val
    assert {repaired.name(i) for i in range(len(repaired))} == {whole.name(i) for i in range(len(whole))}


def test_a_class_that_nothing_is_left_of_is_told(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "data", {"train": {"a": 2, "b": 1}, "val": {"a": 1, "b": 1}})
    (folder / "train" / "b" / "0.png").write_bytes(b"")
    with pytest.raises(DataError, match="no training images of class 'b'"):
        load(folder, data={"max_corrupt": 1})


def test_identical_images_in_both_parts_are_told(folder: Path) -> None:
    with Image.open(folder / "train" / "a" / "0.png") as image:
        image.save(folder / "val" / "a" / "same pixels.bmp")
    shutil.copy(folder / "train" / "b" / "0.png", folder / "val" / "a" / "wrong.png")
    shutil.copy(folder / "train" / "b" / "1.png", folder / "train" / "b" / "again.png")
    check = load(folder).facts["check"]
    assert check["depth"] == "full"
    assert check["leaks"] == {
        "groups": 2,
        "examples": [
            ["train/a/0.png (a)", "val/a/same pixels.bmp (a)"],
            ["train/b/0.png (b)", "val/a/wrong.png (a)"],
        ],
    }
    assert check["conflicting"] == {"groups": 1, "examples": [["train/b/0.png (b)", "val/a/wrong.png (a)"]]}
    assert check["repeated"]["groups"] == 1
    notes = load(folder).facts["notes"]
    assert notes[0] == (
        "Leak: 2 validation images are identical to training images, pixel by pixel (train/a/0.png = val/a/same pixels.bmp, "
        "train/b/0.png = val/a/wrong.png), so the results are too good."
    )
    by_bytes = load(folder, data={"check": "fast"}).facts["check"]
    assert by_bytes["leaks"]["groups"] == 1, "of other bytes with the same pixels, files alone do not tell"
    assert "check" in load(folder, data={"check": "off"}).facts
    assert load(folder, data={"check": "off"}).facts["check"]["leaks"] == {"groups": 0}


def test_new_runs_refuse_validation_images_that_are_training_images(folder: Path) -> None:
    assert load(folder).refusal == ""
    shutil.copy(folder / "train" / "a" / "0.png", folder / "val" / "a" / "copy.png")
    assert load(folder).refusal == ""
    shutil.copy(folder / "train" / "b" / "0.png", folder / "val" / "b" / "copy.png")
    refusal = load(folder).refusal
    assert f"{folder}: 2 of 8 validation images are copies of training images" in refusal
    assert "take another part for validation: --set task.data.val_fraction=0.2" in refusal
    assert load(folder, data={"check": "off"}).refusal == ""
    assert "10 of 10 validation images" in load(folder, data={"val_split": "train"}).refusal
    make_folder(folder / "more", {"train": {"a": 40, "b": 40}, "val": {"a": 10, "b": 10}})
    shutil.copy(folder / "more" / "train" / "a" / "0.png", folder / "more" / "val" / "a" / "copy.png")
    few = load(folder / "more")
    assert few.refusal == ""
    assert few.facts["notes"][0].startswith("Leak: 1 validation image")
    shutil.copy(folder / "more" / "val" / "a" / "1.png", folder / "more" / "train" / "a" / "copy.png")
    shutil.copytree(folder / "more" / "val", folder / "more" / "test")
    assert "compare runs on validation: --set task.data.test_split=none" in load(folder / "more").refusal


@pytest.mark.parametrize("names", [("images", "masks"), ("img", "Labels")])
def test_images_with_masks_are_not_two_classes(tmp_path: Path, names: tuple[str, str]) -> None:
    make_folder(tmp_path, dict.fromkeys(names, 5))
    for image in (tmp_path / names[1]).iterdir():
        image.rename(image.with_stem(f"{image.stem}_mask"))
    with pytest.raises(DataError, match=rf"'{names[0]}' and '{names[1]}' have the same 5 file names, so"):
        load(tmp_path)
    make_folder(tmp_path / "other", {"images": 5, "roses": 5})
    load(tmp_path / "other")


def test_what_was_seen_is_remembered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    look = scan_module._scan_image

    def counted(images: object, index: int, depth: str) -> object:
        looked.append(images.names[index])  # type: ignore[attr-defined]
        return look(images, index, depth)  # type: ignore[arg-type]

    monkeypatch.setattr(scan_module, "_scan_image", counted)
    first = load(folder).facts
    assert len(looked) == 16
    looked.clear()
    assert load(folder).facts == first
    assert load(folder, data={"val_fraction": 0.5}).facts["sizes"] == {"train": 6, "val": 4}
    assert not looked, "however it is divided"
    (folder / "train" / "a" / "1.png").write_bytes(b"")
    with pytest.raises(DataError):
        load(folder)
    with pytest.raises(DataError):
        load(folder)
    assert looked == ["train/a/1.png"] * 2, "what could not be read is looked at again"
    looked.clear()
    picture(77).save(folder / "train" / "a" / "1.png")
    load(folder)
    assert looked == ["train/a/1.png"]


def test_what_was_seen_of_other_classes_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(folder, {"train": {"c": 3}, "val": {"c": 1}})
    load(folder, data={"classes": ["a", "b"]})
    load(folder, data={"classes": ["a", "c"]})
    monkeypatch.setattr(scan_module, "_scan_image", lambda *_: "looked at again")
    assert load(folder).facts["sizes"] == {"train": 13, "val": 7}


@pytest.mark.skipif(os.name != "posix" or sys.platform == "darwin", reason="names of files are text here")
def test_names_that_are_not_utf8(folder: Path) -> None:
    odd = os.fsencode(folder / "train" / "a") + b"/caf\xe9.png"
    os.rename(os.fsencode(folder / "train" / "a" / "0.png"), odd)
    os.rename(folder / "train" / "b", os.fsencode(folder / "train") + b"/\xe9")
    os.rename(folder / "val" / "b", os.fsencode(folder / "val") + b"/\xe9")
    shutil.copy(odd, folder / "val" / "a" / "same.png")
    data = load(folder)
    assert json.dumps(data.facts, ensure_ascii=False).encode()
    assert data.facts["classes"] == ["a", "\ufffd"]
    assert "train/a/caf\ufffd.png = val/a/same.png" in data.facts["notes"][0]
    names = [data.train.name(i) for i in range(10)]
    assert data.train[(0, names.index("train/a/caf\udce9.png"))][1] == 0


def test_a_damaged_memory_is_no_harm(folder: Path, own_cache: Path) -> None:
    first = load(folder).facts
    for path in own_cache.rglob("*.npz"):
        path.write_bytes(path.read_bytes()[:100])
    assert load(folder).facts == first


def test_a_fast_look_finds_what_was_cut_off(folder: Path) -> None:
    spoil(folder)
    picture(5, size=(64, 64)).save(folder / "train" / "b" / "z.jpg")
    cut = folder / "train" / "b" / "z.jpg"
    thumbnail = b"\xff\xe1\x00\x06\xff\xd9\xff\xd9"  # with an end mark of its own
    cut.write_bytes(cut.read_bytes()[:2] + thumbnail + cut.read_bytes()[2:-200])
    found = survey_images(DataConfig(source=str(folder), check="fast")).issues
    assert [name for _, name, _ in found.unreadable] == ["train/a/1.png", "train/b/z.jpg", "val/b/0.png"]


def test_large_data_are_looked_at_fast(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "FULL_IMAGES", 10)
    assert load(folder).facts["check"]["depth"] == "fast"
    monkeypatch.setattr(scan_module, "FULL_IMAGES", 1000)
    monkeypatch.setattr(scan_module, "FULL_BYTES", 1000)
    assert load(folder).facts["check"]["depth"] == "fast"


def test_progress_and_sizes(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    images = open_source(DataConfig(source=str(folder))).train
    with counts_shown(lambda _, done, total: told.append((done, total))):
        seen = scan([images], "full", where="x")
    assert told == [(i, 10) for i in range(11)]
    assert seen.sizes.tolist() == [[64, 64]] * 10
    assert set(seen.modes) == {"RGB"}


def test_links(folder: Path) -> None:
    """In circles, to itself, to nothing, to a folder elsewhere."""
    os.symlink("..", folder / "train" / "a" / "up")
    os.symlink("self", folder / "train" / "a" / "self")
    os.symlink("nowhere.png", folder / "train" / "a" / "nowhere.png")
    elsewhere = make_folder(folder.parent / "elsewhere", {"c": 4})
    os.symlink(elsewhere / "c", folder / "train" / "b" / "more")
    with pytest.raises(DataError, match=r"train/a/nowhere\.png: cannot be opened \(broken link\)"):
        load(folder)
    data = load(folder, data={"max_corrupt": 1})
    assert data.facts["counts"]["train"] == {"a": 5, "b": 9}


def test_nothing_is_written_into_the_data(folder: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}

    before = state()
    for path in [*sorted(folder.rglob("*")), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        data = load(folder, augment={"crop": "resized"})
        data.train[(0, 0)], data.val[(0, 0)]
    finally:
        for path in [folder, *sorted(folder.rglob("*"))]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert state() == before


def test_a_spoilt_image_in_a_tar(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", TREE)
    data = path.read_bytes()
    place = data.index(b"\x89PNG", data.index(b"train/b/2.png"))
    path.write_bytes(data[:place] + b"XXXX" + data[place + 4 :])
    with pytest.raises(DataError, match=r"train/b/2\.png: unrecognized image format"):
        load(path)
    assert load(path, data={"max_corrupt": 1}).facts["counts"]["train"] == {"a": 5, "b": 4}


@pytest.mark.parametrize(
    ("share", "images", "limit"), [(0.01, 99, 0), (0.01, 100, 1), (0.01, 10**6, 100), (0, 50, 0), (1, 50, 1), (7, 9, 7)]
)
def test_how_many_may_be_left_out(share: float, images: int, limit: int) -> None:
    assert corrupt_limit(share, images) == limit


def test_the_training_part_is_no_leak_of_itself(folder: Path) -> None:
    shutil.copy(folder / "train" / "b" / "1.png", folder / "train" / "b" / "again.png")
    check = load(folder, data={"val_split": "train"}).facts["check"]
    assert (check["leaks"], check["repeated"]["groups"]) == ({"groups": 0}, 1)
    assert load(folder).facts["check"]["repeated"]["groups"] == 1


def test_images_of_arrays_are_compared_too(tmp_path: Path) -> None:
    pixels = np.random.RandomState(0).randint(0, 256, (8, 6, 6, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x_train=pixels, y_train=[0, 1] * 4, x_val=pixels[:2], y_val=[0, 1])
    assert load(tmp_path / "x.npz").facts["check"]["leaks"]["groups"] == 2
