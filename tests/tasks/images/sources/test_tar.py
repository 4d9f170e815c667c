"""Tars: alone, in pairs, wrapped, compressed, cut off, and read by several processes."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from attngraft.errors import DataError
from attngraft.tasks.images.sources.tar import index_tar
from tests.tasks.images.datasets import load, make_folder, make_tar, picture

PARTS = {"train": {"a": 5, "b": 4}, "val": {"a": 2, "b": 2}}


@pytest.mark.parametrize("prefix", ["", "./", "flowers/"])
def test_one_tar_is_like_a_folder(tmp_path: Path, prefix: str) -> None:
    make_folder(tmp_path / "folder", PARTS)
    of_folder, of_tar = load(tmp_path / "folder"), load(make_tar(tmp_path / "x.tar", PARTS, prefix=prefix))
    assert of_tar.facts["kind"] == "tar"
    for part in ("train", "val"):
        one, other = getattr(of_folder, part), getattr(of_tar, part)
        for i in range(len(one)):
            assert other.name(i).endswith(one.name(i))
            assert torch.equal(one[(0, i)][0], other[(0, i)][0])
            assert one[(0, i)][1] == other[(0, i)][1]


@pytest.mark.parametrize("prefix", ["", "train/", "deep/train/"])
def test_a_tar_for_each_part(tmp_path: Path, prefix: str) -> None:
    make_tar(tmp_path / "train.tar", PARTS["train"], prefix=prefix)
    make_tar(tmp_path / "val.tar", PARTS["val"])
    data = load(tmp_path)
    assert data.facts["split"] == "train.tar and val.tar"
    assert data.facts["counts"] == PARTS
    assert data.train.name(0) == f"train.tar/{prefix}a/0.png"


def test_class_folders_in_a_tar_are_divided(tmp_path: Path) -> None:
    make_tar(tmp_path / "only.tar", {"a": 5, "b": 5})
    assert load(tmp_path).facts["sizes"] == {"train": 8, "val": 2}


def test_a_tar_replaced_by_one_of_the_same_size_and_time_is_read_again(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", {"a": 5, "b": 5})
    os.utime(path, (1, 1))
    assert load(path).facts["counts"]["train"] == {"a": 4, "b": 4}
    other = make_tar(tmp_path / "other.tar", {"a": 5, "c": 5})
    os.utime(other, (1, 1))
    assert path.stat().st_size == other.stat().st_size
    other.replace(path)
    assert load(path).facts["counts"]["train"] == {"a": 4, "c": 4}


def test_workers_read_the_right_bytes(tmp_path: Path) -> None:
    data = load(make_tar(tmp_path / "x.tar", {"a": 20, "b": 20}), augment={"crop": "resized"})
    split = data.train
    split[(0, 0)]  # the parent's file is open when workers are forked
    keys = [[(0, i) for i in range(start, start + 4)] for start in range(0, 32, 4)]
    alone = list(DataLoader(split, batch_sampler=keys, collate_fn=split.collate))
    shared = list(DataLoader(split, batch_sampler=keys, collate_fn=split.collate, num_workers=2))
    assert all(torch.equal(a["image"], b["image"]) for a, b in zip(alone, shared, strict=True))
    copy = pickle.loads(pickle.dumps(split))
    assert torch.equal(copy[(0, 5)][0], split[(0, 5)][0])


def test_refused(tmp_path: Path) -> None:
    packed = make_tar(tmp_path / "x.tar.gz", PARTS, mode="w:gz")
    with pytest.raises(DataError, match=r"x\.tar\.gz: not readable as an uncompressed tar"):
        load(packed)
    (tmp_path / "bad.tar").write_bytes(b"hello" * 300)
    with pytest.raises(DataError, match=r"bad\.tar: not readable"):
        load(tmp_path / "bad.tar")
    (tmp_path / "bad.tar").unlink()
    make_tar(tmp_path / "train.tar", PARTS["train"])
    with pytest.raises(DataError, match=r"a training split 'train' but no validation split"):
        load(tmp_path)
    make_tar(tmp_path / "val.tar", {})
    with pytest.raises(DataError, match=r"val\.tar: contains no images"):
        load(tmp_path)
    (tmp_path / "train.tar").rename(tmp_path / "a.tar")
    with pytest.raises(DataError, match=r"no train\.tar among a\.tar, val\.tar"):
        load(tmp_path)


def test_a_tar_cut_off_later_is_named(tmp_path: Path) -> None:
    path = make_tar(tmp_path / "x.tar", PARTS)
    fresh = pickle.loads(pickle.dumps(load(path).val))  # nothing is buffered
    path.write_bytes(path.read_bytes()[:1024])
    with pytest.raises(DataError, match=r"x\.tar: val/b/1\.png: the tar ends within"):
        fresh[(0, 3)]


def member(name: str, *, kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf()


def test_the_second_names_of_files_are_images_and_labels(tmp_path: Path) -> None:
    files = {".first/1.png": b"", "1.cls": b"cat", "2.png": b"", "2.cls": b"dog"}
    links = {"1.png": "./.first/1.png", "3.png": "2.png", "3.cls": "1.cls"}
    for i, name in enumerate(files):
        if name.endswith("png"):
            (tmp_path / "x.png").unlink(missing_ok=True)
            picture(i).save(tmp_path / "x.png")
            files[name] = (tmp_path / "x.png").read_bytes()
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.LNKTYPE, target
            tar.addfile(info)
    index = index_tar(tmp_path / "x.tar")
    assert index.members == ["2.png", "1.png", "3.png"]
    assert index.texts == {"cls": ["dog", "cat", "cat"]}
    data = (tmp_path / "x.tar").read_bytes()
    stored = [data[start : start + size] for start, size in zip(index.offsets, index.sizes, strict=True)]
    assert stored == [files["2.png"], files[".first/1.png"], files["2.png"]]


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_images_that_are_no_files_are_refused(tmp_path: Path, kind: bytes) -> None:
    path = make_tar(tmp_path / "x.tar", PARTS)
    path.write_bytes(member("README", kind=kind) + path.read_bytes())
    assert len(index_tar(path).members) == 13
    path.write_bytes(member("train/a/x.png", kind=kind) + path.read_bytes())
    with pytest.raises(DataError, match=r"x\.tar: the image .*train/a/x\.png.* is not a file, .* tar --dereference"):
        load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: member("../../a/1.png") + data, r"the name '\.\./\.\./a/1\.png' leads out of it"),
        (lambda data: data.rstrip(b"\0") + bytes(-len(data.rstrip(b"\0")) % 512), "its end is missing"),
        (lambda data: data + data, "it goes on behind its end"),
        (lambda data: member("pax", kind=tarfile.XHDTYPE, size=2**31) + data, r"has extra fields of 2\.1 GB"),
        (lambda data: member("long", kind=tarfile.GNUTYPE_LONGNAME, size=2**31) + data, r"has extra fields of 2\.1 GB"),
    ],
)
def test_tars_that_lie_are_refused(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    path = make_tar(tmp_path / "x.tar", PARTS)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=rf"x\.tar: not readable as an uncompressed tar \(.*{message}"):
        load(path)
