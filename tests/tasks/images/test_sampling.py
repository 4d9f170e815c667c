"""Class shares of an epoch: as asked for, a function of (seed, epoch), and with views of their own for repeats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngraft.tasks.images.sampling import Sampling, draw_by_class
from tests.tasks.images.datasets import load, make_folder


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.integers(1, 120),
    st.sampled_from(["balanced", "sqrt"]),
    st.integers(0, 100),
)
@settings(deadline=None, max_examples=60)
def test_shares_of_classes_and_of_images(counts: list[int], size: int, sampling: Sampling, seed: int) -> None:
    labels = np.random.RandomState(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    places, turns = draw_by_class(labels, size=size, sampling=sampling, stream=np.random.default_rng(seed))
    assert len(places) == len(turns) == size
    roots = np.ones(len(counts)) if sampling == "balanced" else np.sqrt(counts)
    found = np.bincount(labels[places], minlength=len(counts))
    assert np.all(np.abs(found - size * roots / roots.sum()) < 1)
    for label in range(len(counts)):
        times = np.bincount(places, minlength=len(labels))[labels == label]
        assert times.max() - times.min() <= 1
    assert len(set(zip(places.tolist(), turns.tolist(), strict=True))) == size


@pytest.mark.parametrize("repeats", [1, 3])
def test_an_epoch_of_a_balanced_split(tmp_path: Path, repeats: int) -> None:
    make_folder(tmp_path, {"train": {"a": 20, "b": 4}, "val": {"a": 2, "b": 2}})
    split = load(tmp_path, sampling="balanced", augment={"repeats": repeats, "crop": "resized"}).train
    order = split.order(seed=1, epoch=2)
    assert order is not None
    assert len(order) == len(split) == 24
    assert np.array_equal(order, split.order(seed=1, epoch=2))
    assert not np.array_equal(order, split.order(seed=1, epoch=3))
    assert len(set(order.tolist())) == 24
    names = [split.name(int(index)) for index in order]
    assert sum("/b/" in name for name in names) == 12
    rare = next(name for name in names if "/b/" in name)
    views = [split[(2, int(index))][0] for index, name in zip(order, names, strict=True) if name == rare]
    assert len(views) > 1
    assert not np.array_equal(views[0], views[1])


def test_without_sampling_nothing_changes() -> None:
    assert load("digits", size=8).train.order(seed=0, epoch=0) is None
