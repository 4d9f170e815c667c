"""Recording of named tensors inside a forward pass. Without a recorder, `record` costs one attribute lookup."""

import warnings
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from attngraft.attention.tracing import fx_leaf, is_fx_leaf

#: names under which hosts record token coordinates: the first if windows are merged at the end of the branch, the second if
#: blocks stay separate and tensors at hook points are (B, blocks, tokens, C)
TOKEN_COORDINATES, BLOCK_COORDINATES = "places", "block_places"


class Recorder(Protocol):
    """Receiver of recorded tensors."""

    def wants(self, name: str) -> bool:
        """Return whether a tensor of this name would be stored, and register the name as available."""
        ...

    def __call__(self, name: str, tensor: Tensor) -> None:
        """Store the tensor, or ignore it."""
        ...


class Recordable:
    """Mixin for modules that record tensors. `recorder` is None unless a recorder is attached.

    `torch.fx` treats these modules as leaves: their control flow cannot be traced, and a graph would record nothing.
    """

    recorder: Recorder | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        forward = getattr(cls, "forward", None)  # a patched class may inherit the host's
        if forward is not None and not is_fx_leaf(forward):
            cls.forward = fx_leaf(forward)  # type: ignore[attr-defined]

    def record(self, name: str, tensor: Tensor) -> None:
        """Pass `tensor` to the recorder under `name`, if one is attached."""
        if self.recorder is not None:
            self.recorder(name, tensor)

    def offer(self, name: str, tensor: Tensor) -> None:
        """Deprecated name of `record`."""
        warnings.warn("offer() is deprecated; call record()", DeprecationWarning, stacklevel=2)
        self.record(name, tensor)

    def is_recording(self, *names: str) -> bool:
        """Return whether a recorder would store any of these names; without names, whether a recorder is attached.

        Check this before computing a tensor that is needed only for recording.
        """
        recorder = self.recorder
        if recorder is None:
            return False
        wanted = [recorder.wants(name) for name in names]  # no short-circuiting: `wants` registers every name
        return not names or any(wanted)


def record_coordinates(
    module: Recordable, maps: Tensor, cut: Callable[[Tensor], Tensor], *, name: str = TOKEN_COORDINATES
) -> None:
    """Record the index of the token at each position of the map (rows, columns), counted window by window.

    Args:
        module: the module that records the tensor.
        maps: (B, rows, columns, C), the host's map before it is partitioned into windows.
        cut: the host's own partition of maps into windows (B * windows, N, C), zero padding included.
        name: `BLOCK_COORDINATES` if tensors at the hook points of this site have an axis of blocks too.
    """
    if not module.is_recording(name):
        return
    rows, columns = maps.shape[1:3]
    numbers = torch.arange(1, rows * columns + 1, device=maps.device)  # 0 marks padding
    tokens = cut(numbers.view(1, rows, columns, 1)).flatten()
    real = tokens.nonzero().squeeze(1)
    index = torch.empty_like(numbers)
    index[tokens[real] - 1] = real
    module.record(name, index.view(rows, columns))
