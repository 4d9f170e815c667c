"""Base class of tasks on images with labels or numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from attngraft.errors import ConfigError
from attngraft.strict import read
from attngraft.tasks.images.distillation import ImageDistillation, TeacherLoss
from attngraft.tasks.images.heads import mean_logits
from attngraft.tasks.images.inputs import HostInput, ImageBatches, ImagePixels
from attngraft.tasks.images.loading import LoadedImages, load_images
from attngraft.tasks.images.opening import TrainVal
from attngraft.tasks.images.sampling import Sampling
from attngraft.tasks.images.sources.splitting import save_split
from attngraft.tasks.images.splits import LabelledSplit
from attngraft.tasks.task import Batch, Distillation, Serving, Split, SuiteSupport, Task


class ImageTask(Task):
    """Image task: loads images, normalizes batches and saves random splits; subclasses add labels, loss and metrics."""

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"analyses", "data_check", "explorer", "export", "halving", "predict"}
    )
    config_class: ClassVar[type[Any]]  #: dataclass of the recipe section, with `data`, `augment`, `metrics`
    multilabel: ClassVar[bool] = False  #: whether images have several labels
    numeric: ClassVar[bool] = False  #: whether images have numbers instead of classes
    sources: ClassVar[str] = "digits, a folder, a .tar, an .npz, a .csv, timm:<name>"  #: for messages
    suite_columns: ClassVar[tuple[str, ...]]  #: `SuiteSupport.columns`
    teacher_loss: ClassVar[TeacherLoss]
    activation: Literal["softmax", "sigmoid", "none"]  #: `Serving.activation`
    threshold: float | None = None  #: `Serving.threshold`
    _batches: ImageBatches  # set by load
    _input: HostInput

    def __init__(self, config: Any, *, seed: int) -> None:
        self.config, self.seed = config, seed
        self.primary = config.metrics.primary
        self.higher_is_better = self.metrics[self.primary].higher_is_better
        self._classes = 0  # set by load
        self._saved_split: Path | None = None
        self._random_split: TrainVal | None = None
        self._eval_crop_pct: float | None = None  # None: chosen by the size of the images

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, seed: int) -> ImageTask:
        section = {key: value for key, value in config.items() if key != "name"}
        if "data" not in section:
            raise ConfigError(
                "task.data: missing; give --data SOURCE on the command line, or task: {data: {source: ...}} in the recipe "
                f"({cls.sources})"
            )
        return cls(read(cls.config_class, section, where="task"), seed=seed)

    def load_images(
        self, model_data_config: Mapping[str, Any], *, sampling: Sampling | None = None
    ) -> tuple[LoadedImages, HostInput]:
        """Load the images and store all state that does not depend on the loss; called by `load` of subclasses."""
        host = HostInput.from_model(model_data_config)
        loaded = load_images(
            self.config.data,
            self.config.augment,
            host=host,
            seed=self.seed,
            task=self.name,
            multilabel=self.multilabel,
            sampling=sampling,
            saved_split=self._saved_split,
            eval_crop_pct=self._eval_crop_pct,
        )
        self._classes, self._random_split, self._input = len(loaded.classes), loaded.random_split, host
        return loaded, host

    def load_split(self, path: Path) -> None:
        self._saved_split = path if path.is_file() else None

    def use_fitted_transform(self, facts: Mapping[str, Any]) -> None:
        self._eval_crop_pct = facts.get("input", {}).get("eval_crop_pct")

    def save_split(self, path: Path) -> bool:
        if self._random_split is not None and self._saved_split != path:
            save_split(path, *self._random_split)
        return self._random_split is not None

    def to_model(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return self._batches.to_model(batch)

    def prepare(self, batch: Batch, *, epoch: int, step: int) -> Batch:
        return self._batches.prepare(batch, epoch=epoch, step=step)

    def distillation(self, *, model_data_config: Mapping[str, Any]) -> Distillation:
        teacher = HostInput.from_model(model_data_config)
        return ImageDistillation(
            self._batches, student=self._input, teacher=teacher, loss=self.teacher_loss, classes=self._classes
        )

    def serving(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> Serving:
        """Return a description of the model's inputs, including the evaluation transform, and of its outputs."""
        host = HostInput.from_model(model_data_config)
        return Serving(
            kind="images",
            input={
                "size": [host.channels, host.height, host.width],
                "mean": list(host.mean),
                "std": list(host.std),
                "interpolation": host.interpolation,
                "crop_pct": facts["input"]["eval_crop_pct"],  # chosen by the size of the training images
                "crop_mode": host.crop_mode,
            },
            activation=self.activation,
            classes=tuple(facts["classes"]),
            threshold=self.threshold,
        )

    @classmethod
    def from_serving(cls, serving: Serving) -> tuple[dict[str, Any], dict[str, Any]]:
        shown = dict(serving.input)
        return {}, {"classes": list(serving.classes), "input": {**shown, "eval_crop_pct": shown["crop_pct"]}}

    def suite_support(self) -> SuiteSupport:
        return SuiteSupport(
            pixels=ImagePixels(self._input),
            losses=lambda outputs, batch: self.example_losses(
                mean_logits(outputs, classes=self._classes), batch["target"]
            ),
            columns=self.suite_columns,
            subset=_subset,
        )

    @abstractmethod
    def example_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the evaluation loss of each example, (B,)."""


def _subset(split: Split, indices: np.ndarray) -> Split:
    if not isinstance(split, LabelledSplit):
        raise ConfigError(f"task: cannot take a subset of a {type(split).__name__}, which belongs to another task")
    return split.subset(indices)
