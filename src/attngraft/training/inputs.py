"""Model inputs in the chosen memory format."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attngraft.tasks.task import Batch, Task

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]  #: positional, and by keyword


def model_inputs(task: Task, batch: Batch, *, channels_last: bool) -> Arguments:
    """Return the arguments of a model's forward for this batch."""
    return in_format(task.to_model(batch), channels_last=channels_last)


def in_format(arguments: Arguments, *, channels_last: bool) -> Arguments:
    """Return `arguments`, with 4-D tensors in channels-last format if `channels_last`."""
    if not channels_last:
        return arguments
    args, kwargs = arguments
    return tuple(map(_channels_last, args)), {name: _channels_last(value) for name, value in kwargs.items()}


def _channels_last(value: Any) -> Any:
    if isinstance(value, Tensor) and value.ndim == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value
