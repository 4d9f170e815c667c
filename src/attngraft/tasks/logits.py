"""Base class of tasks whose models return one row of logits or numbers per example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from attngraft.tasks.configured import ConfiguredTask
from attngraft.tasks.heads import heads_of
from attngraft.tasks.task import Batch, Serving


class LogitsTask(ConfiguredTask):
    """Task whose model returns logits (B, K) for K classes, or K numbers; a batch contains `target`."""

    activation: Literal["softmax", "sigmoid", "none"]  #: `Serving.activation`
    _loss: Callable[[Tensor, Tensor], Tensor]  # (logits, target) -> mean over the batch

    def __init__(self, config: Any, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self._classes = 0  # set by load

    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the `loss`, averaged over the batch and, for a distilled host, over both heads."""
        losses = [self._loss(head, batch["target"]) for head in heads_of(outputs, classes=self._classes)]
        return {"loss": torch.stack(losses).mean() if len(losses) > 1 else losses[0]}

    @classmethod
    def from_serving(cls, serving: Serving) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"classes": list(serving.classes), "input": dict(serving.input)}
