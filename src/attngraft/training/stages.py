"""A run in two stages: fewer parameters first (the host frozen, say), then all that the recipe trains.

The optimizer knows all of them from the start. In the first stage the others have no gradient, so optimizers pass them
by: neither values nor states nor weight decay move, and no time is spent on them. Each epoch belongs to one stage, so the
stage is a function of the epoch and a resumed run needs nothing more.
"""

from __future__ import annotations

from torch import nn

from attngraft.training.freezing import refuse_nothing, trained_names
from attngraft.training.recipe import FirstStage


class Stages:
    """Switches `requires_grad` of `model`'s parameters by epoch; does nothing where there is one stage.

    Raises:
        ConfigError: the first stage has nothing to train, or it is not known where the head is.
    """

    def __init__(self, model: nn.Module, first: FirstStage | None) -> None:
        self._epochs, self._later = 0, list[nn.Parameter]()
        if first is None:
            return
        early = trained_names(model, first.parameters)
        refuse_nothing(early, first.parameters, field="train.first.parameters")
        self._epochs = first.epochs
        self._later = [p for name, p in model.named_parameters() if p.requires_grad and name not in early]

    def enter(self, epoch: int) -> None:
        """Train what is trained in `epoch` (from 0)."""
        for parameter in self._later:
            parameter.requires_grad_(epoch >= self._epochs)

    def enter_last(self, *, epoch: int, step: int) -> None:
        """Train what the last of the updates before `step` of `epoch` trained: of these an optimizer has states."""
        self.enter(epoch if step else max(epoch - 1, 0))
