"""The losses of one update on their way to the CPU, without making the device wait.

On a GPU they are copied as soon as the last forward pass is queued and read once the backward pass is queued: while the
CPU waits for them, the device works on the backward pass. So each loss is known before the optimizer moves anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


class Losses:
    """Sums the losses of an update's micro-batches; kept over updates, so that its buffer is pinned once."""

    def __init__(self, device: torch.device) -> None:
        self._asynchronous = device.type == "cuda"
        self._names: tuple[str, ...] = ()
        self._sum: Tensor | None = None
        self._host: Tensor | None = None
        self._arrived: torch.cuda.Event | None = None

    def add(self, losses: Mapping[str, Tensor], *, last: bool) -> None:
        """Add a micro-batch's losses; with the `last` one of an update the copy begins."""
        values = torch.stack([loss.detach() for loss in losses.values()])
        self._names = tuple(losses)
        self._sum = values if self._sum is None else self._sum + values
        if last and self._asynchronous:
            if self._host is None or self._host.shape != self._sum.shape:
                self._host = torch.empty_like(self._sum, device="cpu", pin_memory=True)
                self._arrived = torch.cuda.Event()
            self._host.copy_(self._sum, non_blocking=True)
            self._arrived.record()  # type: ignore[union-attr]

    def read(self) -> dict[str, float]:
        """The sums, ready for the next update."""
        if self._arrived is not None:
            self._arrived.synchronize()
        source = self._host if self._asynchronous else self._sum
        values = source.tolist() if source is not None else []
        self._sum = None
        return dict(zip(self._names, values, strict=True))


def all_finite(losses: Mapping[str, float]) -> bool:
    """Whether none of them is NaN or infinite."""
    return all(map(math.isfinite, losses.values()))
