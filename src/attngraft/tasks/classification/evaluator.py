"""Evaluation of classification: top-1, top-5, balanced accuracy, macro F1 and loss, each example counted once."""

from __future__ import annotations

import numpy as np
import torch
from torchmetrics.functional.classification import multiclass_f1_score, multiclass_recall

from attngraft.tasks.images.splits import LabelledSplit
from attngraft.tasks.task import CollectingEvaluator, Evaluation, Predictions


class ClassificationEvaluator(CollectingEvaluator):
    """Computes metrics as shares (0 to 1).

    `top1`, `top5` (with more than five classes), `balanced_accuracy` and `macro_f1` (means over the classes that occur, of
    recall and of F1), and `loss` (the training loss without smoothing and class weights). An example's score is its
    contribution to `primary`: the mean of the scores is that metric.
    """

    def __init__(self, split: LabelledSplit, *, primary: str = "top1") -> None:
        super().__init__(split)
        self.names, self.classes, self.primary = split.names, len(split.classes), primary

    def result(self) -> Evaluation:
        """Return metrics and predictions.

        Raises:
            TrainingError: some examples were not evaluated.
        """
        outputs = self.collected()
        target, top = outputs["target"], outputs["top"]
        hit = top == target[:, None]
        metrics = {"top1": float(hit[:, 0].mean())}
        if self.classes > 5:
            metrics["top5"] = float(hit.any(axis=1).mean())
        metrics["balanced_accuracy"] = balanced_accuracy(top[:, 0], target, classes=self.classes)
        metrics["macro_f1"] = macro_f1(top[:, 0], target, classes=self.classes)
        metrics["loss"] = float(outputs["loss"].mean(dtype=np.float64))
        metrics = {self.primary: metrics[self.primary], **metrics}  # first, so that logs of one metric show it
        arrays = {"target": target, "predicted": top[:, 0], "confidence": outputs["confidence"]}
        arrays |= {"logits": outputs["logits"]} if "logits" in outputs else {"top5": top}
        scores = {
            "top1": hit[:, 0],
            "top5": hit.any(axis=1),
            "balanced_accuracy": hit[:, 0] * class_shares(target),
            "loss": outputs["loss"],
        }
        predictions = Predictions(
            names=list(self.names),
            score=scores[self.primary].astype(np.float64),
            binary=self.primary in ("top1", "top5"),
            arrays=arrays,
        )
        return Evaluation(metrics=metrics, predictions=predictions)


def class_shares(target: np.ndarray) -> np.ndarray:
    """Return each example's weight in the mean of recalls: N / (classes that occur * size of its class); (N,), mean 1."""
    classes, index, counts = np.unique(target, return_inverse=True, return_counts=True)
    shares: np.ndarray = (len(target) / (len(classes) * counts))[index]
    return shares


# torchmetrics' macro averages would include classes that are only predicted


def balanced_accuracy(predicted: np.ndarray, target: np.ndarray, *, classes: int) -> float:
    """Return the mean recall of the classes that occur in `target`."""
    recall = multiclass_recall(
        torch.from_numpy(predicted.copy()), torch.from_numpy(target.copy()), num_classes=classes, average="none"
    )
    return float(recall[np.unique(target)].double().mean())


def macro_f1(predicted: np.ndarray, target: np.ndarray, *, classes: int) -> float:
    """Return the mean F1 = 2 precision recall / (precision + recall) of the classes that occur in `target`."""
    f1 = multiclass_f1_score(
        torch.from_numpy(predicted.copy()), torch.from_numpy(target.copy()), num_classes=classes, average="none"
    )
    return float(f1[np.unique(target)].double().mean())
