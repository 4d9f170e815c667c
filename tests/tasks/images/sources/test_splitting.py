"""Random splits of multi-label images: shares, rare labels, seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngraft.errors import DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.opening import open_images
from attngraft.tasks.images.sources import ArrayImages, ImageSource, with_validation
from tests.tasks.images.datasets import make_folder

FRACTIONS = st.sampled_from([0.1, 0.2, 0.25, 0.5, 0.8])
SEEDS = st.integers(0, 2**16)


def random_split(labels: np.ndarray, fraction: float = 0.2, seed: int = 0) -> np.ndarray:
    """Return a mask of the validation images, (N,); every image is in one of the two splits."""
    names = [str(i) for i in range(len(labels))]
    images = ArrayImages(np.zeros((len(labels), 1, 1, 3), dtype=np.uint8), names=names, labels=labels.astype(np.uint8))
    classes = tuple(f"c{i}" for i in range(labels.shape[1]))
    parts = ImageSource(
        kind="table", where="x.csv", classes=classes, train=images, val=None, origin="the rows", multilabel=True
    )
    rest, val, _ = with_validation(parts, DataConfig(source="x.csv", val_fraction=fraction, split_seed=seed))
    assert sorted([*rest.train.names, *val.names], key=int) == names
    assert (val.labels == labels[[int(name) for name in val.names]]).all(), "labels go with their images"
    assert (rest.train.labels == labels[[int(name) for name in rest.train.names]]).all()
    return np.isin(names, list(val.names))


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    """Labels of up to 40 images, some with none, in any combination."""
    classes = draw(st.integers(1, 6))
    rows = draw(st.lists(st.lists(st.booleans(), min_size=classes, max_size=classes), min_size=2, max_size=40))
    return np.array(rows, dtype=np.uint8)


@given(
    counts=st.lists(st.integers(1, 30), min_size=2, max_size=6), bare=st.integers(0, 20), fraction=FRACTIONS, seed=SEEDS
)
@settings(max_examples=40)
def test_labels_that_do_not_meet_get_their_exact_share(
    counts: list[int], bare: int, fraction: float, seed: int
) -> None:
    labels = np.repeat(np.eye(len(counts) + 1), [*counts, bare], axis=0)[:, :-1]
    val = random_split(labels, fraction, seed)
    for label, count in enumerate(counts):
        share = min(max(round(count * fraction), 1), count - 1) if count > 1 else 0
        assert labels[val, label].sum() == share
    assert val[sum(counts) :].sum() == round(bare * fraction), "those without a label are divided, too"


@given(labels=matrices(), fraction=FRACTIONS, seed=SEEDS)
@settings(max_examples=100)
def test_every_label_is_learned_and_evaluated_where_that_is_possible(
    labels: np.ndarray, fraction: float, seed: int
) -> None:
    val = random_split(labels, fraction, seed)
    counts, kept = labels.sum(axis=0, dtype=int), labels[~val].sum(axis=0, dtype=int)
    assert (kept[counts > 0] > 0).all(), "each label has an image in training; its only one, too"
    for label in np.flatnonzero(kept == counts):
        for image in labels[labels[:, label] > 0]:
            assert (kept[image > 0] == 1).any(), f"label {label} has an image that training could spare"
    bare = labels.sum(axis=1) == 0
    assert val[bare].sum() == round(bare.sum() * fraction)


def test_labels_that_meet_come_near_their_share() -> None:
    """Much nearer than a draw that looks at no label: on the average a third of an image, against one and a half."""
    stream = np.random.default_rng(0)
    stratified, blind = [], []
    for seed in range(60):
        length, classes = int(stream.integers(60, 200)), int(stream.integers(3, 12))
        labels = stream.random((length, classes)) < stream.uniform(0.02, 0.5, classes)
        val = random_split(labels, 0.2, seed)
        any_other = stream.permutation(length) < round(0.2 * length)
        stratified += list(abs(labels[val].sum(axis=0) - 0.2 * labels.sum(axis=0)))
        blind += list(abs(labels[any_other].sum(axis=0) - 0.2 * labels.sum(axis=0)))
        assert abs(val.mean() - 0.2) < 0.1
    assert np.mean(stratified) < 0.5
    assert np.mean(blind) > 1.2


@given(labels=matrices(), seed=SEEDS)
@settings(max_examples=25)
def test_one_seed_draws_one_split(labels: np.ndarray, seed: int) -> None:
    assert (random_split(labels, seed=seed) == random_split(labels, seed=seed)).all()


def test_another_seed_draws_another_split() -> None:
    labels = np.random.default_rng(1).random((100, 5)) < 0.3
    splits = {tuple(random_split(labels, seed=seed)) for seed in range(20)}
    assert len(splits) == 20


def test_the_only_image_of_a_label_trains_whatever_else_it_shows() -> None:
    """The second label of the last image comes first, and wants it for validation."""
    labels = np.array([[1, 1, 0], [0, 1, 1]])
    for seed in range(10):
        assert not random_split(labels, 0.5, seed).any()


def test_the_rarest_label_is_served_first() -> None:
    """Every image of the rare label has the frequent one, too; half of the rare ones, not of all, decide."""
    labels = np.stack([np.ones(100), np.arange(100) < 4], axis=1)
    val = random_split(labels, 0.25, 0)
    assert labels[val].sum(axis=0).tolist() == [25, 1]


def test_where_no_image_can_be_spared_it_is_said(tmp_path: Path) -> None:
    make_folder(tmp_path, {"images": 3})
    rows = "path,labels\nimages/0.png,a|b\nimages/1.png,b|c\nimages/2.png,d\n"
    (tmp_path / "labels.csv").write_text(rows, encoding="utf-8")
    with pytest.raises(DataError, match=r"labels\.csv: no images are left for validation .*task\.data\.classes"):
        open_images(DataConfig(source=str(tmp_path / "labels.csv")))
