"""A dense task in one file, as a package of a user's own would bring it: a class for each pixel of tiny invented drawings.

Nothing in the package knows of it. Each 8x8 drawing has a bar or a square, or both, over a noisy ground.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.errors import ConfigError
from attngraft.results.measured import ClosedForm, MeanScore, Measured
from attngraft.results.records import RecordTable
from attngraft.results.sections import Column, Metric, Section, Table
from attngraft.tasks.seeding import generator
from attngraft.tasks.task import Batch, Split, Task, TaskData

SIDE, CLASSES = 8, ("ground", "bar", "square")


class Drawings(Split):
    """Drawings and their masks, a function of the index alone."""

    def __init__(self, part: str, *, size: int, stream: int) -> None:
        self.part, self.size, self.stream = part, size, stream

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
        random = generator(self.stream, 0, key[1])
        mask = np.zeros((SIDE, SIDE), dtype=np.int64)
        if random.random() < 0.7:
            mask[random.integers(SIDE)] = 1
        y, x = random.integers(SIDE - 2, size=2)
        mask[y : y + 3, x : x + 3] = 2
        image = mask / 2 + 0.2 * random.standard_normal((SIDE, SIDE))
        return torch.from_numpy(image.astype(np.float32))[None], torch.from_numpy(mask)

    def collate(self, examples: list[Any]) -> Batch:
        images, masks = zip(*examples, strict=True)
        return {"drawing": torch.stack(images), "mask": torch.stack(masks)}

    def name(self, index: int) -> str:
        return f"{self.part}/{index}"


def mean_iou(sums: np.ndarray) -> np.ndarray:
    """IoU by class, from sums of intersections and unions."""
    intersection, union = np.split(sums, 2, axis=1)
    return intersection / union


class ToyDense(Task):
    """A batch is `{"drawing": (B, 1, 8, 8), "mask": (B, 8, 8)}`; the host gives logits by patch, (B, 64, classes)."""

    name = "toy_dense"
    primary = "image_iou"
    metrics: ClassVar = {
        "image_iou": Metric(label="mean IoU by drawing", column="IoU", share=True),
        "miou": Metric(label="mean IoU", column="mIoU", share=True),
    }

    def __init__(self, size: int) -> None:
        self.size = size

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, seed: int) -> ToyDense:
        if unknown := config.keys() - {"size"}:
            raise ConfigError(f"task.{min(unknown)}: unknown field")
        return cls(config.get("size", 64))

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        facts = {"source": "drawings", "classes": list(CLASSES), "sizes": {"train": self.size, "val": self.size}}
        return TaskData(
            train=Drawings("train", size=self.size, stream=1),
            val=Drawings("val", size=self.size, stream=2),
            model_args={"num_classes": len(CLASSES), "global_pool": "", "class_token": False},
            facts=facts,
        )

    def to_model(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return (batch["drawing"],), {}

    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(outputs.transpose(1, 2), batch["mask"].flatten(1))}

    def predict(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        given = F.one_hot(outputs.argmax(-1), len(CLASSES)).bool()
        there = F.one_hot(batch["mask"].flatten(1), len(CLASSES)).bool()
        return {"intersection": (given & there).sum(1), "union": (given | there).sum(1), "there": there.sum(1)}

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        """`image_iou`: the mean over drawings of the mean over classes that are in the drawing; `miou`: over all pixels."""
        inter, union = table.array("intersection").astype(float), table.array("union").astype(float)
        there = table.array("there") > 0
        score = (np.divide(inter, union, where=there, out=np.zeros_like(inter))).sum(1) / there.sum(1)
        miou = ClosedForm(np.concatenate([inter, union], axis=1), mean_iou)
        values = {"image_iou": float(score.mean()), "miou": miou.point}
        return Measured(values=values, statistics={"image_iou": MeanScore(score), "miou": miou})

    def sections(self, predictions: Sequence[Mapping[str, np.ndarray]], *, facts: Mapping[str, Any]) -> list[Section]:
        shares = np.mean([each["intersection"].sum(0) / each["union"].sum(0) for each in predictions], axis=0)
        columns = [Column(name="class", kind="text"), Column(name="IoU", kind="share", role="compared")]
        rows = [[name, float(share)] for name, share in zip(facts["classes"], shares, strict=True)]
        return [Section(name="classes", title="Pixels by class", table=Table(columns=columns, rows=rows))]
