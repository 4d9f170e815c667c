"""Named tensors offered to whoever listens. Without a recorder an offer costs one attribute look-up."""

from __future__ import annotations

import warnings
from typing import Protocol

from torch import Tensor


class Recorder(Protocol):
    """Who hears what a module offers."""

    def wants(self, name: str) -> bool:
        """Whether a tensor of this name would be kept; to be asked tells the recorder that there is one."""
        ...

    def __call__(self, name: str, tensor: Tensor) -> None:
        """Take a tensor, or leave it."""
        ...


class Recordable:
    """A module that offers named tensors. `recorder` is None unless a recorder is attached."""

    recorder: Recorder | None = None

    def record(self, name: str, tensor: Tensor) -> None:
        """Hand `tensor` to the recorder under `name`, if there is one."""
        if self.recorder is not None:
            self.recorder(name, tensor)

    def offer(self, name: str, tensor: Tensor) -> None:
        """Deprecated name of `record`."""
        warnings.warn("offer() is deprecated; call record()", DeprecationWarning, stacklevel=2)
        self.record(name, tensor)

    def is_recording(self, *names: str) -> bool:
        """Whether an offer of one of these names (of any, without names) would reach somebody.

        Ask before computing something only to offer it.
        """
        recorder = self.recorder
        if recorder is None:
            return False
        wanted = [recorder.wants(name) for name in names]  # all of them: the recorder learns what there is
        return not names or any(wanted)
