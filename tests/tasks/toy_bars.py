"""A task with all that the built-in ones lack: a head around the host, weighted losses, ragged outputs, its own codec.

Which columns of a noisy 8x8 drawing hold a bar? Judged by the F1 of all bars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.errors import ConfigError
from attngraft.hosts import HostedModel
from attngraft.results.measured import ClosedForm, Measured
from attngraft.results.records import Records, RecordTable
from attngraft.results.sections import Metric
from attngraft.tasks.codec import Codec
from attngraft.tasks.seeding import generator
from attngraft.tasks.task import Loss, Split, StepContext, Task, TaskData

SIDE = 8


class Drawings(Split):
    def __init__(self, part: str, *, size: int, stream: int) -> None:
        self.part, self.size, self.stream = part, size, stream

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
        random = generator(self.stream, 0, key[1])
        bars = torch.zeros(SIDE)
        bars[random.choice(SIDE, size=random.integers(0, 4), replace=False).tolist()] = 1.0
        noise = torch.from_numpy(random.standard_normal((SIDE, SIDE))).float()
        return (bars + 0.3 * noise)[None], bars

    def collate(self, examples: list[Any]) -> dict[str, Tensor]:
        drawings, bars = zip(*examples, strict=True)
        return {"drawing": torch.stack(drawings), "bars": torch.stack(bars)}

    def name(self, index: int) -> str:
        return f"{self.part}/{index}"


class ColumnHead(HostedModel):
    """Logits (B, 8) of the columns."""

    def __init__(self, host: nn.Module) -> None:
        super().__init__(host)
        self.logits = nn.Linear(24, SIDE)

    def forward(self, drawings: Tensor) -> Tensor:
        found: Tensor = self.logits(self.host.forward_features(drawings).mean(1))  # type: ignore[operator]
        return found


class DrawingCodec(Codec):
    """Files with an array (8, 8); the columns with a bar."""

    def example_inputs(self, batch_size: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return (torch.randn(batch_size, 1, SIDE, SIDE),), {}

    def encode(self, inputs: Sequence[str]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return (torch.stack([torch.from_numpy(np.load(file))[None] for file in inputs]),), {}

    def decode(self, outputs: Tensor) -> list[Any]:
        return [row.nonzero()[:, 0].tolist() for row in outputs > 0]


def f1(sums: np.ndarray) -> np.ndarray:
    score: np.ndarray = 2 * sums[:, 0] / np.maximum(sums[:, 1] + sums[:, 2], 1)
    return score


class ToyBars(Task):
    """The loss is normalized by bars and drawings, so micro-batches and processes weigh differently."""

    name = "toy_bars"
    primary = "f1"
    metrics: ClassVar = {"f1": Metric(label="F1 of all bars", share=True)}
    capabilities = frozenset({"export", "halving", "predict"})

    def __init__(self, size: int) -> None:
        self.size = size

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, seed: int) -> ToyBars:
        if unknown := config.keys() - {"size"}:
            raise ConfigError(f"task.{min(unknown)}: unknown field")
        return cls(config.get("size", 47))

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        train, val = (Drawings(part, size=self.size, stream=n) for n, part in enumerate(("train", "val")))
        return TaskData(train=train, val=val, model_args={"num_classes": 0}, facts={"source": "drawings"})

    def build(self, host: nn.Module, facts: Mapping[str, Any]) -> nn.Module:
        return ColumnHead(host)

    def weights(self, batch: Any) -> dict[str, float]:
        return {"bars": len(batch["bars"]) + float(batch["bars"].sum())}

    def step(self, model: nn.Module, batch: Any, at: StepContext) -> dict[str, Loss]:
        losses = F.binary_cross_entropy_with_logits(model(batch["drawing"]), batch["bars"], reduction="sum")
        return {"bars": Loss(mean=losses / self.weights(batch)["bars"])}

    def infer(self, model: nn.Module, batch: Any, *, full: bool = True) -> Records:
        found, truth = model(batch["drawing"]).cpu() > 0, batch["bars"].cpu() > 0
        statistics = {"correct": found & truth, "predicted": found, "actual": truth}
        return Records(
            statistics={name: each.sum(1).numpy() for name, each in statistics.items()},
            outputs={"columns": [row.nonzero()[:, 0].numpy() for row in found]},
        )

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        sums = np.stack([table.array(name) for name in ("correct", "predicted", "actual")], axis=1)
        statistic = ClosedForm(sums, f1)
        return Measured(values={"f1": statistic.point}, statistics={"f1": statistic})

    def codec(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> Codec:
        return DrawingCodec()
