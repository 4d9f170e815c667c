"""Parts of host parameters that a graft leaves unused: no optimizer step may move them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attngraft.grafting.apply import grafted


def unused_parts(model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    """(parameter, the part of its values that a graft leaves unused); the part shares the parameter's storage."""
    return [pair for _, module, _, graft in grafted(model) for pair in graft.unused.parts(module)]


def pin_unused(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Keep weight decay (and momentum) of `optimizer` from moving what grafts leave unused (q, k rows of a uniform head).

    The gradient there is zero, but decoupled weight decay shrinks the values all the same, and undo would not give the
    host back. They are put back after every step, by the optimizer's own step hooks. Parameters must be whole (not
    sharded).
    """
    if not unused_parts(model):
        return
    saved: list[Tensor] = []

    def save(*_: Any) -> None:
        saved[:] = [part.clone() for _, part in unused_parts(model)]

    def put_back(*_: Any) -> None:
        with torch.no_grad():
            for (_parameter, part), value in zip(unused_parts(model), saved, strict=True):
                part.copy_(value)

    optimizer.register_step_pre_hook(save)
    optimizer.register_step_post_hook(put_back)
