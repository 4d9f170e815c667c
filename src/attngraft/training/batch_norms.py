"""What batch norms see of an update: the one thing that cutting its batch changes besides random draws.

A batch norm in training takes mean and variance of what goes through it at once: of one micro-batch, in one process. The
other examples of the update are no part of them, so an update that is cut up is not quite that of the whole batch.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from attngraft.training.freezing import frozen_norms
from attngraft.training.recipe import Recipe


def trained_batch_norms(model: nn.Module) -> list[nn.Module]:
    """Those that normalize by the batch while `model` is trained: all but the frozen ones."""
    frozen = set(frozen_norms(model))
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and module not in frozen]


def examples_at_once(model: nn.Module, recipe: Recipe, *, processes: int) -> int | None:
    """How many examples a batch norm of `model` sees at once, where that is fewer than an update has; None elsewhere."""
    norms, train = trained_batch_norms(model), recipe.train
    if not norms:
        return None
    shared = all(isinstance(norm, nn.SyncBatchNorm) for norm in norms)  # then processes see each other's examples
    parts = train.accumulate * (1 if shared else processes)
    return train.batch_size // parts if parts > 1 else None
