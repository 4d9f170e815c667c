"""MLPs between two linear layers, into which folding moves what grafts leave."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from attngraft.attention import GraftedModule, HookPoint, LinearLayer


class LinearEnds(GraftedModule):
    """Grafts at the front and in the middle are followed by one of them, grafts at the end by nothing but dropout."""

    linear_names: ClassVar[tuple[str, str]] = ("fc1", "fc2")

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        return linear(getattr(self, self.linear_names[1])) if hook_point == "mlp.end" else None

    def linear_after(self, hook_point: HookPoint) -> LinearLayer | None:
        number = {"mlp.front": 0, "mlp.mid": 1}.get(hook_point)
        return None if number is None else linear(getattr(self, self.linear_names[number]))


def linear(layer: Any) -> LinearLayer | None:
    """`layer`; None where something else took a linear layer's place."""
    return layer if isinstance(layer, nn.Linear | nn.Conv2d) else None
