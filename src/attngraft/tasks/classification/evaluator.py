"""Top-1, top-5, balanced accuracy, macro F1 and loss over a split, each example counted once."""

from __future__ import annotations

import numpy as np
import torch
from torchmetrics.functional.classification import multiclass_f1_score, multiclass_recall

from attngraft.tasks.collecting import CollectingEvaluator
from attngraft.tasks.images.splits import LabelledSplit
from attngraft.tasks.task import Evaluation, Predictions


class ClassificationEvaluator(CollectingEvaluator):
    """Metrics are shares (0 to 1): `top1`, `top5` (of more than five classes), `balanced_accuracy` and `macro_f1` (means
    over the classes that occur, of the share found of each, and of each one's F1), and `loss` (training's, without
    smoothing and class weights). Each example's score is its part of `primary`: the mean of the scores is that metric."""

    def __init__(self, split: LabelledSplit, *, primary: str = "top1") -> None:
        super().__init__(split)
        self.names, self.classes, self.primary = split.names, len(split.classes), primary

    def result(self) -> Evaluation:
        """The metrics and predictions.

        Raises:
            TrainingError: some examples were never evaluated.
        """
        kept = self.collected()
        target, top = kept["target"], kept["top"]
        hit = top == target[:, None]
        metrics = {"top1": float(hit[:, 0].mean())}
        if self.classes > 5:
            metrics["top5"] = float(hit.any(axis=1).mean())
        metrics["balanced_accuracy"] = balanced_accuracy(top[:, 0], target, classes=self.classes)
        metrics["macro_f1"] = macro_f1(top[:, 0], target, classes=self.classes)
        metrics["loss"] = float(kept["loss"].mean(dtype=np.float64))
        metrics = {self.primary: metrics[self.primary], **metrics}  # first, so that logs of one metric show it
        arrays = {"target": target, "predicted": top[:, 0], "confidence": kept["confidence"]}
        arrays |= {"logits": kept["logits"]} if "logits" in kept else {"top5": top}
        scores = {
            "top1": hit[:, 0],
            "top5": hit.any(axis=1),
            "balanced_accuracy": hit[:, 0] * class_shares(target),
            "loss": kept["loss"],
        }
        predictions = Predictions(
            names=list(self.names),
            score=scores[self.primary].astype(np.float64),
            binary=self.primary in ("top1", "top5"),
            arrays=arrays,
        )
        return Evaluation(metrics=metrics, predictions=predictions)


def class_shares(target: np.ndarray) -> np.ndarray:
    """What finding each example adds to the mean of recalls, as a multiple of 1 / N: N / (classes that occur * its class's
    count); (N,), of mean 1."""
    classes, place, counts = np.unique(target, return_inverse=True, return_counts=True)
    shares: np.ndarray = (len(target) / (len(classes) * counts))[place]
    return shares


# torchmetrics' own macro averages would also count classes that are only predicted


def balanced_accuracy(predicted: np.ndarray, target: np.ndarray, *, classes: int) -> float:
    """Mean recall of the classes that occur in `target`."""
    recall = multiclass_recall(
        torch.from_numpy(predicted.copy()), torch.from_numpy(target.copy()), num_classes=classes, average="none"
    )
    return float(recall[np.unique(target)].double().mean())


def macro_f1(predicted: np.ndarray, target: np.ndarray, *, classes: int) -> float:
    """Mean F1 = 2 precision recall / (precision + recall) of the classes that occur in `target`."""
    f1 = multiclass_f1_score(
        torch.from_numpy(predicted.copy()), torch.from_numpy(target.copy()), num_classes=classes, average="none"
    )
    return float(f1[np.unique(target)].double().mean())
