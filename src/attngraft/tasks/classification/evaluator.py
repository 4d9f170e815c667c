"""Metrics of classification, and report sections from saved predictions."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch

from attngraft.results.measured import MeanScore, Measured, Statistic
from attngraft.results.measured import macro_f1 as resampled_macro_f1
from attngraft.results.records import RecordTable
from attngraft.results.sections import Cell, Column, Matrix, Section, Table
from attngraft.tasks.calibration import mean_over_seeds, recall_precision_f1, reliability_section
from attngraft.tasks.classification.config import LossConfig
from attngraft.tasks.classification.losses import example_losses

MATRIX_LIMIT = 50  #: largest number of classes for which the report shows the full confusion matrix
TOP = 5
LOGITS_LIMIT = 1000  #: largest number of classes for which predictions store all logits
PAIRS = 20  #: number of most frequent confusions listed instead, for more classes

Arrays = Mapping[str, np.ndarray]


def records(
    logits: torch.Tensor, target: torch.Tensor, *, loss: LossConfig, stored: Literal["auto", "logits", "top5"]
) -> dict[str, torch.Tensor]:
    """Return the columns of `Task.predict` from `logits` (B, classes).

    The columns are `target`, `predicted`, `confidence` (the probability of the predicted class) and `loss`, (B,) each;
    with more than five classes or without `logits`, also the best classes `top5` (B, up to 5); and `logits` if stored.
    """
    classes = logits.shape[1]
    top = logits.topk(min(TOP, classes), dim=-1).indices
    probabilities = logits.sigmoid() if loss.name == "bce" else logits.softmax(dim=-1)
    keep_logits = stored == "logits" or (stored == "auto" and classes <= LOGITS_LIMIT)
    return {
        "target": target,
        "predicted": top[:, 0],
        "confidence": probabilities.gather(1, top[:, :1])[:, 0],
        "loss": example_losses(loss, logits, target),
        **({"top5": top} if classes > TOP or not keep_logits else {}),
        **({"logits": logits} if keep_logits else {}),
    }


def by_frequency(table: RecordTable, counts: np.ndarray, *, loss: LossConfig) -> RecordTable:
    """Return the records of a model whose probabilities are the class frequencies, for the targets in `table`.

    Args:
        table: the records of any model.
        counts: number of training examples of each class, (classes,).
        loss: the loss of an example.
    """
    target = table.array("target")
    shares = torch.from_numpy(np.maximum(counts, 0.5) / counts.sum())
    logits = shares.logit() if loss.name == "bce" else shares.log()
    classes, index = np.unique(target, return_inverse=True)
    losses = [
        example_losses(loss, logits.expand(len(each), -1), each)
        for each in torch.from_numpy(classes).long().split(LOGITS_LIMIT)
    ]
    top = np.argsort(-counts, kind="stable")[:TOP]
    columns = {
        "target": target,
        "predicted": np.full(len(target), top[0]),
        "top5": np.broadcast_to(top, (len(target), len(top))),
        "loss": torch.cat(losses).numpy()[index],
    }
    return RecordTable(names=table.names, columns=columns)


def measure(table: RecordTable, *, classes: int) -> Measured:
    """Return the metrics as shares (0 to 1).

    `top1`, `top5` (with more than five classes), `balanced_accuracy` and `macro_f1` (means of recall and of F1 over the
    classes that occur), and `loss` (the training loss without smoothing and class weights). Under resampling, each example
    keeps its weight in the balanced accuracy.
    """
    target, predicted = table.array("target"), table.array("predicted")
    hit = predicted == target
    statistics: dict[str, Statistic] = {"top1": MeanScore(hit, binary=True)}
    values = {"top1": float(hit.mean())}
    if classes > TOP and not {"top5", "logits"}.isdisjoint(table):  # suites store neither
        top = table.array("top5") if "top5" in table else best_classes(table.array("logits"))
        among = (top == target[:, None]).any(axis=1)
        statistics["top5"], values["top5"] = MeanScore(among, binary=True), float(among.mean())
    statistics["balanced_accuracy"] = MeanScore(hit * class_shares(target), held_fixed="the weight of each class")
    values["balanced_accuracy"] = balanced_accuracy(predicted, target, classes=classes)
    statistics["macro_f1"] = resampled_macro_f1(predicted, target, classes=classes)
    values["macro_f1"] = macro_f1(predicted, target, classes=classes)
    if "loss" in table:  # earlier versions did not store the loss
        loss = table.array("loss")
        statistics["loss"], values["loss"] = MeanScore(loss), float(loss.mean(dtype=np.float64))
    return Measured(values=values, statistics=statistics)


def best_classes(logits: np.ndarray) -> np.ndarray:
    """Return the five best classes of each example, (N, 5)."""
    best: np.ndarray = torch.from_numpy(logits).topk(TOP, dim=-1).indices.numpy()
    return best


def class_shares(target: np.ndarray) -> np.ndarray:
    """Return each example's weight in the mean recall, (N,): N / (occurring classes * size of its class)."""
    classes, index, counts = np.unique(target, return_inverse=True, return_counts=True)
    shares: np.ndarray = (len(target) / (len(classes) * counts))[index]
    return shares


