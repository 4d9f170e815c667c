"""Single-label image classification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from attngraft.errors import ConfigError
from attngraft.results.sections import Metric, Section
from attngraft.tasks.classification.config import ClassificationConfig
from attngraft.tasks.classification.evaluator import ClassificationEvaluator
from attngraft.tasks.classification.losses import class_weights, example_losses, teacher_loss, training_loss
from attngraft.tasks.classification.mixing import Mixing
from attngraft.tasks.classification.sections import sections
from attngraft.tasks.images.batches import ImageBatches
from attngraft.tasks.images.heads import heads_of, mean_logits
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.keeping import KeptSplit
from attngraft.tasks.images.loading import load_images, read_task
from attngraft.tasks.images.probe import ImagePixels, image_part, one_belief
from attngraft.tasks.images.serving import image_serving
from attngraft.tasks.images.sources import Images
from attngraft.tasks.images.splits import Common, ImageSplit, LabelledSplit
from attngraft.tasks.images.teaching import ImageTeaching
from attngraft.tasks.images.views import fixed_view
from attngraft.tasks.probe import Probe
from attngraft.tasks.task import Batch, Evaluator, Serving, Split, Task, TaskData
from attngraft.tasks.teaching import Teaching

LOGITS_LIMIT = 1000  #: classes up to which predictions keep all logits
TOP = 5


class Classification(Task):
    """Images with one label each. A batch is `{"image": (B, C, H, W), "target": (B,)}`; after mixing, `target` is
    (B, classes)."""

    name = "classification"
    primary = "top1"  # unless the recipe says otherwise
    metrics: ClassVar = {
        "top1": Metric(label="top-1 accuracy", column="top-1", share=True),
        "top5": Metric(label="top-5 accuracy", column="top-5", share=True),
        "balanced_accuracy": Metric(label="balanced accuracy", column="balanced", share=True),
        "macro_f1": Metric(label="macro F1", share=True),
        "loss": Metric(label="loss"),
    }
    _batches: ImageBatches  # known when the data are
    _input: HostInput

    def __init__(self, config: ClassificationConfig, *, seed: int) -> None:
        self.config, self.seed = config, seed
        self.primary, self.higher_is_better = config.metrics.primary, config.metrics.primary != "loss"
        self._loss = training_loss(config.loss)
        self._classes = 0  # known when the data are
        self._split = KeptSplit()
        self._crop: float | None = None  # decided by the data, unless a run's is followed

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, seed: int) -> Classification:
        return cls(read_task(ClassificationConfig, config), seed=seed)

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        config, host = self.config, HostInput.from_model(model_data_config)
        found = load_images(
            config.data,
            config.augment,
            host=host,
            seed=self.seed,
            task=self.name,
            multilabel=False,
            sampling=config.sampling,
            kept=self._split.path,
            eval_crop_pct=self._crop,
        )
        self._classes, self._split.drawn = len(found.classes), found.drawn
        if self.primary == "top5" and self._classes <= TOP:
            raise ConfigError(f"task.metrics.primary: top5 needs more than five classes, the data have {self._classes}")
        self._loss = training_loss(config.loss, class_weights(config.loss, found.counts, found.classes))
        smoothing = config.loss.smoothing
        mix = None
        if config.augment.mixes:
            mix = Mixing(config.augment, classes=self._classes, smoothing=smoothing, seed=self.seed)
        self._input, self._batches = host, ImageBatches(host, mix)
        return TaskData(train=found.train, val=found.val, model_args={"num_classes": self._classes}, facts=found.facts)

    def recall(self, path: Path) -> None:
        self._split.recall(path)

    def follow(self, facts: Mapping[str, Any]) -> None:
        self._crop = facts.get("input", {}).get("eval_crop_pct")

    def keep(self, path: Path) -> bool:
        return self._split.keep(path)

    def to_model(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return self._batches.to_model(batch)

    def prepare(self, batch: Batch, *, epoch: int, step: int) -> Batch:
        return self._batches.prepare(batch, epoch=epoch, step=step)

    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """`loss`: the mean over the batch, and over both heads of a distilled host."""
        heads = heads_of(outputs, classes=self._classes)
        losses = [self._loss(head, batch["target"]) for head in heads]
        return {"loss": torch.stack(losses).mean() if len(losses) > 1 else losses[0]}

    def predict(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """`target` (B,), `top` (B, up to 5) best classes, `confidence` (B,) in the first of them, `loss` (B,), and `logits`
        (B, classes) where they are kept."""
        logits = mean_logits(outputs, classes=self._classes)
        target, top = batch["target"], logits.topk(min(TOP, self._classes), dim=-1).indices
        probabilities = logits.sigmoid() if self._sigmoid else logits.softmax(dim=-1)
        found = {
            "target": target,
            "top": top,
            "confidence": probabilities.gather(1, top[:, :1])[:, 0],
            "loss": example_losses(self.config.loss, logits, target),
        }
        wanted = self.config.metrics.predictions
        if wanted == "logits" or (wanted == "auto" and self._classes <= LOGITS_LIMIT):
            found["logits"] = logits
        return found

    def teaching(self, *, model_data_config: Mapping[str, Any]) -> Teaching:
        teacher = HostInput.from_model(model_data_config)
        return ImageTeaching(
            self._batches, student=self._input, teacher=teacher, loss=teacher_loss, classes=self._classes
        )

    def serving(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> Serving:
        activation: Literal["softmax", "sigmoid"] = "sigmoid" if self._sigmoid else "softmax"
        return image_serving(facts, model_data_config=model_data_config, activation=activation)

    def beliefs(self, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return one_belief(columns)

    def probe(self) -> Probe:
        return Probe(
            pixels=ImagePixels(self._input),
            losses=lambda outputs, batch: example_losses(
                self.config.loss, mean_logits(outputs, classes=self._classes), batch["target"]
            ),
            columns=("target", "predicted", "confidence"),
            part=image_part,
        )

    def open_test(
        self, images: Images, *, facts: Mapping[str, Any], model_data_config: Mapping[str, Any]
    ) -> LabelledSplit:
        """A split of other images for a trained model, without the data that it was trained on; in place of `load`.

        Args:
            images: their labels are positions in the run's classes.
            facts: what `load` found when the run was trained.
            model_data_config: as in `load`.
        """
        host, classes = HostInput.from_model(model_data_config), tuple(facts["classes"])
        self._classes, self._input, self._batches = len(classes), host, ImageBatches(host)
        view = fixed_view(host, crop_pct=facts["input"]["eval_crop_pct"])
        return ImageSplit(images, view, common=Common(classes=classes, host=host, seed=self.seed))

    def evaluator(self, split: Split) -> Evaluator:
        if not isinstance(split, LabelledSplit):
            raise ConfigError(f"task: classification evaluates its own splits, not a {type(split).__name__}")
        return ClassificationEvaluator(split, primary=self.primary)

    def sections(self, predictions: Sequence[Mapping[str, np.ndarray]], *, facts: Mapping[str, Any]) -> list[Section]:
        """Each class's share found and F1, which classes are taken for which, and how far confidence can be believed."""
        return sections(predictions, classes=facts["classes"], counts=facts["counts"]["train"])

    @property
    def _sigmoid(self) -> bool:
        """Whether the loss makes each class's probability by itself."""
        return self.config.loss.name == "bce"
