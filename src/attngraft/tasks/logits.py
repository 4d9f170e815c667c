"""Base class of tasks whose models return one row of logits or numbers per example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from attngraft.errors import ConfigError
from attngraft.strict import read
from attngraft.tasks.heads import heads_of
from attngraft.tasks.task import Batch, Serving, Task


class LogitsTask(Task):
    """Task whose model returns logits (B, K) for K classes, or K numbers; a batch contains `target`.

    The recipe section is a dataclass with `data` and `metrics.primary`.
    """

    config_class: ClassVar[type[Any]]  #: dataclass of the recipe section
    sources: ClassVar[str]  #: supported kinds of data, for messages
    activation: Literal["softmax", "sigmoid", "none"]  #: `Serving.activation`
    _loss: Callable[[Tensor, Tensor], Tensor]  # (logits, target) -> mean over the batch

    def __init__(self, config: Any, *, seed: int) -> None:
        self.config, self.seed = config, seed
        self.primary = config.metrics.primary
        self.higher_is_better = self.metrics[self.primary].higher_is_better
        self._classes = 0  # set by load
        self._saved_split: Path | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, seed: int) -> Self:
        section = {key: value for key, value in config.items() if key != "name"}
        if "data" not in section:
            raise ConfigError(
                "task.data: missing; give --data SOURCE on the command line, or task: {data: {source: ...}} in the recipe "
                f"({cls.sources})"
            )
        return cls(read(cls.config_class, section, where="task"), seed=seed)

    def load_split(self, path: Path) -> None:
        self._saved_split = path if path.is_file() else None

    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the `loss`, averaged over the batch and, for a distilled host, over both heads."""
        losses = [self._loss(head, batch["target"]) for head in heads_of(outputs, classes=self._classes)]
        return {"loss": torch.stack(losses).mean() if len(losses) > 1 else losses[0]}

    @classmethod
    def from_serving(cls, serving: Serving) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"classes": list(serving.classes), "input": dict(serving.input)}