def balanced_accuracy(predicted: np.ndarray, target: np.ndarray, *, classes: int) -> float:
    """Return the mean recall of the classes that occur in `target`."""
    correct, _, actual = _counts_by_class(predicted, target, classes)
    return _mean_of_shares(correct, actual, actual > 0)


def macro_f1(predicted: np.ndarray, target: np.ndarray, *, classes: int) -> float:
    """Return the mean F1 = 2 precision recall / (precision + recall) of the classes that occur in `target`."""
    correct, stated, actual = _counts_by_class(predicted, target, classes)
    return _mean_of_shares(2 * correct, stated + actual, actual > 0)


def _counts_by_class(predicted: np.ndarray, target: np.ndarray, classes: int) -> list[np.ndarray]:
    """Return the number of correct predictions, of predictions, and of examples of each class."""
    return [np.bincount(labels, minlength=classes) for labels in (target[target == predicted], predicted, target)]


def _mean_of_shares(parts: np.ndarray, wholes: np.ndarray, occurring: np.ndarray) -> float:
    """Return the mean over the classes that occur, from quotients in single precision as torchmetrics computes them."""
    shares = torch.from_numpy(parts[occurring]).float() / torch.from_numpy(wholes[occurring])
    return float(shares.double().mean())


def sections(
    predictions: Sequence[Arrays], *, classes: Sequence[str], counts: Mapping[str, int], noun: str = "image"
) -> list[Section]:
    """Return report sections from each seed's `target`, `predicted` and `confidence`, (N,) each.

    Calibration is omitted if any confidence is not finite. `counts` maps classes to their number of training examples.
    `noun` is the name of an example (image, text).
    """
    arrays = [{name: each[name] for name in ("target", "predicted", "confidence")} for each in predictions]
    result = [_by_class(arrays, classes, counts, noun), _confusion(arrays, classes, noun)]
    if all(np.isfinite(each["confidence"]).all() for each in arrays):
        result.append(
            reliability_section(
                [each["confidence"] for each in arrays],
                [each["predicted"] == each["target"] for each in arrays],
                title="Calibration",
                definition=f"Probability of the predicted class against the share of such {noun}s that belong to it. On the "
                "diagonal, the accuracy equals the confidence; below it, the model is overconfident.",
            )
        )
    return result


def _by_class(predictions: Sequence[Arrays], classes: Sequence[str], counts: Mapping[str, int], noun: str) -> Section:
    by_seed = []
    support = np.bincount(predictions[0]["target"], minlength=len(classes))
    for each in predictions:
        correct, predicted, _ = _counts_by_class(each["predicted"], each["target"], len(classes))
        by_seed.append(recall_precision_f1(correct, predicted, support))
    columns = [
        Column(name="class", kind="text"),
        Column(name=f"{noun}s", kind="count", role="common"),
        Column(name="recall", kind="share"),
        Column(name="precision", kind="share"),
        Column(name="F1", kind="share", role="compared"),
    ]
    means = map(mean_over_seeds, zip(*by_seed, strict=True))
    rows = [list(row) for row in zip(classes, support.tolist(), *means, strict=True)]
    largest = max(classes, key=lambda name: counts[name])
    share = support[classes.index(largest)] / support.sum()
    return Section(
        name="classes",
        title="Class by class",
        note=f"Means over seeds, on the evaluated {noun}s. Recall: share of the class's {noun}s that are predicted as the "
        f"class. Precision: share of the {noun}s predicted as the class that belong to it; empty if no seed predicts it. "
        f"F1: their harmonic mean. For comparison: always predicting {largest}, the class with the most training {noun}s, "
        f"is correct for {100 * share:.2f} % of the {noun}s.",
        table=Table(columns=columns, rows=rows),
    )


def _confusion(predictions: Sequence[Arrays], classes: Sequence[str], noun: str) -> Section:
    target = np.concatenate([each["target"] for each in predictions]).astype(np.int64)
    predicted = np.concatenate([each["predicted"] for each in predictions]).astype(np.int64)
    size, title, note = len(classes), "Confusion matrix", "All seeds together."
    if size <= MATRIX_LIMIT:
        counts = np.bincount(target * size + predicted, minlength=size * size).reshape(size, size)
        matrix = Matrix(
            rows=list(classes),
            columns=list(classes),
            row_axis="true class",
            column_axis="predicted class",
            counts=counts.tolist(),
        )
        return Section(name="confusion", title=title, note=note, matrix=matrix)
    wrong = target != predicted
    pairs, counts = np.unique(target[wrong] * size + predicted[wrong], return_counts=True)
    support = np.bincount(target, minlength=size)
    rows: list[list[Cell]] = []
    for index in np.argsort(-counts, kind="stable")[:PAIRS]:
        true, other = divmod(int(pairs[index]), size)
        rows.append([classes[true], classes[other], int(counts[index]), float(counts[index] / support[true])])
    columns = [
        Column(name="true class", kind="text"),
        Column(name="predicted class", kind="text"),
        Column(name=f"{noun}s", kind="count"),
        Column(name="share of the class", kind="share"),
    ]
    note += f" The {PAIRS} most frequent confusions; a matrix of {size} classes would be unreadable."
    return Section(name="confusion", title=title, note=note, table=Table(columns=columns, rows=rows))
