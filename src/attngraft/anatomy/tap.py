"""Named tensors offered to whoever listens. Without a listener an offer costs one attribute look-up."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Listener(Protocol):
    """Who hears what a module offers."""

    def wants(self, name: str) -> bool:
        """Whether a tensor of this name would be kept; to be asked tells the listener that there is one."""
        ...

    def __call__(self, name: str, tensor: Tensor) -> None:
        """Take a tensor, or leave it."""
        ...


class TapPoint:
    """A module that offers named tensors. `listener` is None unless a recorder is attached."""

    listener: Listener | None = None

    def offer(self, name: str, tensor: Tensor) -> None:
        """Hand `tensor` to the listener under `name`, if there is one."""
        if self.listener is not None:
            self.listener(name, tensor)

    def listened(self, *names: str) -> bool:
        """Whether an offer of one of these names (of any, without names) would reach somebody.

        Ask before computing something only to offer it.
        """
        listener = self.listener
        if listener is None:
            return False
        wanted = [listener.wants(name) for name in names]  # all of them: the listener learns what there is
        return not names or any(wanted)
