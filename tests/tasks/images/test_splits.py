"""Splits: the same example in every process, fast and slow paths alike, generators untouched."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from attngraft.tasks.images.splits import ImageSplit, LabelledSplit, PixelSplit
from attngraft.tasks.task import TaskData
from tests.tasks.images.datasets import load, make_folder

AUGMENTS: list[dict[str, Any]] = [
    {},
    {"crop": "resized", "auto_augment": "rand-m9-mstd0.5-inc1", "erasing": 0.5},
    {"auto_augment": "3a", "color_jitter": 0.3},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path, {"train": {"a": 6, "b": 6}, "val": {"a": 2, "b": 3}})


def _batches(split: LabelledSplit, *, epoch: int, workers: int, size: int = 5) -> list[dict[str, torch.Tensor]]:
    keys = [[(epoch, i) for i in range(start, min(start + size, len(split)))] for start in range(0, len(split), size)]
    return list(DataLoader(split, batch_sampler=keys, collate_fn=split.collate, num_workers=workers))


@pytest.mark.parametrize("augment", AUGMENTS)
@pytest.mark.parametrize("source", ["folder", "digits"])
def test_workers_and_batches_change_nothing(folder: Path, source: str, augment: dict[str, Any]) -> None:
    data = load(folder, augment=augment) if source == "folder" else _few(load("digits", augment=augment))
    alone = _batches(data.train, epoch=3, workers=0)
    shared = _batches(data.train, epoch=3, workers=2)
    for one, other in zip(alone, shared, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in ("image", "target"))
    singles = torch.cat([batch["image"] for batch in _batches(data.train, epoch=3, workers=0, size=1)])
    assert torch.equal(torch.cat([batch["image"] for batch in alone]), singles)
    assert torch.equal(pickle.loads(pickle.dumps(data.train))[(3, 2)][0], data.train[(3, 2)][0])


def _few(data: TaskData) -> TaskData:
    """The first dozen of the digits."""
    split = data.train
    assert isinstance(split, LabelledSplit)
    split.names, split.labels = split.names[:12], split.labels[:12]
    return data


@pytest.mark.parametrize("augment", AUGMENTS)
def test_an_example_is_a_function_of_seed_epoch_and_index(folder: Path, augment: dict[str, Any]) -> None:
    split = load(folder, augment=augment).train

    def all_of(split: Any, epoch: int, repeat: int = 0) -> torch.Tensor:
        return split.collate([split[(epoch, repeat * len(split) + i)] for i in range(len(split))])["image"]

    first = all_of(split, 0)
    assert torch.equal(all_of(split, 0), first)
    for other in (all_of(split, 1), all_of(split, 0, 1), all_of(load(folder, seed=1, augment=augment).train, 0)):
        assert not torch.equal(other, first)


@pytest.mark.parametrize("augment", AUGMENTS)
def test_generators_are_left_as_they_were(folder: Path, augment: dict[str, Any]) -> None:
    split = load(folder, augment=augment).train
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for index in range(4):
        split[(0, index)]
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


@pytest.mark.parametrize("size", [12, 16, 9])
def test_views_held_in_memory_are_the_views_made_each_time(folder: Path, size: int) -> None:
    held = load(folder, size=size, augment={"crop": "center", "hflip": 0.0}, data={"cache": True})
    made = load(folder, size=size, augment={"crop": "center", "hflip": 0.0}, data={"cache": False})
    for one, other in ((held.train, made.train), (held.val, made.val)):
        assert isinstance(one, PixelSplit)
        assert isinstance(other, ImageSplit)
        keys = range(len(one))
        pixels = [split.collate([split[(0, i)] for i in keys])["image"] for split in (one, other)]
        assert torch.equal(*pixels)


def test_decoding_once_changes_no_random_view(folder: Path) -> None:
    augment = {"crop": "resized"}
    held, made = (load(folder, augment=augment, data={"cache": cache}).train for cache in (True, False))
    assert all(torch.equal(held[(1, i)][0], made[(1, i)][0]) for i in range(len(made)))


def test_files_are_decoded_when_first_asked_for(folder: Path) -> None:
    split = load(folder, augment={"crop": "pad"}).train
    assert isinstance(split, PixelSplit)
    assert not split.cached.any()
    first = split[(0, 3)][0]
    assert split.cached.nonzero()[0].tolist() == [3]
    (folder / "train" / "a" / "3.png").unlink()
    assert torch.equal(split[(0, 3)][0], first)


def test_moves_are_shifts_and_flips_with_all_their_outcomes(tmp_path: Path) -> None:
    pixels = np.arange(1, 65, dtype=np.uint8).reshape(1, 8, 8).repeat(4, axis=0)
    np.savez(tmp_path / "x.npz", x_train=pixels, y_train=[0, 1, 0, 1], x_val=pixels, y_val=[0, 1, 0, 1])
    split = load(tmp_path / "x.npz", size=8, augment={"padding": 1, "vflip": 0.5}).train
    padded = np.pad(pixels[0], 1)
    expected = {}
    for top in range(3):
        for left in range(3):
            window = padded[top : top + 8, left : left + 8]
            for flips, view in enumerate((window, window[:, ::-1], window[::-1], window[::-1, ::-1])):
                expected[view.tobytes()] = (top, left, flips)
    seen = [expected[split[(epoch, 0)][0][0].numpy().tobytes()] for epoch in range(720)]
    counts = {outcome: seen.count(outcome) for outcome in expected.values()}
    assert len(counts) == 36
    assert min(counts.values()) >= 5, "each of the 36 outcomes is due 20 times in 720"
    assert max(counts.values()) <= 45
    evaluation = load(tmp_path / "x.npz", size=8, augment={"padding": 1}).val
    assert np.array_equal(evaluation[(5, 0)][0][0].numpy(), pixels[0])


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_repeated_augmentation(folder: Path, repeats: int) -> None:
    split = load(folder, augment={"repeats": repeats}).train
    orders = [split.order(seed=0, epoch=epoch) for epoch in range(20)]
    shown: list[np.ndarray] = []
    for order in orders:
        assert order is not None
        assert len(order) == len(split) == 12
        assert len(set(order.tolist())) == 12, "every repeat has an index, and so a view, of its own"
        examples = order % 12
        assert len(set(examples.tolist())) == -(-12 // repeats)
        assert all(len(set(row)) == 1 for row in np.array_split(examples, range(repeats, 12, repeats)))
        shown.append(examples)
    assert len({example for examples in shown for example in examples.tolist()}) == 12, "epochs draw anew"
    assert np.array_equal(orders[0], split.order(seed=0, epoch=0))
    assert split.name(12 + 7) == split.name(7) == "train/b/1.png"
    assert split[(0, 7)][1] == split[(0, 12 + 7)][1] == 1
    assert not torch.equal(split[(0, 7)][0], split[(0, 12 + 7)][0])


def test_without_repeats_the_engine_shuffles(folder: Path) -> None:
    data = load(folder)
    assert data.train.order(seed=0, epoch=0) is None
    assert load(folder, augment={"repeats": 3}).val.order(seed=0, epoch=0) is None
