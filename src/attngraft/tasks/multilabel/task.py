"""Image classification with any number of labels per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attngraft.errors import ConfigError, DataError
from attngraft.results.sections import Metric, Section
from attngraft.tasks.images.batches import ImageBatches
from attngraft.tasks.images.heads import heads_of, mean_logits
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.keeping import KeptSplit
from attngraft.tasks.images.loading import load_images, read_task
from attngraft.tasks.images.probe import ImagePixels, image_part, many_beliefs
from attngraft.tasks.images.serving import image_serving
from attngraft.tasks.images.splits import LabelledSplit
from attngraft.tasks.images.teaching import ImageTeaching
from attngraft.tasks.multilabel.config import MultiLabelConfig
from attngraft.tasks.multilabel.evaluator import MultiLabelEvaluator
from attngraft.tasks.multilabel.losses import example_losses, positive_weights, teacher_loss, training_loss
from attngraft.tasks.multilabel.mixing import LabelMixing
from attngraft.tasks.multilabel.sections import sections
from attngraft.tasks.probe import Probe
from attngraft.tasks.task import Batch, Evaluator, Serving, Split, Task, TaskData
from attngraft.tasks.teaching import Teaching


class MultiLabel(Task):
    """A batch is `{"image": (B, C, H, W), "target": (B, classes)}`: uint8 0 or 1, floats after mixing."""

    name = "multilabel"
    primary = "image_ap"  # unless the recipe says otherwise
    metrics: ClassVar = {
        "image_ap": Metric(label="average precision by image", column="image AP", share=True),
        "map": Metric(label="mean average precision", column="mAP", share=True),
        "macro_f1": Metric(label="macro F1", share=True),
        "micro_f1": Metric(label="micro F1", share=True),
        "loss": Metric(label="loss"),
    }
    _batches: ImageBatches  # known when the data are
    _input: HostInput

    def __init__(self, config: MultiLabelConfig, *, seed: int) -> None:
        self.config, self.seed = config, seed
        self.primary, self.higher_is_better = config.metrics.primary, config.metrics.primary != "loss"
        self._loss = training_loss(config.loss)
        self._classes = 0  # known when the data are
        self._split = KeptSplit()
        self._crop: float | None = None  # decided by the data, unless a run's is followed

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, seed: int) -> MultiLabel:
        return cls(read_task(MultiLabelConfig, config), seed=seed)

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        config, host = self.config, HostInput.from_model(model_data_config)
        found = load_images(
            config.data,
            config.augment,
            host=host,
            seed=self.seed,
            task=self.name,
            multilabel=True,
            kept=self._split.path,
            eval_crop_pct=self._crop,
        )
        for part, split in (("training", found.train), ("validation", found.val)):
            if not split.labels.any():
                raise DataError(f"{config.data.source}: no {part} image has a label; look at its column of labels")
        self._classes, self._split.drawn = len(found.classes), found.drawn
        weights = positive_weights(config.loss, found.counts, images=len(found.train), classes=found.classes)
        self._loss = training_loss(config.loss, weights)
        mix = LabelMixing(config.augment, seed=self.seed) if config.augment.mixes else None
        self._input, self._batches = host, ImageBatches(host, mix)
        labels = {
            part: float(split.labels.sum(1).mean()) for part, split in (("train", found.train), ("val", found.val))
        }
        return TaskData(
            train=found.train,
            val=found.val,
            model_args={"num_classes": self._classes},
            facts=found.facts | {"labels_per_image": {part: round(mean, 3) for part, mean in labels.items()}},
        )

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
        """`loss`: the mean over images and classes, and over both heads of a distilled host."""
        losses = [self._loss(head, batch["target"]) for head in heads_of(outputs, classes=self._classes)]
        return {"loss": torch.stack(losses).mean()}

    def predict(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """`target` and `logits` (B, classes), `loss` (B,)."""
        logits = mean_logits(outputs, classes=self._classes)
        return {"target": batch["target"], "logits": logits, "loss": example_losses(logits, batch["target"])}

    def teaching(self, *, model_data_config: Mapping[str, Any]) -> Teaching:
        teacher = HostInput.from_model(model_data_config)
        return ImageTeaching(
            self._batches, student=self._input, teacher=teacher, loss=teacher_loss, classes=self._classes
        )

    def serving(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> Serving:
        return image_serving(
            facts,
            model_data_config=model_data_config,
            activation="sigmoid",
            threshold=self.config.metrics.threshold,
        )

    def beliefs(self, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return many_beliefs(columns)

    def probe(self) -> Probe:
        return Probe(
            pixels=ImagePixels(self._input),
            losses=lambda outputs, batch: example_losses(mean_logits(outputs, classes=self._classes), batch["target"]),
            columns=("target", "logits"),
            part=image_part,
        )

    def evaluator(self, split: Split) -> Evaluator:
        if not isinstance(split, LabelledSplit):
            raise ConfigError(f"task: multilabel evaluates its own splits, not a {type(split).__name__}")
        return MultiLabelEvaluator(split, threshold=self.config.metrics.threshold, primary=self.primary)

    def sections(self, predictions: Sequence[Mapping[str, np.ndarray]], *, facts: Mapping[str, Any]) -> list[Section]:
        """Each class's average precision and F1, and how far probabilities can be believed."""
        return sections(
            predictions,
            classes=facts["classes"],
            threshold=self.config.metrics.threshold,
            counts=facts["counts"]["train"],
        )
