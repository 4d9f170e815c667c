"""Decoded images in files: the same bits as without, whoever writes, dies, or changes a file."""

from __future__ import annotations

import errno
import logging
import mmap
import multiprocessing
import os
import pickle
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from attngraft.cache import DecodedCache
from attngraft.errors import UsageError
from attngraft.study.executors import Processes, Ray
from attngraft.study.runner import Tools, compare
from attngraft.tasks.images import decoded
from attngraft.tasks.images.decoded import DecodedImages, keep_decoded
from attngraft.tasks.images.sources.base import Images
from attngraft.tasks.images.sources.decoding import in_mode
from attngraft.tasks.images.sources.folder import FolderImages
from attngraft.tasks.images.splits import ImageSplit, PixelSplit
from attngraft.tasks.task import TaskData
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from tests.tasks.images.datasets import host_config, make_folder, make_task, picture
from tests.tasks.images.test_saved_split import study
from tests.tasks.images.test_training import recipe
from tests.training.toys import assert_same_outcome

RESIZED = {"crop": "resized"}
fork = multiprocessing.get_context("fork")


@pytest.fixture
def cache(tmp_path: Path) -> DecodedCache:
    (tmp_path / "run").mkdir()
    return DecodedCache(folder=tmp_path / "run" / ".decoded", limit=10**9, shared=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data", {"train": {"a": 6, "b": 6}, "val": {"a": 2, "b": 3}}, size=(20, 24))


def loaded(source: Path, cache: DecodedCache | None, *, channels: int = 3, **sections: Any) -> TaskData:
    task = make_task(source, **{"augment": RESIZED, **sections})
    if cache is not None:
        task.use_cache(cache)
    return task.load(model_data_config=host_config(channels=channels))


def images_of(data: TaskData) -> Images:
    assert isinstance(data.train, ImageSplit)
    return data.train.images


def plain(images: Images, mode: str = "RGB") -> list[np.ndarray]:
    return [np.asarray(in_mode(images.open(index), mode)) for index in range(len(images))]


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert len(one) == len(other)
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def keep(images: Images, cache: DecodedCache, *, mode: str = "RGB") -> Images:
    sizes = np.array([images.open(index).size for index in range(len(images))])
    return keep_decoded({"train": images}, {"train": sizes}, mode=mode, cache=cache, origin="here")["train"]


def some(root: Path, count: int = 6) -> FolderImages:
    names = [f"{number}.png" for number in range(count)]
    root.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        picture(number, size=(9 + number, 7)).save(root / name)
    return FolderImages(root, names=names, labels=np.zeros(count, dtype=np.int64))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_every_kind_of_file_is_kept_as_the_transforms_get_it(tmp_path: Path, cache: DecodedCache, mode: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # upright after a rotation, which swaps width and height
    picture(0, size=(30, 20)).save(tmp_path / "turned.jpg", exif=exif)
    picture(1, mode="RGBA").save(tmp_path / "alpha.png")
    picture(2, mode="L").save(tmp_path / "gray.png")
    picture(3).quantize(8).save(tmp_path / "palette.png", transparency=3)
    picture(4, mode="CMYK").save(tmp_path / "cmyk.jpg")
    Image.fromarray(np.arange(0, 65536, 256, dtype=np.uint16).reshape(16, 16)).save(tmp_path / "deep.png")
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_file())
    images = FolderImages(tmp_path, names=names, labels=np.zeros(len(names), dtype=np.int64))
    expected, kept = plain(images, mode), keep(images, cache, mode=mode)
    assert isinstance(kept, DecodedImages)
    assert_same(plain(kept, mode), expected)  # decoded and written
    assert all(kept.file.read(row) is not None for row in range(len(names)))
    assert_same(plain(kept, mode), expected)
    assert {kept.open(row).mode for row in range(len(names))} == {mode}
    part = pickle.loads(pickle.dumps(kept)).take(np.array([3, 1]), np.zeros(2, dtype=np.int64))
    assert_same(plain(part, mode), [expected[3], expected[1]])
    assert (part.where(0), part.stamp(1), part.shard_index) == (images.where(3), images.stamp(1), None)
    assert kept.digest() == images.digest()


@pytest.mark.parametrize("channels", [1, 3])
def test_examples_are_the_same_with_and_without(folder: Path, cache: DecodedCache, channels: int) -> None:
    without, one = loaded(folder, None, channels=channels), loaded(folder, cache, channels=channels)
    assert not cache.folder.exists()  # nothing is written before the first image
    other = loaded(folder, cache, channels=channels)
    assert one.decoded_bytes == without.decoded_bytes == (12 + 5) * 20 * 24 * channels

    def batches(data: TaskData, workers: int) -> list[Any]:
        keys = [[(epoch, index) for index in (0, 5, 7, 11, 2)] for epoch in range(3)]
        found = list(DataLoader(data.train, batch_sampler=keys, collate_fn=data.train.collate, num_workers=workers))
        return [*found, data.val.collate([data.val[0, index] for index in range(5)])]

    expected = batches(without, 0)
    for data, workers in ((one, 2), (other, 0), (one, 0)):
        for ours, theirs in zip(batches(data, workers), expected, strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in ("image", "target"))
    assert len(list(cache.folder.iterdir())) == 2  # training and validation, shared by `one` and `other`
    assert one.train.fingerprint() == without.train.fingerprint()


def test_images_that_stay_in_memory_are_not_kept(folder: Path, cache: DecodedCache) -> None:
    alone = DecodedCache(folder=cache.folder, limit=cache.limit)
    assert loaded(folder, alone).decoded_bytes == 12 * 20 * 24 * 3  # validation images are kept resized
    assert loaded(folder, alone, augment={"crop": "pad"}).decoded_bytes == 0
    assert loaded(folder, cache, augment={"crop": "pad"}).decoded_bytes == (12 + 5) * 20 * 24 * 3
    assert loaded(folder, alone, data={"cache": True}).decoded_bytes == 0
    assert loaded(folder, alone, data={"cache": False}).decoded_bytes == (12 + 5) * 20 * 24 * 3
    shared = loaded(folder, cache, data={"cache": True})  # other runs find them decoded
    assert isinstance(shared.val, PixelSplit)
    assert isinstance(shared.val.images, DecodedImages)
    assert cache.folder.is_dir()
    task = make_task("digits")
    task.use_cache(cache)
    assert task.load(model_data_config=host_config()).decoded_bytes == 0


def test_unknown_sizes_are_not_kept(folder: Path, cache: DecodedCache) -> None:
    data = loaded(folder, cache, data={"check": "off"})
    assert data.decoded_bytes is None
    assert not isinstance(images_of(data), DecodedImages)


def test_the_limit_is_kept(tmp_path: Path, cache: DecodedCache) -> None:
    images = some(tmp_path / "data", 40)
    expected = plain(images)
    limit = sum(array.nbytes for array in expected[:30]) + 5
    kept = keep(images, DecodedCache(folder=cache.folder, limit=limit))
    assert_same(plain(kept), expected)
    assert_same(plain(kept), expected)
    assert isinstance(kept, DecodedImages)
    assert [kept.file.read(row) is not None for row in range(40)] == [True] * 30 + [False] * 10
    (file,) = cache.folder.iterdir()
    assert file.stat().st_size == limit - 5 + mmap.PAGESIZE  # with the table
    other = keep(some(tmp_path / "more"), DecodedCache(folder=cache.folder, limit=limit))  # no room is left
    assert not isinstance(other, DecodedImages)


def _write_all(images: Images, order: list[int]) -> None:
    for index in order:
        images.open(index)


def test_several_processes_write_at_once(tmp_path: Path, cache: DecodedCache) -> None:
    images = some(tmp_path / "data", 60)
    expected, kept = plain(images), keep(images, cache)
    orders = [np.random.default_rng(seed).permutation(60).tolist() for seed in range(4)]
    writers = [fork.Process(target=_write_all, args=(keep(images, cache), order)) for order in orders]
    for writer in writers:
        writer.start()
    _write_all(kept, list(range(60)))
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert isinstance(kept, DecodedImages)
    for row, array in enumerate(expected):
        assert np.array_equal(np.asarray(kept.file.read(row)), array)


def test_a_killed_writer_leaves_no_partial_image(
    tmp_path: Path, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = some(tmp_path / "data")
    expected, kept, whole = plain(images), keep(images, cache), decoded._write

    def killed(file: Any, content: bytes, offset: int) -> None:
        whole(file, content[: len(content) // 2], offset)
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(decoded, "_write", killed)
        writer = fork.Process(target=_write_all, args=(kept, [2]))
        writer.start()
        writer.join()
    assert writer.exitcode == -signal.SIGKILL
    assert isinstance(kept, DecodedImages)
    assert len(list(cache.folder.iterdir())) == 1
    assert kept.file.read(2) is None
    assert_same(plain(kept), expected)
    assert_same(plain(kept), expected)
    assert kept.file.read(2) is not None


def test_changed_files_are_decoded_anew(tmp_path: Path, cache: DecodedCache) -> None:
    images = some(tmp_path / "data")
    kept = keep(images, cache)
    kept.open(0)
    for index in (0, 1):
        picture(50 + index, size=(9 + index, 7)).save(tmp_path / "data" / f"{index}.png")
        os.utime(tmp_path / "data" / f"{index}.png", (1, 1))
    assert isinstance(kept, DecodedImages)
    assert np.array_equal(np.asarray(kept.open(1)), plain(images)[1])
    assert kept.file.read(1) is None  # only the images that the file is named for
    again = keep(images, cache)
    assert_same(plain(again), plain(images))
    assert_same(plain(again), plain(images))


@pytest.mark.parametrize("name", ["pwrite", "ftruncate"])
def test_a_full_disk_changes_nothing(
    tmp_path: Path, cache: DecodedCache, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    images = some(tmp_path / "data")
    expected, kept = plain(images), keep(images, cache)
    kept.open(3)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, name, full)
    for each in (kept, keep(images, DecodedCache(folder=cache.folder, limit=1500))):
        assert_same(plain(each), expected)


class Watcher(Silent):
    """Remembers the files of decoded images at the end of each epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.found = folder, list[list[str]]()

    def on_epoch(self, metrics: Mapping[str, float]) -> None:
        self.found.append([path.name for path in self.folder.glob(".decoded/*")])


def test_a_run_keeps_images_until_it_ends(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for name, option in (("with", "auto"), ("without", "off")):
        watcher = Watcher(tmp_path / name)
        train(recipe({"source": str(folder)}), tmp_path / name, progress=watcher, cache=option)
        assert [len(files) for files in watcher.found] == ([1] * 3 if option == "auto" else [0] * 3)
        assert not (tmp_path / name / ".decoded").exists()
    assert_same_outcome(tmp_path / "with", tmp_path / "without")
    text = f"with: decoded images take up to 17.3 kB in {tmp_path / 'with' / '.decoded'} until training ends"
    assert [record.getMessage().endswith(text) for record in caplog.records].count(True) == 1
    with pytest.raises(UsageError, match="--cache: expected auto"):
        train(recipe({"source": str(folder)}), tmp_path / "new", cache="much")
    assert not (tmp_path / "new").exists()


def small_study(folder: Path, out: Path) -> Any:
    return study(folder, out, set=["train.batch_size=8", "task.augment.crop=resized"], epochs=2)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_runs_of_a_study_share_images(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, jobs: int
) -> None:
    caplog.set_level(logging.INFO)
    left = tmp_path / "with" / ".decoded" / f"{'0' * 24}-3"  # of a study that was killed
    left.parent.mkdir(parents=True)
    left.touch()
    decodings, opened = list[str](), FolderImages.open

    def counted(images: FolderImages, index: int) -> Image.Image:
        decodings.append(images.names[index])
        return opened(images, index)

    bare, executor = Tools(write_report=lambda result, folder: folder), Processes(jobs=jobs) if jobs > 1 else None
    monkeypatch.setattr(FolderImages, "open", counted)
    numbers = []
    for name, option in (("with", "auto"), ("without", "off")):
        decodings.clear()
        compare(small_study(folder, tmp_path / name), costs=False, tools=bare, executor=executor, cache=option)
        numbers.append(len(decodings))
        assert not (tmp_path / name / ".decoded").exists()
    runs = [path.parent.relative_to(tmp_path / "with") for path in tmp_path.glob("with/runs/*/*/finished.json")]
    assert len(runs) == 2
    for run in runs:
        assert_same_outcome(tmp_path / "with" / run, tmp_path / "without" / run)
    if jobs == 1:
        assert numbers[0] < numbers[1]
    assert f"decoded images take up to 24.5 kB in {tmp_path / 'with' / '.decoded'} until training ends" in caplog.text
    assert caplog.text.count("decoded images") == 1


def test_a_size_is_refused_on_a_cluster(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--cache 1GB: runs on a Ray cluster do not share decoded images; remove it"):
        compare(small_study(folder, tmp_path / "out"), executor=Ray(address="local"), cache="1GB")
    assert not (tmp_path / "out").exists()


def test_the_file_is_closed(tmp_path: Path) -> None:
    file = decoded.DecodedFile(tmp_path / "images", ends=np.array([12]), mode="RGB")
    file.write(0, Image.new("RGB", (2, 2), (1, 2, 3)))
    assert file._opened is not None
    handle, kept = file._opened.file, file.read(0)
    del file
    assert handle.closed and kept is not None and kept.getpixel((1, 1)) == (1, 2, 3)
