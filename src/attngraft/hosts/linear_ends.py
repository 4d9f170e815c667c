"""MLPs between two linear layers, into which folding moves what grafts leave."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from attngraft.anatomy import GraftedModule, LinearLayer, Stage


class LinearEnds(GraftedModule):
    """Grafts at the front and in the middle are followed by one of them, grafts at the end by nothing but dropout."""

    linear_names: ClassVar[tuple[str, str]] = ("fc1", "fc2")

    def linear_before(self, stage: Stage) -> LinearLayer | None:
        return self._linear(1) if stage == "mlp.end" else None

    def linear_after(self, stage: Stage) -> LinearLayer | None:
        number = {"mlp.front": 0, "mlp.mid": 1}.get(stage)
        return None if number is None else self._linear(number)

    def _linear(self, number: int) -> LinearLayer | None:
        """None where something else took the layer's place."""
        layer = getattr(self, self.linear_names[number])
        return layer if isinstance(layer, nn.Linear | nn.Conv2d) else None
