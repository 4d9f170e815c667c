"""Rows of host parameters that a graft leaves unused: no optimizer step may move them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attngraft.grafting.apply import grafted


def unused_rows(model: nn.Module) -> list[tuple[nn.Parameter, int, int]]:
    """(parameter, start, stop) along the first axis, for every graft in `model`."""
    return [
        (module.get_parameter(name), start, stop)
        for _, module, _, graft in grafted(model)
        for name, start, stop in graft.unused.rows
    ]


def pin_unused_rows(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Keep weight decay (and momentum) of `optimizer` from moving rows that grafts leave unused.

    Their gradient is zero, but decoupled weight decay shrinks them all the same, and undo would not give the host back.
    The rows are put back after every step, by the optimizer's own step hooks. Parameters must be whole (not sharded).
    """
    rows = unused_rows(model)
    if not rows:
        return
    saved: list[Tensor] = []

    def save(*_: Any) -> None:
        saved[:] = [parameter.detach()[start:stop].clone() for parameter, start, stop in rows]

    def put_back(*_: Any) -> None:
        with torch.no_grad():
            for (parameter, start, stop), old in zip(rows, saved, strict=True):
                parameter[start:stop] = old

    optimizer.register_step_pre_hook(save)
    optimizer.register_step_post_hook(put_back)
