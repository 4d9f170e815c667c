"""Image classification with any number of labels per image."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attngraft.errors import DataError
from attngraft.results.column_rules import COUNT, SHARE, ColumnRules
from attngraft.results.measured import Measured
from attngraft.results.records import RecordTable
from attngraft.results.sections import Metric, Section
from attngraft.results.study import Chance
from attngraft.tasks.facts import ImageFacts
from attngraft.tasks.heads import mean_logits
from attngraft.tasks.images.mixing import MultiLabelMixing
from attngraft.tasks.images.task import ImageTask
from attngraft.tasks.multilabel.config import MultiLabelConfig
from attngraft.tasks.multilabel.evaluator import measure, sections
from attngraft.tasks.multilabel.losses import example_losses, positive_weights, teacher_loss, training_loss
from attngraft.tasks.task import Batch, Serving, TaskData


class MultiLabel(ImageTask):
    """Multi-label classification of images.

    A batch is `{"image": (B, C, H, W), "target": (B, classes)}`; targets are uint8 0 or 1, or floats after mixing.
    """

    name = "multilabel"
    default_recipe = "multilabel"
    primary = "image_ap"  # default; the recipe can set another metric
    metrics: ClassVar = {
        "image_ap": Metric(label="average precision by image", column="image AP", share=True),
        "map": Metric(label="mean average precision", column="mAP", share=True),
        "macro_f1": Metric(label="macro F1", share=True),
        "micro_f1": Metric(label="micro F1", share=True),
        "loss": Metric(label="loss", higher_is_better=False),
    }
    column_rules = ColumnRules(ranges={"target": SHARE, "loss": COUNT}, truth=["target"])
    capabilities = ImageTask.capabilities | {"attacks", "calibration", "suites", "teacher"}
    config: MultiLabelConfig
    config_class = MultiLabelConfig
    facts_class = ImageFacts
    multilabel = True
    activation = "sigmoid"
    suite_columns = ("target", "logits")
    teacher_loss = staticmethod(teacher_loss)

    def __init__(self, config: MultiLabelConfig, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self.threshold = config.metrics.threshold
        self._loss = training_loss(config.loss)

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        config = self.config
        loaded = self.load_images(model_data_config)
        for name, split in loaded.splits.items():
            if not split.labels.any():
                what = {"train": "training", "val": "validation"}.get(name, name)
                raise DataError(f"{config.data.source}: no {what} image has a label; check the column of labels")
        weights = positive_weights(config.loss, loaded.counts, images=len(loaded.train), classes=loaded.classes)
        self._loss = training_loss(config.loss, weights)
        mix = MultiLabelMixing(config.augment, seed=self.seed) if config.augment.mixes else None
        per_image = {name: round(float(split.labels.sum(1).mean()), 3) for name, split in loaded.splits.items()}
        return self.task_data(loaded, mix, facts={"labels_per_image": per_image})

    @classmethod
    def from_serving(cls, serving: Serving) -> tuple[dict[str, Any], dict[str, Any]]:
        section, facts = super().from_serving(serving)
        return section | {"metrics": {"threshold": serving.threshold}}, facts

    def predict(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return `target` and `logits` (B, classes) and `loss` (B,)."""
        logits = mean_logits(outputs, classes=self._classes)
        return {"target": batch["target"], "logits": logits, "loss": self.example_losses(logits, batch["target"])}

    def example_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        return example_losses(logits, target)

    def calibration_inputs(self, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the probability of each label and whether the image has it, both (N, classes)."""
        return 1 / (1 + np.exp(-columns["logits"].astype(np.float64))), columns["target"] > 0

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        return measure(table, threshold=self.config.metrics.threshold)

    def chance(self, table: RecordTable, facts: Mapping[str, Any]) -> Chance:
        """Return the metrics of the labels' frequencies in the training data as probabilities of every image."""
        counts = np.array([facts["counts"]["train"][name] for name in facts["classes"]])
        images = facts["sizes"]["train"]
        shares = np.clip(counts, 0.5, images - 0.5) / images  # finite logits
        logits = np.log(shares / (1 - shares))
        target = table.array("target")
        columns: dict[str, np.ndarray] = {"target": target, "logits": np.broadcast_to(logits, target.shape)}
        losses = example_losses(torch.from_numpy(logits).expand(target.shape), torch.from_numpy(target))
        by_frequency = RecordTable(names=table.names, columns={**columns, "loss": losses.numpy()})
        values = dict(self.measure(by_frequency, facts).values)
        return Chance(description="every image's labels ranked by their number of training images", values=values)

    def sections(self, predictions: Sequence[Mapping[str, Any]], *, facts: Mapping[str, Any]) -> list[Section]:
        """Return average precision, recall, precision and F1 by class, and calibration."""
        return sections(
            predictions,
            classes=facts["classes"],
            threshold=self.config.metrics.threshold,
            counts=facts["counts"]["train"],
        )
