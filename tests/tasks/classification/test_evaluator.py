"""Metrics against scikit-learn and torchmetrics; every example counted once."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, f1_score, log_loss, top_k_accuracy_score
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score, multiclass_recall

from attngraft.errors import TrainingError
from attngraft.results.records import RecordCollector, Records, RecordTable
from attngraft.tasks.classification.evaluator import balanced_accuracy, macro_f1, measure, records
from attngraft.tasks.images.inputs import HostInput, image_to_tensor
from attngraft.tasks.images.sources import ArrayImages
from attngraft.tasks.images.splits import LabelledSplit
from attngraft.tasks.task import Evaluation, to_records
from attngraft.training.evaluate import evaluate_records
from tests.tasks.images.datasets import host_config, make_task


def _task(classes: int, **sections: Any) -> Any:
    task = make_task("digits", **sections)
    task._classes = classes
    return task


class LabelsOnly(LabelledSplit):
    """Labels without images."""

    def __getitem__(self, key: tuple[int, int]) -> Any:
        raise NotImplementedError


def _split(labels: np.ndarray) -> LabelledSplit:
    images = ArrayImages(
        np.zeros((len(labels), 1, 1), np.uint8), names=[f"image {i}" for i in range(len(labels))], labels=labels
    )
    return LabelsOnly(images, image_to_tensor, host=HostInput.from_model(host_config()), seed=0)


def _evaluate(
    logits: torch.Tensor, labels: np.ndarray, *, order: np.ndarray | None = None, **sections: Any
) -> Evaluation:
    classes = logits.shape[1]
    task, split = _task(classes, **sections), _split(labels)
    collector = RecordCollector(split.names)
    order = np.arange(len(labels)) if order is None else order
    for rows in np.array_split(order, max(1, len(order) // 7)):
        batch = {"target": torch.from_numpy(labels[rows])}
        collector.add(rows, to_records(task.predict(logits[rows], batch)))
    return evaluate_records(task, split, collector.table(), {"classes": [str(c) for c in range(classes)]})


def _random(size: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.RandomState(seed)
    labels = rng.randint(0, classes, size)
    return torch.from_numpy(rng.randn(size, classes).astype(np.float32)), labels


def test_metrics_are_scikit_learns() -> None:
    logits, labels = _random(200, 10)
    found = _evaluate(logits, labels)
    share = logits.double().softmax(-1).numpy()
    predicted = logits.argmax(-1).numpy()
    assert found.metrics == pytest.approx(
        {
            "top1": (predicted == labels).mean(),
            "top5": top_k_accuracy_score(labels, share, k=5),
            "balanced_accuracy": balanced_accuracy_score(labels, predicted),
            "macro_f1": f1_score(labels, predicted, average="macro"),
            "loss": log_loss(labels, share),
        },
        rel=1e-6,
    )
    assert found.metrics["top1"] == pytest.approx(
        float(
            multiclass_accuracy(torch.from_numpy(predicted), torch.from_numpy(labels), num_classes=10, average="micro")
        )
    )
    assert np.array_equal(found.predictions.score, (predicted == labels).astype(float))
    assert found.predictions.binary
    assert found.predictions.names[3] == "image 3"
    assert np.array_equal(found.predictions.arrays["target"], labels)
    assert np.array_equal(found.predictions.arrays["predicted"], predicted)
    assert np.array_equal(found.predictions.arrays["logits"], logits.numpy())
    assert found.predictions.arrays["logits"].dtype == np.float32


@given(st.integers(1, 30), st.integers(2, 12), st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_balanced_accuracy_and_macro_f1_are_scikit_learns(size: int, classes: int, seed: int) -> None:
    rng = np.random.RandomState(seed)
    predicted, target = rng.randint(0, classes, size), rng.randint(0, classes, size)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # scikit-learn warns of classes that are only predicted, and leaves them out too
        expected = balanced_accuracy_score(target, predicted)
        f1 = f1_score(target, predicted, labels=np.unique(target), average="macro", zero_division=0)
    assert balanced_accuracy(predicted, target, classes=classes) == pytest.approx(expected, rel=1e-6)
    assert macro_f1(predicted, target, classes=classes) == pytest.approx(f1, rel=1e-6)
    labels = torch.from_numpy(predicted), torch.from_numpy(target)
    for ours, theirs in ((balanced_accuracy, multiclass_recall), (macro_f1, multiclass_f1_score)):  # to the last digit
        by_class = theirs(*labels, num_classes=classes, average="none")[np.unique(target)]
        assert ours(predicted, target, classes=classes) == float(by_class.double().mean())


def test_few_classes_have_no_top5_and_many_keep_no_logits() -> None:
    logits, labels = _random(20, 5)
    assert "top5" not in _evaluate(logits, labels).metrics
    logits, labels = _random(20, 1001)
    arrays = _evaluate(logits, labels).predictions.arrays
    assert "logits" not in arrays
    assert np.array_equal(arrays["top5"], logits.topk(5).indices.numpy())
    assert "logits" in _evaluate(logits, labels, metrics={"predictions": "logits"}).predictions.arrays
    assert "logits" not in _evaluate(*_random(9, 3), metrics={"predictions": "top5"}).predictions.arrays


def test_repeats_are_ignored_and_order_does_not_matter() -> None:
    logits, labels = _random(23, 6)
    plain = _evaluate(logits, labels)
    shuffled = np.random.RandomState(1).permutation(23)
    padded = _evaluate(logits, labels, order=np.concatenate([shuffled, shuffled[:9], [4, 4]]))
    assert padded.metrics == plain.metrics
    assert all(np.array_equal(padded.predictions.arrays[k], v) for k, v in plain.predictions.arrays.items())


def test_a_repeat_inside_a_batch_counts_once() -> None:
    logits, labels = _random(2, 3)
    collector, rows = RecordCollector(["a", "b"]), np.array([1, 0, 1])
    collector.add(rows, to_records(_task(3).predict(logits[rows], {"target": torch.from_numpy(labels[rows])})))
    assert np.array_equal(collector.table()["logits"], logits.numpy())


def test_missing_examples_are_an_error() -> None:
    logits, labels = _random(20, 6)
    with pytest.raises(TrainingError, match=r"2 of 20 examples are missing \(image 18, image 19"):
        _evaluate(logits, labels, order=np.arange(18))
    with pytest.raises(TrainingError, match="indices 3 to 20 are out of range for 20 examples"):
        RecordCollector(["image"] * 20).add(np.array([3, 20]), Records(statistics={}))


def test_the_loss_is_trainings_kind() -> None:
    logits, labels = _random(20, 6)
    hot = torch.eye(6)[torch.from_numpy(labels)]
    bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, hot)
    assert _evaluate(logits, labels, loss={"name": "bce"}).metrics["loss"] == pytest.approx(bce.item(), rel=1e-6)


def test_confidence_is_a_softmax_or_the_losss_own_sigmoid() -> None:
    logits, labels = _random(30, 6)
    best = logits.max(dim=-1).values
    softmax = _evaluate(logits, labels).predictions.arrays["confidence"]
    assert np.allclose(softmax, (best.exp() / logits.exp().sum(-1)).numpy())
    sigmoid = _evaluate(logits, labels, loss={"name": "bce"}).predictions.arrays["confidence"]
    assert np.allclose(sigmoid, best.sigmoid().numpy())


@pytest.mark.parametrize("primary", ["top1", "top5", "balanced_accuracy", "loss"])
def test_the_mean_score_is_the_primary_metric(primary: str) -> None:
    logits, labels = _random(83, 9)
    labels[labels > 6] = 0  # classes of unequal size, and two that do not occur
    task = _task(9, metrics={"primary": primary})
    found = _evaluate(logits, labels, metrics={"primary": primary})
    assert task.primary == primary
    assert task.higher_is_better == (primary != "loss")
    assert found.metrics[primary] == pytest.approx(found.predictions.score.mean(), rel=1e-6)
    assert found.predictions.binary == (primary in ("top1", "top5"))
    assert found.metrics.keys() <= task.metrics.keys()
    assert next(iter(found.metrics)) == primary


def test_the_columns_of_suites_are_enough() -> None:
    labels = np.arange(12) % 10
    columns = {"target": labels, "predicted": np.zeros_like(labels), "confidence": np.ones(12)}
    found = measure(RecordTable(names=labels.astype(str), columns=columns), classes=10)
    assert found.statistics.keys() == {"top1", "balanced_accuracy", "macro_f1"}


@pytest.mark.parametrize("loss", ["cross_entropy", "bce"])
def test_chance_is_the_model_of_the_class_frequencies(loss: str) -> None:
    """The same metrics as those of a model with the logarithm of the frequencies as logits."""
    task = make_task("digits", loss={"name": loss})
    names, counts = [f"c{i}" for i in range(7)], np.array([30, 5, 40, 10, 4, 9, 2])
    target = np.random.default_rng(0).choice(7, 200, p=counts / 100)
    table = RecordTable(names=np.arange(200).astype(str), columns={"target": target})
    facts = {"classes": names, "counts": {"train": dict(zip(names, counts.tolist(), strict=True))}}
    found = task.chance(table, facts)
    shares = torch.from_numpy(counts / 100)
    logits = (shares.log() if loss == "cross_entropy" else shares.logit()).expand(200, 7)
    columns = records(logits, torch.from_numpy(target), loss=task.config.loss, stored="logits")
    expected = measure(replace(table, columns={k: v.numpy() for k, v in columns.items()}), classes=7).values
    assert found.values == pytest.approx(dict(expected))
    assert found.values["top1"] == (target == 2).mean()
    assert "training images" in found.description
