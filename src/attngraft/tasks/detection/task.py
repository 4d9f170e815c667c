"""Detection: boxes and instance masks of objects, by a detector around the grafted host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from attngraft.errors import DataError
from attngraft.files import printable
from attngraft.models.dense import detector, padded_size
from attngraft.results.measured import Measured
from attngraft.results.records import Records, RecordTable
from attngraft.results.sections import Section
from attngraft.strict import FieldError
from attngraft.tasks.configured import ConfiguredTask
from attngraft.tasks.detection.codec import DetectionCodec
from attngraft.tasks.detection.config import PRIMARY, DetectionConfig, DetectionMetricsConfig
from attngraft.tasks.detection.facts import ObjectFacts, notes_on, read_facts
from attngraft.tasks.detection.floor import threshold_regions
from attngraft.tasks.detection.inference import detect
from attngraft.tasks.detection.metrics import FLOOR, METRICS, RULES, image_statistics, measure
from attngraft.tasks.detection.objects import Objects
from attngraft.tasks.detection.sections import sections
from attngraft.tasks.detection.source import ObjectSource, open_objects
from attngraft.tasks.detection.split import ObjectSplit
from attngraft.tasks.facts import LARGEST, Facts
from attngraft.tasks.images.config import LARGEST_SIDE
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.sources.splitting import split_digest
from attngraft.tasks.task import SPLIT_FILE, Batch, Loss, StepContext, TaskData, unwrapped


@dataclass(frozen=True, kw_only=True)
class DetectionFacts(Facts):
    """Facts of detection."""

    classes: list[str]
    category_ids: list[int]  #: of the data, one per class
    objects: dict[str, list[int]]  #: number of objects of each split and class, without crowds
    canvas: list[int] | None  #: height and width of the input of a host that takes images of one size

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.classes) == len({*self.category_ids}) == len(self.category_ids) > 0:
            raise FieldError("category_ids", "must have a different id for each of the classes")
        if len(self.objects.get("train", ())) != len(self.classes):
            raise FieldError("objects.train", "must have a number of objects for each of the classes")
        if any(not 0 <= number <= LARGEST for numbers in self.objects.values() for number in numbers):
            raise FieldError("objects", "must be numbers of objects")
        if self.canvas is not None and (
            len(self.canvas) != 2 or not all(0 < side <= LARGEST_SIDE for side in self.canvas)
        ):
            raise FieldError("canvas", "must be null, or a height and a width")


class Detection(ConfiguredTask):
    """Detection of objects, with or without instance masks.

    A training batch is `{"image": [(C, h, w) uint8, ...], "target": [...]}`, with the targets of `models.dense.Detector`.
    An evaluation batch has resized images, the objects in pixels of the original image, and its size.
    """

    name = "detection"
    default_recipe = "small-detection"
    primary = "mask_ap"  # default; the recipe can set another metric
    metrics: ClassVar = METRICS
    column_rules = RULES
    capabilities = frozenset({"data_check", "export", "folds", "halving", "predict"})
    has_light_inference = True
    sources = "a folder with COCO annotations, instance masks, YOLO labels or Pascal VOC annotations, such as ./nuclei"
    config: DetectionConfig
    config_class = DetectionConfig
    facts_class = DetectionFacts

    def __init__(self, config: DetectionConfig, *, seed: int) -> None:
        chosen = config.metrics.primary or PRIMARY[config.head]
        super().__init__(replace(config, metrics=DetectionMetricsConfig(primary=chosen)), seed=seed)
        self._host: HostInput  # set by load
        self._classes = 0

    # -- data ----------------------------------------------------------------------------------------------------------

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        config, host, source = self.config, HostInput.from_model(model_data_config), self.open_source()
        if config.head != "faster_rcnn" and not source.masks:
            raise DataError(
                f"{source.where}: objects have no masks, which {config.head} predicts; add --set task.head=faster_rcnn"
            )
        counted = {name: read_facts(images, source.classes, name=name) for name, images in source.parts().items()}
        self._random_split, self._host, self._classes = source.drawn, host, len(source.classes)
        canvas = self._canvas(model_data_config)
        notes = list(source.notes)
        if canvas:
            notes.append(
                f"The host takes images of one size, so images are resized to fit into {canvas[0]} x {canvas[1]}."
            )
        notes += [*source.copies(), *notes_on(counted, config.test.detections)]
        untrained = [
            name for name, count in zip(source.classes, counted["train"].objects, strict=True) if count == 0
        ]  # fmt: skip
        if untrained:
            notes.append(f"Classes without a training object: {', '.join(untrained)}.")
        splits = {
            name: ObjectSplit(
                images,
                host=host,
                classes=source.classes,
                augment=config.augment if name == "train" else None,
                test=config.test,
                canvas=canvas,
                masks=config.head != "faster_rcnn",
                seed=self.seed,
            )
            for name, images in source.parts().items()
        }
        return TaskData(
            train=splits["train"],
            val=splits["val"],
            test=splits.get("test"),
            model_args={
                "num_classes": 0,
                **({"img_size": list(canvas)} if canvas else model_data_config["any_size"]),
            },
            facts=printable(self._facts(source, counted, notes, canvas)),
        )

    def _canvas(self, host: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the height and width of the input of a host that takes images of one size, else None."""
        if host["any_size"] is not None:
            return None
        return padded_size(self.config.augment.crop or host["input_size"][1:])

    def _facts(
        self, source: ObjectSource, counted: Mapping[str, ObjectFacts], notes: Sequence[str], canvas: Any
    ) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "task": self.name,
            "source": self.config.data.source,
            "kind": "images with masks of objects" if source.masks else "images with boxes",
            "where": source.where,
            "split": source.origin,
            "classes": list(source.classes),
            "category_ids": list(source.category_ids),
            "sizes": {name: len(images) for name, images in source.parts().items()},
            "objects": {name: each.objects.tolist() for name, each in counted.items()},
            "by_area": {name: list(each.by_area) for name, each in counted.items()},
            "image": {"smallest": list(min(counted["train"].sizes)), "largest": list(max(counted["train"].sizes))},
            "input": self._host.facts(),
            "canvas": None if canvas is None else list(canvas),
            "split_digest": split_digest(source.val),
            "check": {"train_digest": split_digest(source.train)},
            **({} if source.test is None else {"test_digest": split_digest(source.test)}),
            "notes": list(notes),
        }
        return facts | ({"split_file": SPLIT_FILE} if source.drawn else {})

    def open_source(self) -> ObjectSource:
        """Return the images with objects, split.

        Raises:
            DataError: the data cannot be used.
        """
        return open_objects(self.config.data, saved_split=self._saved_split)

    def open_examples(self, names: Sequence[str]) -> list[tuple[Image.Image, Objects]]:
        """Return images and objects by name, of any split.

        Raises:
            DataError: the data have changed.
        """
        return [(part.image(index), part.objects(index)) for part, index in self.open_source().find(names)]

    # -- model ---------------------------------------------------------------------------------------------------------

    def build(self, host: nn.Module, facts: Mapping[str, Any]) -> nn.Module:
        config = self.config
        model = detector(
            host,
            classes=len(facts["classes"]),
            head=config.head,
            options=config.options,
            width=config.width,
            box_width=config.box_width,
            mask_layers=config.mask_layers,
            samples=config.samples,
            anchors=config.anchors,
            detections=config.test.detections,
            min_score=config.test.min_score,
            nms=config.test.nms,
            canvas=facts["canvas"],
        )
        if config.freeze_norm:
            model.freeze_norms()
        return model

    def needs_unwrapped(self, model: nn.Module) -> bool:
        return True

    def prepare(self, batch: Batch, *, epoch: int, step: int) -> Batch:
        return {**batch, "image": [self._host.normalize(image) for image in batch["image"]]}

    def step(self, model: nn.Module, batch: Batch, at: StepContext) -> Mapping[str, Loss]:
        return {name: Loss(mean=value) for name, value in model(batch["image"], batch["target"]).items()}

    # -- predictions ---------------------------------------------------------------------------------------------------

    def infer(self, model: nn.Module, batch: Batch, *, full: bool = True) -> Records:
        """Return the matches of each image; without `full`, without boundaries and the precision without training."""
        called, rows, outputs = unwrapped(model), [], []
        for image, size, objects in zip(*(batch[name] for name in ("image", "size", "objects")), strict=True):
            found = detect(called, self._host.normalize(image), size)
            row = image_statistics(found.scores, found.labels, found.boxes, found.masks, objects, boundaries=full)
            if full and found.masks is not None and self._classes == 1:
                row |= self._without_training(image, size, objects)
            rows.append(row)
            outputs.append({"box": found.boxes.astype(np.float32)})
            if found.masks is not None:
                lengths = [len(mask["counts"]) for mask in found.masks]
                counts = b"".join(mask["counts"] for mask in found.masks)
                outputs[-1] |= {
                    "mask": np.frombuffer(counts, dtype=np.uint8),
                    "mask_length": np.array(lengths, dtype=np.int32),
                }
        return Records(
            statistics={name: [row[name] for row in rows] for name in rows[0]},
            outputs={name: [each[name] for each in outputs] for name in outputs[0]},
        )

    def _without_training(self, image: Tensor, size: tuple[int, int], objects: Objects) -> dict[str, np.ndarray]:
        resized = F.interpolate(image[None].cpu(), size, mode="nearest")[0]
        scores, boxes, masks = threshold_regions(resized.numpy(), largest=self.config.test.detections)
        found = image_statistics(scores, np.zeros(len(scores), int), boxes, masks, objects, boundaries=False)
        names = ("confidence", "label", "mask_matched", "mask_ignored", "box_matched", "box_ignored")
        return {f"{FLOOR}{name}": found[name] for name in names}

    def codec(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> DetectionCodec:
        return DetectionCodec(
            HostInput.from_model(model_data_config),
            self.config.test,
            canvas=self._canvas(model_data_config),
            classes=facts["classes"],
            ids=facts["category_ids"],
        )

    # -- metrics -------------------------------------------------------------------------------------------------------

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        return measure(table, classes=len(facts["classes"]))

    def sections(self, predictions: Sequence[Mapping[str, Any]], *, facts: Mapping[str, Any]) -> list[Section]:
        return sections(
            predictions,
            classes=facts["classes"],
            objects=facts["objects"]["train"],
            detections=self.config.test.detections,
        )
