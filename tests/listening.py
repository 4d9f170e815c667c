"""Who hears everything that a module offers."""

from __future__ import annotations

from torch import Tensor


class Heard(dict[str, Tensor]):
    """What was offered last, by name; stands as a module's `recorder`."""

    def wants(self, name: str) -> bool:
        return True

    def __call__(self, name: str, tensor: Tensor) -> None:
        self[name] = tensor
