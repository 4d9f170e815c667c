"""Semantic segmentation: a decoder around the grafted host, and a class for every pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from attngraft.errors import ConfigError
from attngraft.files import printable
from attngraft.models.dense import padded_size, segmenter
from attngraft.results.measured import Measured
from attngraft.results.records import Records, RecordTable
from attngraft.results.sections import Metric, Section
from attngraft.results.study import Chance
from attngraft.strict import FieldError
from attngraft.tasks.configured import ConfiguredTask
from attngraft.tasks.facts import LARGEST, Facts
from attngraft.tasks.images.boundaries import IGNORED
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.sources.splitting import split_digest
from attngraft.tasks.memory import InferenceMemory
from attngraft.tasks.segmentation.codec import SegmentationCodec
from attngraft.tasks.segmentation.config import SegmentationConfig
from attngraft.tasks.segmentation.inference import predict_labels
from attngraft.tasks.segmentation.loss import row_block_loss
from attngraft.tasks.segmentation.memory import inference_memory
from attngraft.tasks.segmentation.metrics import RULES, mask_statistics, measure
from attngraft.tasks.segmentation.sections import sections
from attngraft.tasks.segmentation.source import Counted, MaskSource, count_labels, open_masks
from attngraft.tasks.segmentation.split import MaskSplit
from attngraft.tasks.segmentation.suites import MaskPixels, suites
from attngraft.tasks.suites import Suite, SuiteSupport
from attngraft.tasks.task import SPLIT_FILE, Batch, Loss, Split, StepContext, TaskData, unwrapped


@dataclass(frozen=True, kw_only=True)
class SegmentationFacts(Facts):
    """Facts of segmentation."""

    classes: list[str]
    colors: list[list[int]]
    pixels: dict[str, list[int]]  #: number of pixels of each split and class

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.classes) == len(self.colors) > 0:
            raise FieldError("colors", "must have a color for each of the classes")
        if any(len(color) != 3 or not all(0 <= part <= 255 for part in color) for color in self.colors):
            raise FieldError("colors", "must have three numbers from 0 to 255 for each color")
        if len(self.pixels.get("train", ())) != len(self.classes):
            raise FieldError("pixels.train", "must have a number of pixels for each of the classes")
        if any(not 0 <= number <= LARGEST for numbers in self.pixels.values() for number in numbers):
            raise FieldError("pixels", "must be numbers of pixels")


class Segmentation(ConfiguredTask):
    """Semantic segmentation.

    A training batch is `{"image": (B, C, H, W), "label": (B, H, W)}` of uint8. An evaluation batch has lists of images and
    label maps in their own sizes.
    """

    name = "segmentation"
    default_recipe = "small-segmentation"
    primary = "miou"  # default; the recipe can set another metric
    metrics: ClassVar = {
        "miou": Metric(label="mIoU", share=True),
        "macc": Metric(label="mean class accuracy", column="mAcc", share=True),
        "aacc": Metric(label="pixel accuracy", column="aAcc", share=True),
        "boundary_miou": Metric(label="mIoU at boundaries", column="boundary mIoU", share=True),
        "boundary_iou": Metric(label="Boundary IoU", share=True),
    }
    column_rules = RULES
    capabilities = frozenset({"analyses", "data_check", "explorer", "export", "folds", "halving", "predict", "suites"})
    has_light_inference = True
    sources = "a folder with images and masks, such as ./camvid, or a Hugging Face data set (hf:FOLDER)"
    config: SegmentationConfig
    config_class = SegmentationConfig
    facts_class = SegmentationFacts

    def __init__(self, config: SegmentationConfig, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self._host: HostInput  # set by load and codec
        self._classes = 0
        self._weights: Tensor | None = None
        self._test = config.test
        self._largest = (0, 0)  # width and height

    # -- data ----------------------------------------------------------------------------------------------------------

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        source = self.open_source()
        counted = {name: count_labels(images) for name, images in source.parts().items()}
        return self.task_data(source, counted, model_data_config=model_data_config)

    def task_data(
        self, source: MaskSource, counted: Mapping[str, Counted], *, model_data_config: Mapping[str, Any]
    ) -> TaskData:
        """Return the data of opened images with masks; `counted` are the counts of the labels of each split."""
        config, host = self.config, HostInput.from_model(model_data_config)
        self._random_split, self._host, self._classes = source.drawn, host, len(source.labels.classes)
        evaluated = [size for name, (_, sizes) in counted.items() if name != "train" for size in sizes]
        self._largest = max(evaluated, key=lambda size: size[0] * size[1])
        counts = {name: found for name, (found, _) in counted.items()}
        self._weights = self._class_weights(counts["train"][:-1])
        notes = [*source.notes, *source.copies()]
        fixed = self._fixed_size(model_data_config)
        if fixed:
            window = _sides(padded_size(config.augment.crop))
            notes.append(f"The host takes images of one size, so images are predicted in windows of {window}.")
        missing = [
            name for name, count in zip(source.labels.classes, counts["train"][:-1], strict=True) if count == 0
        ]  # fmt: skip
        if missing:
            notes.append(f"Classes without a training pixel: {', '.join(missing)}.")
        splits = {
            name: MaskSplit(images, host=host, augment=config.augment if name == "train" else None, seed=self.seed)
            for name, images in source.parts().items()
        }
        return TaskData(
            train=splits["train"],
            val=splits["val"],
            test=splits.get("test"),
            whole=(lambda: MaskSplit(source.train.joined(source.val), host=host))
            if source.drawn and not source.test
            else None,
            model_args={
                "num_classes": 0,
                **({"img_size": list(padded_size(config.augment.crop))} if fixed else model_data_config["any_size"]),
            },
            facts=printable(self._facts(source, counts, {name: sizes for name, (_, sizes) in counted.items()}, notes)),
        )

    def _fixed_size(self, host: Mapping[str, Any]) -> bool:
        """Return whether the host takes images of one size; they are then predicted in windows of the size of the crops."""
        fixed = host["any_size"] is None
        self._test = replace(self.config.test, mode="slide") if fixed else self.config.test
        return fixed

    def _class_weights(self, counts: np.ndarray) -> Tensor | None:
        given = self.config.loss.class_weights
        if given == "none":
            return None
        if isinstance(given, tuple):
            if len(given) != len(counts):
                raise ConfigError(
                    f"task.loss.class_weights: {len(given)} numbers for {len(counts)} classes; give one each"
                )
            return torch.tensor(given)
        weights = 1 / np.sqrt(np.maximum(counts, 1) / max(1, counts.sum()))
        weights[counts == 0] = 0
        mean = float((weights * counts).sum() / max(1, counts.sum()))  # 1 for the mean pixel
        return torch.tensor(weights / mean, dtype=torch.float32)

    def _facts(
        self,
        source: MaskSource,
        counts: Mapping[str, np.ndarray],
        sizes: Mapping[str, Sequence[tuple[int, int]]],
        notes: Sequence[str],
    ) -> dict[str, Any]:
        labels, host = source.labels, self._host.facts()
        facts: dict[str, Any] = {
            "task": self.name,
            "source": self.config.data.source,
            "kind": "images with masks",
            "where": source.where,
            "split": source.origin,
            "classes": list(labels.classes),
            "colors": [list(color) for color in labels.colors],
            "sizes": {name: len(images) for name, images in source.parts().items()},
            "pixels": {name: found[:-1].tolist() for name, found in counts.items()},
            "ignored": {name: float(found[-1] / max(1, found.sum())) for name, found in counts.items()},
            "image": {"smallest": list(min(sizes["train"])), "largest": list(max(sizes["train"]))},
            "input": {**host, "size": [host["size"][0], *self.config.augment.crop]},
            "split_digest": split_digest(source.val),
            "check": {"train_digest": split_digest(source.train)},
            **({} if source.test is None else {"test_digest": split_digest(source.test)}),
            "notes": list(notes),
        }
        return facts | ({"split_file": SPLIT_FILE} if source.drawn else {})

    def open_source(self) -> MaskSource:
        """Return the images with masks, split.

        Raises:
            DataError: the data cannot be used.
        """
        return open_masks(self.config.data, saved_split=self._saved_split)

    def open_examples(self, names: Sequence[str]) -> list[tuple[Image.Image, np.ndarray]]:
        """Return images and label maps by name, of any split.

        Raises:
            DataError: the data have changed.
        """
        return [(part.image(index), part.label(index)) for part, index in self.open_source().find(names)]

    # -- model ---------------------------------------------------------------------------------------------------------

    def build(self, host: nn.Module, facts: Mapping[str, Any]) -> nn.Module:
        config = self.config
        model = segmenter(
            host,
            classes=len(facts["classes"]),
            head=config.head,
            width=config.width,
            pools=config.pools,
            auxiliary=config.auxiliary > 0,
            norm=config.norm,
        )
        if config.freeze_norm:
            model.freeze_norms()
        return model

    def needs_unwrapped(self, model: nn.Module) -> bool:
        return True

    def refuse_batch(self, size: int, *, processes: int) -> str:
        """Return why one image is too few for the batch norm after UperNet's pooling to 1 x 1."""
        config = self.config
        images = size * processes if config.norm == "sync" else size
        if images > 1 or config.head != "upernet" or config.norm == "group" or 1 not in config.pools:
            return ""
        return (
            "batch norm needs 2 or more images per micro-batch and process, because UperNet pools to 1 x 1; use --set "
            "task.norm=group, or larger batches"
        )

    def prepare(self, batch: Batch, *, epoch: int, step: int) -> Batch:
        """Normalize images, and pad them and their label maps to multiples of 32."""
        image, label = self._host.normalize(batch["image"]), batch["label"]
        height, width = padded_size(label.shape[1:])
        border = (0, width - label.shape[2], 0, height - label.shape[1])
        return {**batch, "image": F.pad(image, border), "label": F.pad(label, border, value=IGNORED)}

    def weights(self, batch: Batch) -> Mapping[str, float]:
        """Return the number of labeled pixels, with class weights their sum."""
        counts = torch.bincount(batch["label"].reshape(-1).long(), minlength=IGNORED + 1)[: self._classes].float()
        total = counts.sum() if self._weights is None else (counts * self._weights.to(counts.device)).sum()
        names = ["loss"] + (["auxiliary"] if self._has_auxiliary else [])
        return dict.fromkeys(names, float(total))

    @property
    def _has_auxiliary(self) -> bool:
        return self.config.auxiliary > 0 and self.config.head != "linear"

    def step(self, model: nn.Module, batch: Batch, at: StepContext) -> Mapping[str, Loss]:
        found, label = model(batch["image"]), batch["label"]
        outputs = found if isinstance(found, tuple) else (found,)
        weights = None if self._weights is None else self._weights.to(label.device)
        means = [row_block_loss(each, label, weights=weights, rows=self.config.loss.rows) for each in outputs]
        losses = {"loss": Loss(mean=means[0])}
        return losses | ({"auxiliary": Loss(mean=means[1], factor=self.config.auxiliary)} if len(means) > 1 else {})

    # -- predictions ---------------------------------------------------------------------------------------------------

    def infer(self, model: nn.Module, batch: Batch, *, full: bool = True) -> Records:
        """Return the counts of each image; without `full`, at one scale, and without boundaries if others are primary."""
        called, test = unwrapped(model), self._test if full else self._test.light()
        boundaries = full or self.primary.startswith("boundary")
        rows, masks = [], []
        for image, label in zip(batch["image"], batch["label"], strict=True):
            predicted = predict_labels(
                called, self._normalized(image), test, window=self.config.augment.crop, size=tuple(label.shape)
            )
            rows.append(mask_statistics(predicted, label, self._classes, boundaries=boundaries))
            masks.append(predicted.to(torch.uint8).cpu().numpy())
        return Records(
            statistics={name: np.stack([row[name] for row in rows]) for name in rows[0]}, outputs={"mask": masks}
        )

    def inference_memory(self, model: nn.Module) -> InferenceMemory:
        window, channels = self.config.augment.crop, self._host.channels
        return inference_memory(model, self._largest, self._test, window=window, channels=channels)

    def _normalized(self, image: Tensor) -> Tensor:
        return self._host.normalize(image) if image.dtype == torch.uint8 else image  # a suite changed it

    def codec(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> SegmentationCodec:
        self._fixed_size(model_data_config)
        return SegmentationCodec(
            HostInput.from_model(model_data_config),
            self._test,
            crop=self.config.augment.crop,
            classes=facts["classes"],
            colors=facts["colors"],
        )

    # -- metrics -------------------------------------------------------------------------------------------------------

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        return measure(table)

    def chance(self, table: RecordTable, facts: Mapping[str, Any]) -> Chance:
        """Return the metrics of predicting the most frequent class of the training pixels everywhere."""
        true, most = table.array("true"), int(np.argmax(facts["pixels"]["train"]))
        columns = {"right": np.zeros_like(true), "predicted": np.zeros_like(true), "true": true}
        columns["right"][:, most], columns["predicted"][:, most] = true[:, most], true.sum(1)
        constant = dict(measure(RecordTable(names=table.names, columns=columns)).values)
        return Chance(description=f"always {facts['classes'][most]}", values=constant)

    @classmethod
    def suites(cls) -> Mapping[str, Suite]:
        return suites()

    def suite_support(self) -> SuiteSupport:
        def subset(split: Split, indices: np.ndarray) -> Split:
            return cast(MaskSplit, split).take(indices)

        def losses(outputs: Any, batch: Batch) -> Tensor:
            raise ConfigError(f"task {self.name}: attacks are not supported; remove these suites")

        columns = ("right", "predicted", "true")
        return SuiteSupport(access=MaskPixels(self._host), losses=losses, columns=columns, subset=subset)

    def sections(self, predictions: Sequence[Mapping[str, Any]], *, facts: Mapping[str, Any]) -> list[Section]:
        return sections(predictions, classes=facts["classes"], pixels=facts["pixels"]["train"])


def _sides(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))
