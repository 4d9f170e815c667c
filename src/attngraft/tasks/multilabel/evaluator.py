"""Average precision per image and per class, F1 and loss over a split, each example counted once."""

from __future__ import annotations

import numpy as np

from attngraft.tasks.calibration import share_or_none
from attngraft.tasks.collecting import CollectingEvaluator
from attngraft.tasks.images.splits import LabelledSplit
from attngraft.tasks.multilabel.scores import (
    class_average_precision,
    image_average_precision,
    label_counts,
    mean_of_known,
)
from attngraft.tasks.task import Evaluation, Predictions


class MultiLabelEvaluator(CollectingEvaluator):
    """Metrics are shares (0 to 1).

    `image_ap`, usually the primary one, is the mean over images of each image's average precision: a mean over examples,
    so that paired statistics over examples apply to it (as to `loss`). Beside it `map` (mean over classes of the average
    precision), `macro_f1` (mean over classes) and `micro_f1` (of all decisions together) at `threshold`; means over classes
    take those that occur. `loss` is the binary cross entropy, mean over classes.
    """

    def __init__(self, split: LabelledSplit, *, threshold: float, primary: str = "image_ap") -> None:
        super().__init__(split)
        self.names, self.threshold, self.primary = split.names, threshold, primary

    def result(self) -> Evaluation:
        """The metrics and predictions.

        Raises:
            TrainingError: some examples were never evaluated.
        """
        kept = self.collected()
        logits, target = kept["logits"], kept["target"]
        precision = image_average_precision(logits, target)
        counts = label_counts(logits, target, threshold=self.threshold)
        there, both = counts["there"], counts["there"] + counts["given"]
        f1 = [value if n else None for value, n in zip(share_or_none(2 * counts["right"], both), there, strict=True)]
        metrics = {
            "image_ap": float(precision.mean()),
            "map": mean_of_known(class_average_precision(logits, target)),
            "macro_f1": mean_of_known(f1),
            "micro_f1": float(2 * counts["right"].sum() / both.sum()),
            "loss": float(kept["loss"].mean(dtype=np.float64)),
        }
        metrics = {self.primary: metrics[self.primary], **metrics}  # first, so that logs of one metric show it
        arrays = {"target": target, "logits": logits}
        score = precision if self.primary == "image_ap" else kept["loss"].astype(np.float64)
        return Evaluation(
            metrics=metrics,
            predictions=Predictions(names=list(self.names), score=score, binary=False, arrays=arrays),
        )
