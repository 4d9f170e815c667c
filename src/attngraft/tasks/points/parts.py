"""Segmentation of point clouds into parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.errors import TrainingError
from attngraft.files import printable
from attngraft.results.measured import Measured
from attngraft.results.records import Records, RecordTable
from attngraft.results.sections import Cell, Column, Metric, Section, Table
from attngraft.results.study import Chance
from attngraft.tasks.configured import ConfiguredTask
from attngraft.tasks.points.config import PointPartsConfig
from attngraft.tasks.points.facts import PartFacts
from attngraft.tasks.points.metrics import RULES, category_means, constant_statistics, measure, part_statistics
from attngraft.tasks.points.opened import OpenedClouds, open_clouds, sampling_of
from attngraft.tasks.points.part_codec import PartsCodec
from attngraft.tasks.points.split import PointSplit, Sampling
from attngraft.tasks.points.task import SOURCES, check_host, input_facts, refuse_batch
from attngraft.tasks.points.voting import mean_probabilities
from attngraft.tasks.task import Batch, Loss, StepContext, TaskData


class PointParts(ConfiguredTask):
    """Segmentation of point clouds into parts, for shapes whose category is known.

    A training batch is `{"points": (B, N, 3 or 6), "category": (B,), "part": (B, N)}`; an evaluation batch has lists of the
    parts of judged points, and of the points whose predictions they get, `near`.
    """

    name = "point_parts"
    default_recipe = "tiny-parts"
    primary = "instance_miou_present"  # default; the recipe can set another metric
    metrics: ClassVar = {
        "instance_miou_present": Metric(label="instance mIoU (present parts)", column="inst. mIoU", share=True),
        "class_miou_present": Metric(label="class mIoU (present parts)", column="class mIoU", share=True),
        "instance_miou_category": Metric(label="instance mIoU (category's parts)", column="inst. (cat.)", share=True),
        "class_miou_category": Metric(label="class mIoU (category's parts)", column="class (cat.)", share=True),
        "instance_miou_all": Metric(label="instance mIoU (all parts)", column="inst. (all)", share=True),
        "class_miou_all": Metric(label="class mIoU (all parts)", column="class (all)", share=True),
        "accuracy": Metric(label="point accuracy", column="accuracy", share=True),
    }
    column_rules = RULES
    capabilities = frozenset({"data_check", "export", "folds", "halving", "predict"})
    has_light_inference = True
    config: PointPartsConfig
    facts_class = PartFacts
    config_class = PointPartsConfig
    sources = f"{SOURCES} with a part for each point, or the unpacked folder of ShapeNetPart"

    def __init__(self, config: PointPartsConfig, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self._normals: bool | None = None  # whether a trained model gets normals
        self._least = 1  # smallest batch
        self._parts: Sequence[Sequence[int]] = ()  # of each category; set by load and codec

    def use_fitted_transform(self, facts: Mapping[str, Any]) -> None:
        self._normals = facts["input"]["normals"]

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        check_host(self.name, model_data_config, labels="points", other="points")
        self._least = model_data_config["least_batch"]
        config, source = self.config, open_clouds(self.config, saved_split=self._saved_split)
        self._random_split = source.drawn
        self._parts = [list((source.parts or {})[number]) for number in range(len(source.classes))]
        sampling = sampling_of(config, has_normals=source.train.has_normals, known=self._normals)
        options: dict[str, Any] = {"parts": True, "seed": self.seed, "judged": config.test.judged}
        splits = {
            name: PointSplit(clouds, sampling, augment=config.augment if name == "train" else None, **options)
            for name, clouds in source.splits().items()
        }
        both = source.train.joined(source.val)
        return TaskData(
            train=splits["train"],
            val=splits["val"],
            test=splits.get("test"),
            whole=(lambda: PointSplit(both, sampling, **options)) if source.drawn and source.test is None else None,
            model_args={
                "num_classes": self._count(),
                "categories": len(source.classes),
                "in_chans": sampling.channels,
            },
            facts=printable(self._facts(source, sampling)),
            refusal=source.refusal,
        )

    def _facts(self, source: OpenedClouds, sampling: Sampling) -> dict[str, Any]:
        clouds, counts = source.train, np.zeros(self._count(), dtype=np.int64)
        for first, end in clouds.ranges.tolist():
            counts += np.bincount(clouds.values[first:end, -1].astype(np.int64), minlength=len(counts))
        facts = {"task": self.name, "source": self.config.data.source, **source.facts(), "input": input_facts(sampling)}
        return facts | {"parts": [list(each) for each in self._parts], "part_points": counts.tolist()}

    def _count(self) -> int:
        return 1 + max(max(own, default=0) for own in self._parts)

    def refuse_batch(self, size: int, *, processes: int) -> str:
        return refuse_batch(size, self._least)

    # -- training and inference ----------------------------------------------------------------------------------------

    def step(self, model: nn.Module, batch: Batch, at: StepContext) -> Mapping[str, Loss]:
        logits = self._logits(model(batch["points"], batch["category"]))
        smoothing = self.config.smoothing
        return {
            "loss": Loss(mean=F.cross_entropy(logits.flatten(0, 1), batch["part"].flatten(), label_smoothing=smoothing))
        }

    def _logits(self, outputs: Any) -> Tensor:
        if not isinstance(outputs, Tensor) or outputs.ndim != 3 or outputs.shape[2] != self._count():
            shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise TrainingError(
                f"the host returned {shape}, not logits (batch, points, {self._count()}) of parts; remove num_classes from "
                "host.args"
            )
        return outputs.float()

    def infer(self, model: nn.Module, batch: Batch, *, full: bool = True) -> Records:
        """Return the IoU of each shape; with `full`, from averaged votes."""

        def probabilities(points: Tensor) -> Tensor:
            return self._logits(model(points, batch["category"])).softmax(-1)

        votes = self.config.test.votes if full else 1
        found = mean_probabilities(probabilities, batch["points"], votes=votes).detach().cpu().numpy()
        categories, rows, predicted = batch["category"].cpu().numpy(), [], []
        for each, near, part, category in zip(found, batch["near"], batch["part"], categories, strict=True):
            judged, own = each[near.cpu().numpy()], self._parts[category]
            rows.append(part_statistics(judged, part.cpu().numpy(), own, parts=self._count()))
            predicted.append(judged.argmax(1).astype(np.int32))
        statistics = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        return Records(statistics={"category": categories, **statistics}, outputs={"part": predicted})

    def codec(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> PartsCodec:
        return PartsCodec(
            Sampling(**facts["input"]),
            classes=facts["classes"],
            parts=facts["parts"],
            votes=self.config.test.votes,
            any_normals=bool(self.config.data.normals),
        )

    def compatible(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        """Return whether both have the same categories and parts, and the model's input is there."""
        same = super().compatible(a, b) and a["parts"] == b["parts"]
        return same and a["input"]["normals"] == b["input"]["normals"]

    # -- metrics -------------------------------------------------------------------------------------------------------

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        return measure(table)

    def chance(self, table: RecordTable, facts: Mapping[str, Any]) -> Chance:
        """Return the metrics of predicting each category's most frequent part of training at all points."""
        counts, own = np.array(facts["part_points"]), facts["parts"]
        most = [parts[int(np.argmax(counts[parts]))] for parts in own]
        category, true = table.array("category"), table.array("true")
        rows = [
            constant_statistics(points, own[number], most[number])
            for number, points in zip(category, true, strict=True)
        ]
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]} | {"category": category}
        values = dict(measure(RecordTable(names=table.names, columns=columns)).values)
        return Chance(description="always the category's most frequent part", values=values)

    def sections(self, predictions: Sequence[Mapping[str, Any]], *, facts: Mapping[str, Any]) -> list[Section]:
        """Return the mean IoU of each category's shapes in each convention."""
        classes = facts["classes"]
        counts = np.bincount(predictions[0]["category"], minlength=len(classes))
        means = {
            convention: np.mean(
                [category_means(each["category"], each[f"iou_{convention}"], len(classes)) for each in predictions],
                axis=0,
            )
            for convention in ("present", "category", "all")
        }
        rows: list[list[Cell]] = [
            [name, int(counts[index]), *(_cell(means[convention][index]) for convention in means)]
            for index, name in enumerate(classes)
        ]
        columns = [
            Column(name="category", kind="text"),
            Column(name="shapes", kind="count", role="common"),
            Column(name="mIoU, present parts", kind="share", role="compared", parts_of="class_miou_present"),
            Column(name="category's parts", kind="share"),
            Column(name="all parts", kind="share"),
        ]
        note = (
            "Mean over shapes of the mean IoU of their parts, as a mean over seeds. Present parts: those that occur in the "
            "shape, predicted among the parts of all categories (PointMLP, BiXT). Category's parts: all parts of the "
            "category, predicted among these; 1 for a part that neither occurs nor is predicted (PointNet++). All parts: "
            "the same, predicted among the parts of all categories."
        )
        table = Table(columns=columns, rows=rows)
        return [Section(name="categories", title="Categories", note=note, table=table)]


def _cell(value: float) -> Cell:
    return None if np.isnan(value) else float(value)
