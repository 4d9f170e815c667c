"""Model inputs in the chosen memory format."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]  #: positional and keyword arguments


def in_format(arguments: Arguments, *, channels_last: bool) -> Arguments:
    """Return `arguments`, with 4-D tensors in channels-last if `channels_last`."""
    if not channels_last:
        return arguments
    args, kwargs = arguments
    return tuple(map(_channels_last, args)), {name: _channels_last(value) for name, value in kwargs.items()}


def in_memory_format(model: nn.Module, *, channels_last: bool) -> nn.Module:
    """Return `model`, or a wrapper that calls it with its 4-D inputs in channels-last."""
    return cast(nn.Module, _ChannelsLast(model)) if channels_last else model


class _ChannelsLast:
    """Wrapper that calls a model with channels-last inputs; not a module, so that it is never saved."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = in_format((args, kwargs), channels_last=True)  # type: ignore[assignment]
        return self._model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _channels_last(value: Any) -> Any:
    if isinstance(value, Tensor) and value.ndim == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value
