"""Named tensors offered to whoever listens. Without a listener an offer costs one attribute look-up."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Listener = Callable[[str, Tensor], None]


class TapPoint:
    """A module that offers named tensors. `listener` is None unless a recorder is attached."""

    listener: Listener | None = None

    def offer(self, name: str, tensor: Tensor) -> None:
        """Hand `tensor` to the listener under `name`, if there is one."""
        if self.listener is not None:
            self.listener(name, tensor)

    def listened(self) -> bool:
        """Whether an offer would reach somebody; ask before computing something only to offer it."""
        return self.listener is not None
