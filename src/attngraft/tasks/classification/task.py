"""Single-label image classification."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from attngraft.tasks.classification.config import ClassificationConfig
from attngraft.tasks.classification.labels import LabelTask
from attngraft.tasks.classification.losses import example_losses, teacher_loss
from attngraft.tasks.classification.suites import class_folders, open_test_set_of
from attngraft.tasks.facts import ImageFacts
from attngraft.tasks.images.inputs import HostInput, ImageBatches
from attngraft.tasks.images.mixing import Mixing
from attngraft.tasks.images.sources import Images
from attngraft.tasks.images.splits import ImageSplit, LabelledSplit
from attngraft.tasks.images.task import ImageTask
from attngraft.tasks.images.transforms import eval_transform
from attngraft.tasks.suites import JudgedModel, Suite, SuiteExamples
from attngraft.tasks.task import TaskData


class Classification(LabelTask, ImageTask):
    """Classification of images with one label each.

    A batch is `{"image": (B, C, H, W), "target": (B,)}`; after mixing, `target` is (B, classes).
    """

    name = "classification"
    default_recipe = "default"
    capabilities = ImageTask.capabilities | {"attacks", "calibration", "labels", "suites", "teacher"}
    config: ClassificationConfig
    config_class = ClassificationConfig
    facts_class = ImageFacts
    noun = "image"
    suite_columns = ("target", "predicted", "confidence")
    teacher_loss = staticmethod(teacher_loss)

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        config = self.config
        loaded = self.load_images(model_data_config, sampling=config.sampling)
        self.set_classes(loaded.classes, loaded.counts)
        mix = None
        if config.augment.mixes:
            mix = Mixing(config.augment, classes=self._classes, smoothing=config.loss.smoothing, seed=self.seed)
        return self.task_data(loaded, mix)

    def example_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        return example_losses(self.config.loss, logits, target)

    def calibration_inputs(self, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the confidence of each prediction and whether it is correct, both (N, 1)."""
        return columns["confidence"][:, None], (columns["predicted"] == columns["target"])[:, None]

    def suite_examples(self, suite: Suite | None, source: str | None, model: JudgedModel) -> SuiteExamples | None:
        """Open a test set, or a folder with one folder per class of the model."""
        if suite is not None:
            return open_test_set_of(suite, source, model, open_test=self.open_test)
        images = None if source is None else class_folders(Path(source), model.facts.get("classes", ()))
        if images is None:
            return None
        split = self.open_test(images, facts=model.facts, model_data_config=model.data_config)
        return SuiteExamples(split=split, facts=model.facts)

    def open_test(
        self, images: Images, *, facts: Mapping[str, Any], model_data_config: Mapping[str, Any]
    ) -> LabelledSplit:
        """Return a split of other images, to evaluate a model without its training data; replaces `load`.

        Args:
            images: the images; labels are indices of the run's classes.
            facts: the facts that `load` returned for the trained model's run.
            model_data_config: as in `load`.
        """
        host = HostInput.from_model(model_data_config)
        self._classes, self._input, self._batches = len(facts["classes"]), host, ImageBatches(host)
        transform = eval_transform(host, crop_pct=facts["input"]["eval_crop_pct"])
        return ImageSplit(images, transform, host=host, seed=self.seed)
