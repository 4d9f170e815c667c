"""Scores against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, label_ranking_average_precision_score

from attngraft.tasks.multilabel.evaluator import (
    class_average_precision,
    image_average_precision,
    label_counts,
    mean_of_known,
)


def random(seed: int, *, images: int = 50, classes: int = 6, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels."""
    stream = np.random.RandomState(seed)
    scores = stream.randint(-2, 3, (images, classes)) if ties else stream.randn(images, classes)
    return scores.astype(np.float32), (stream.rand(images, classes) < 0.3).astype(np.uint8)


@given(st.integers(0, 10_000), st.booleans())
@settings(deadline=None, max_examples=15)
def test_an_images_average_precision_is_scikit_learns(seed: int, ties: bool) -> None:
    scores, labels = random(seed, ties=ties)
    found = image_average_precision(scores, labels)
    assert found.shape == (50,)
    assert found.mean() == pytest.approx(label_ranking_average_precision_score(labels, scores))
    each = [label_ranking_average_precision_score(labels[i : i + 1], scores[i : i + 1]) for i in range(50)]
    assert found == pytest.approx(each)


def test_images_of_no_label_and_of_all_labels_have_one() -> None:
    assert image_average_precision(np.array([[1.0, 2.0]] * 2), np.array([[0, 0], [1, 1]])).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("ties", [False, True])
def test_a_classes_average_precision_is_scikit_learns(ties: bool) -> None:
    scores, labels = random(3, ties=ties)
    labels[:, 2] = 0
    found = class_average_precision(scores, labels)
    assert found[2] is None
    for i in (0, 1, 3, 4, 5):
        assert found[i] == pytest.approx(average_precision_score(labels[:, i], scores[:, i]), rel=1e-5)
    assert mean_of_known(found) == pytest.approx(
        average_precision_score(np.delete(labels, 2, 1), np.delete(scores, 2, 1), average="macro"), rel=1e-5
    )


@pytest.mark.parametrize("threshold", [0.5, 0.2])
def test_counts_at_a_threshold(threshold: float) -> None:
    scores, labels = random(4)
    given_labels = 1 / (1 + np.exp(-scores.astype(float))) >= threshold
    counts = label_counts(scores, labels, threshold=threshold)
    f1 = 2 * counts["correct"] / (counts["positives"] + counts["predicted"])
    assert f1 == pytest.approx(f1_score(labels, given_labels, average=None))
