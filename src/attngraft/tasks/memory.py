"""Memory that inference on the largest example needs, estimated before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from attngraft.results.wording import size
from attngraft.timing.memory import LiveStorages


@dataclass(frozen=True, kw_only=True)
class InferenceMemory:
    """Peak memory of inference on the largest example of the data: weights and tensors, without the kernels' scratch."""

    what: str  #: "evaluating the largest image, 4000 x 3000,"
    bytes: int
    smaller: Mapping[str, Callable[[], int]] = field(default_factory=dict)  #: bytes with other settings, "task.x=1"

    def described(self) -> str:
        """Return a sentence without a period."""
        return f"{self.what} takes about {size(self.bytes)} of memory"

    def warning(self, free: int | None) -> str:
        """Return a warning with a remedy if the memory exceeds the `free` bytes, else an empty string."""
        if free is None or self.bytes <= free:
            return ""
        fitting = next((f"--set {name}" for name, count in self.smaller.items() if count() <= free), "smaller images")
        return f"{self.described()}, but {size(free)} are free; use {fitting}"


def peak_on_meta(model: nn.Module, work: Callable[[], object]) -> int:
    """Return the bytes of a model's weights and the peak of the tensors that `work` creates on the meta device."""
    with torch.inference_mode(), LiveStorages() as storages:
        work()
    return storages.peak + sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers()))
