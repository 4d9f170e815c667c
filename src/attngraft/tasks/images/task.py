"""Base class of tasks on images with labels or numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from attngraft.cache import DecodedCache
from attngraft.errors import ConfigError
from attngraft.tasks.heads import mean_logits
from attngraft.tasks.images.distillation import ImageDistillation, TeacherLoss
from attngraft.tasks.images.inputs import HostInput, ImageBatches, Mix
from attngraft.tasks.images.loading import LoadedImages, load_images
from attngraft.tasks.images.sampling import Sampling
from attngraft.tasks.images.splits import LabelledSplit
from attngraft.tasks.images.suites import catalog
from attngraft.tasks.images.suites.pixels import ImagePixels
from attngraft.tasks.logits import LogitsTask
from attngraft.tasks.suites import Suite, SuiteSupport
from attngraft.tasks.task import Batch, Distillation, Serving, Split, TaskData


class ImageTask(LogitsTask):
    """Base class that loads images, normalizes batches and saves random splits."""

    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"analyses", "data_check", "explorer", "export", "folds", "halving", "predict"}
    )
    multilabel: ClassVar[bool] = False  #: whether an image can have several labels
    numeric: ClassVar[bool] = False  #: whether labels are numbers instead of classes
    sources = "digits, a folder, a .tar, an .npz, a .csv, timm:<name>"
    suite_columns: ClassVar[tuple[str, ...]]  #: `SuiteSupport.columns`
    teacher_loss: ClassVar[TeacherLoss]
    threshold: float | None = None  #: `Serving.threshold`
    _batches: ImageBatches  # set by load
    _input: HostInput

    def __init__(self, config: Any, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self._cache: DecodedCache | None = None
        self._eval_crop_pct: float | None = None  # None: chosen by the size of the images

    def load_images(self, model_data_config: Mapping[str, Any], *, sampling: Sampling | None = None) -> LoadedImages:
        """Load the images and set the state that all image tasks share; called by `load` of subclasses."""
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
            cache=self._cache,
        )
        self._classes, self._random_split, self._input = len(loaded.classes), loaded.random_split, host
        return loaded

    def task_data(
        self, loaded: LoadedImages, mix: Mix | None = None, *, facts: Mapping[str, Any] | None = None
    ) -> TaskData:
        """Return the result of `load` with additional `facts`; training batches are mixed by `mix`."""
        self._batches = ImageBatches(self._input, mix)
        return TaskData(
            train=loaded.train,
            val=loaded.val,
            test=loaded.test,
            model_args={"num_classes": self._classes},
            facts={**loaded.facts, **(facts or {})},
            decoded_bytes=loaded.decoded_bytes,
            refusal=loaded.refusal,
        )

    def use_cache(self, cache: DecodedCache) -> None:
        self._cache = cache

    def use_fitted_transform(self, facts: Mapping[str, Any]) -> None:
        self._eval_crop_pct = facts.get("input", {}).get("eval_crop_pct")

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
        crop_pct = facts["input"]["eval_crop_pct"]  # chosen by the size of the training images
        return Serving(
            kind="images",
            input={**host.facts(), "crop_pct": crop_pct, "crop_mode": host.crop_mode},
            activation=self.activation,
            classes=tuple(facts["classes"]),
            threshold=self.threshold,
        )

    @classmethod
    def from_serving(cls, serving: Serving) -> tuple[dict[str, Any], dict[str, Any]]:
        section, facts = super().from_serving(serving)
        facts["input"]["eval_crop_pct"] = serving.input["crop_pct"]
        return section, facts

    @classmethod
    def suites(cls) -> Mapping[str, Suite]:
        return catalog.suites()

    def suite_support(self) -> SuiteSupport:
        return SuiteSupport(
            access=ImagePixels(self._input),
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
        raise ConfigError(f"task: cannot take a subset of a {type(split).__name__}; use a split of labeled images")
    return split.subset(indices)
