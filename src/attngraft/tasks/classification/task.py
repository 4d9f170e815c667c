"""Single-label image classification."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attngraft.errors import ConfigError
from attngraft.results.measured import Measured
from attngraft.results.records import RecordTable
from attngraft.results.sections import Metric, Section
from attngraft.tasks.classification.config import ClassificationConfig
from attngraft.tasks.classification.evaluator import TOP, measure, records, sections
from attngraft.tasks.classification.losses import class_weights, example_losses, teacher_loss, training_loss
from attngraft.tasks.images.heads import heads_of, mean_logits
from attngraft.tasks.images.inputs import HostInput, ImageBatches
from attngraft.tasks.images.mixing import Mixing
from attngraft.tasks.images.sources import Images
from attngraft.tasks.images.splits import ImageSplit, LabelledSplit, SplitSettings
from attngraft.tasks.images.task import ImageTask
from attngraft.tasks.images.transforms import eval_transform
from attngraft.tasks.task import Batch, Serving, TaskData


class Classification(ImageTask):
    """Classification of images with one label each.

    A batch is `{"image": (B, C, H, W), "target": (B,)}`; after mixing, `target` is (B, classes).
    """

    name = "classification"
    default_recipe = "default"
    primary = "top1"  # default; the recipe may choose another
    metrics: ClassVar = {
        "top1": Metric(label="top-1 accuracy", column="top-1", share=True),
        "top5": Metric(label="top-5 accuracy", column="top-5", share=True),
        "balanced_accuracy": Metric(label="balanced accuracy", column="balanced", share=True),
        "macro_f1": Metric(label="macro F1", share=True),
        "loss": Metric(label="loss", higher_is_better=False),
    }
    capabilities = ImageTask.capabilities | {"attacks", "calibration", "labels", "suites", "teacher"}
    config: ClassificationConfig
    config_class = ClassificationConfig
    multilabel = False
    suite_columns = ("target", "predicted", "confidence")
    teacher_loss = staticmethod(teacher_loss)

    def __init__(self, config: ClassificationConfig, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self._loss = training_loss(config.loss)
        self.activation = "sigmoid" if config.loss.name == "bce" else "softmax"

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        config = self.config
        loaded, host = self.load_images(model_data_config, sampling=config.sampling)
        if self.primary == "top5" and self._classes <= TOP:
            raise ConfigError(f"task.metrics.primary: top5 needs more than five classes, the data have {self._classes}")
        self._loss = training_loss(config.loss, class_weights(config.loss, loaded.counts, loaded.classes))
        mix = None
        if config.augment.mixes:
            mix = Mixing(config.augment, classes=self._classes, smoothing=config.loss.smoothing, seed=self.seed)
        self._batches = ImageBatches(host, mix)
        model_args = {"num_classes": self._classes}
        return TaskData(train=loaded.train, val=loaded.val, model_args=model_args, facts=loaded.facts)

    @classmethod
    def from_serving(cls, serving: Serving) -> tuple[dict[str, Any], dict[str, Any]]:
        section, facts = super().from_serving(serving)
        return section | ({"loss": {"name": "bce"}} if serving.activation == "sigmoid" else {}), facts

    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the `loss`, averaged over the batch and, for a distilled host, over both heads."""
        heads = heads_of(outputs, classes=self._classes)
        losses = [self._loss(head, batch["target"]) for head in heads]
        return {"loss": torch.stack(losses).mean() if len(losses) > 1 else losses[0]}

    def predict(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return `target`, `predicted`, its `confidence`, and `loss`, (B,) each, the `top5` best classes (B, up to 5), and
        `logits` (B, classes) if they are stored."""
        logits = mean_logits(outputs, classes=self._classes)
        return records(logits, batch["target"], loss=self.config.loss, stored=self.config.metrics.predictions)

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        return measure(table, classes=len(facts["classes"]))

    def example_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        return example_losses(self.config.loss, logits, target)

    def calibration_inputs(self, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the confidence of each prediction and whether it is correct, both (N, 1)."""
        return columns["confidence"][:, None], (columns["predicted"] == columns["target"])[:, None]

    def open_test(
        self, images: Images, *, facts: Mapping[str, Any], model_data_config: Mapping[str, Any]
    ) -> LabelledSplit:
        """Return a split of other images for evaluating a trained model without its training data; replaces `load`.

        Args:
            images: the images; labels are indices of the run's classes.
            facts: the facts that `load` returned for the trained model's run.
            model_data_config: as in `load`.
        """
        host, classes = HostInput.from_model(model_data_config), tuple(facts["classes"])
        self._classes, self._input, self._batches = len(classes), host, ImageBatches(host)
        transform = eval_transform(host, crop_pct=facts["input"]["eval_crop_pct"])
        return ImageSplit(images, transform, settings=SplitSettings(classes=classes, host=host, seed=self.seed))

    def sections(self, predictions: Sequence[Mapping[str, Any]], *, facts: Mapping[str, Any]) -> list[Section]:
        """Return recall, precision and F1 by class, the confusion matrix, and calibration."""
        return sections(predictions, classes=facts["classes"], counts=facts["counts"]["train"])
