"""Base class of single-label classification: loss, statistics, metrics and report sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from attngraft.errors import ConfigError
from attngraft.results.column_rules import COUNT, SHARE, ColumnRules
from attngraft.results.measured import Measured
from attngraft.results.records import RecordTable
from attngraft.results.sections import Metric, Section
from attngraft.results.study import Chance
from attngraft.tasks.classification.evaluator import TOP, by_frequency, measure, records, sections
from attngraft.tasks.classification.losses import class_weights, training_loss
from attngraft.tasks.heads import mean_logits
from attngraft.tasks.logits import LogitsTask
from attngraft.tasks.task import Batch, Serving


class LabelTask(LogitsTask):
    """Classification with one label per example; subclasses load the examples."""

    primary = "top1"  # default; the recipe can set another metric
    metrics: ClassVar = {
        "top1": Metric(label="top-1 accuracy", column="top-1", share=True),
        "top5": Metric(label="top-5 accuracy", column="top-5", share=True),
        "balanced_accuracy": Metric(label="balanced accuracy", column="balanced", share=True),
        "macro_f1": Metric(label="macro F1", share=True),
        "loss": Metric(label="loss", higher_is_better=False),
    }
    column_rules = ColumnRules(
        ranges={**dict.fromkeys(("target", "predicted", "top5", "loss"), COUNT), "confidence": SHARE}, truth=["target"]
    )
    noun: ClassVar[str]  #: name of an example in the report

    def __init__(self, config: Any, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self._loss = training_loss(config.loss)
        self.activation = "sigmoid" if config.loss.name == "bce" else "softmax"

    def set_classes(self, classes: Sequence[str], counts: np.ndarray) -> None:
        """Set the classes and the loss; called by `load`.

        Args:
            classes: names of the classes.
            counts: number of training examples of each class, (classes,).

        Raises:
            ConfigError: there are too few classes for the primary metric, or a weight is given for an unknown class.
        """
        self._classes = len(classes)
        if self.primary == "top5" and self._classes <= TOP:
            raise ConfigError(
                f"task.metrics.primary: top5 needs more than five classes, but the data have {self._classes}; use --set "
                "task.metrics.primary=top1"
            )
        self._loss = training_loss(self.config.loss, class_weights(self.config.loss, counts, classes))

    def predict(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the columns of `evaluator.records`: `target`, `predicted`, `confidence`, `loss`, ..."""
        logits = mean_logits(outputs, classes=self._classes)
        return records(logits, batch["target"], loss=self.config.loss, stored=self.config.metrics.predictions)

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        return measure(table, classes=len(facts["classes"]))

    def chance(self, table: RecordTable, facts: Mapping[str, Any]) -> Chance:
        """Return the metrics of the class frequencies in the training data as probabilities of every example."""
        counts = np.array([facts["counts"]["train"][name] for name in facts["classes"]])
        measured = measure(by_frequency(table, counts, loss=self.config.loss), classes=len(counts))
        return Chance(description=f"always the class with the most training {self.noun}s", values=dict(measured.values))

    def sections(self, predictions: Sequence[Mapping[str, Any]], *, facts: Mapping[str, Any]) -> list[Section]:
        """Return recall, precision and F1 by class, the confusion matrix, and calibration."""
        return sections(predictions, classes=facts["classes"], counts=facts["counts"]["train"], noun=self.noun)

    @classmethod
    def from_serving(cls, serving: Serving) -> tuple[dict[str, Any], dict[str, Any]]:
        section, facts = super().from_serving(serving)
        return section | ({"loss": {"name": "bce"}} if serving.activation == "sigmoid" else {}), facts
