"""Top-1, top-5, balanced accuracy and loss over a split, each example counted once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_recall

from attngraft.errors import TrainingError
from attngraft.tasks.images.splits import LabelledSplit
from attngraft.tasks.task import Evaluation, Evaluator, Predictions


class ClassificationEvaluator(Evaluator):
    """Metrics are shares (0 to 1): `top1`, `top5` (of more than five classes), `balanced_accuracy` (the mean over the
    classes that occur of the share found of each), and `loss` (training's, without smoothing)."""

    def __init__(self, split: LabelledSplit) -> None:
        self.split = split
        self.seen = np.zeros(len(split), dtype=bool)
        self.kept: dict[str, np.ndarray] = {}

    def update(self, outputs: Mapping[str, Tensor], indices: Tensor) -> None:
        positions = indices.cpu().numpy()
        if len(positions) and not 0 <= positions.min() <= positions.max() < len(self.split):
            raise TrainingError(
                f"evaluation: indices {positions.min()} to {positions.max()} of {len(self.split)} examples"
            )
        first, rows = np.unique(positions, return_index=True)
        rows, first = rows[~self.seen[first]], first[~self.seen[first]]
        for name, tensor in outputs.items():
            values = tensor.detach().cpu().numpy()
            if name not in self.kept:
                self.kept[name] = np.zeros((len(self.split), *values.shape[1:]), dtype=values.dtype)
            self.kept[name][first] = values[rows]
        self.seen[first] = True

    def result(self) -> Evaluation:
        """The metrics and predictions.

        Raises:
            TrainingError: some examples were never evaluated.
        """
        if not self.seen.all():
            missing = np.flatnonzero(~self.seen)
            names = ", ".join(self.split.name(int(index)) for index in missing[:3])
            raise TrainingError(f"evaluation: {len(missing)} of {len(self.split)} examples are missing ({names}, ...)")
        target, top = self.kept["target"], self.kept["top"]
        hit = top == target[:, None]
        metrics = {"top1": float(hit[:, 0].mean())}
        if len(self.split.classes) > 5:
            metrics["top5"] = float(hit.any(axis=1).mean())
        metrics["balanced_accuracy"] = balanced_accuracy(top[:, 0], target, classes=len(self.split.classes))
        metrics["loss"] = float(self.kept["loss"].mean(dtype=np.float64))
        arrays = {"target": target, "predicted": top[:, 0]}
        arrays |= {"logits": self.kept["logits"]} if "logits" in self.kept else {"top5": top}
        score = hit[:, 0].astype(np.float64)
        return Evaluation(
            metrics=metrics,
            predictions=Predictions(names=list(self.split.names), score=score, binary=True, arrays=arrays),
        )


def balanced_accuracy(predicted: np.ndarray, target: np.ndarray, *, classes: int) -> float:
    """Mean recall of the classes that occur in `target`."""
    # torchmetrics' own macro average would also count classes that are only predicted
    recall = multiclass_recall(
        torch.from_numpy(predicted.copy()), torch.from_numpy(target.copy()), num_classes=classes, average="none"
    )
    return float(recall[np.unique(target)].double().mean())
