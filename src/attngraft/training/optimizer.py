"""Optimizer, schedule and moving average, all of them timm's."""

from __future__ import annotations

from typing import Any

import timm.optim
import torch
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from timm.utils import ModelEmaV3
from torch import nn

from attngraft.errors import ConfigError
from attngraft.grafting.apply import pin_unused
from attngraft.suggest import did_you_mean
from attngraft.training.groups import parameter_groups
from attngraft.training.recipe import Recipe


def create_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimizer over the parameters of `model` that need a gradient.

    `parameter_groups` says which rate and decay each of them has. Rows of a host's parameters that a graft left without
    use are pinned, so that decay does not move them.

    Raises:
        ConfigError: an optimizer or an argument that timm does not know.
    """
    config = recipe.optimizer
    given = {"betas": config.betas, "eps": config.eps, "momentum": config.momentum}
    extra = {name: value for name, value in given.items() if value is not None} | dict(config.args)
    _check_name(config.name)
    try:
        optimizer = timm.optim.create_optimizer_v2(
            parameter_groups(model, config),
            opt=config.name,
            lr=recipe.lr,
            weight_decay=0.0,  # every group has its own
            **extra,
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {config.name} with {extra}: {error}") from None
    pin_unused(optimizer, model)
    return optimizer


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """The rate that the schedule sets now, before what single groups scale it by."""
    group = optimizer.param_groups[0]
    return float(group["lr"]) / float(group.get("lr_scale", 1.0))


def _check_name(name: str) -> None:
    known = timm.optim.list_optimizers()
    if name.lower().removeprefix("lookahead_") not in known:
        near = did_you_mean(name, known)
        raise ConfigError(f"optimizer.name: timm has no optimizer {name!r}{near}; there are {', '.join(known)}")


def create_schedule(optimizer: torch.optim.Optimizer, recipe: Recipe, *, steps: int) -> Scheduler:
    """The recipe's schedule with `steps` updates per epoch; `schedule.step_update(n)` sets the rate of update n.

    It has no state: the rate is a function of the number of updates made.
    """
    config = recipe.schedule
    options: dict[str, Any] = {
        "sched": "step" if config.name == "constant" else config.name,
        "num_epochs": config.epochs - config.cooldown_epochs,
        "decay_epochs": config.decay_epochs or (config.epochs if config.name == "constant" else 90),
        "decay_milestones": list(config.decay_milestones),
        "decay_rate": config.decay_rate or (1.0 if config.name in ("constant", "poly") else 0.1),
        "cooldown_epochs": config.cooldown_epochs,
        "warmup_epochs": config.warmup,
        "warmup_lr": config.warmup_lr,
        "min_lr": config.min_lr,
    }
    if config.name == "constant":
        options["decay_rate"] = 1.0
    schedule, _ = create_scheduler_v2(optimizer, **options, step_on_epochs=False, updates_per_epoch=steps)
    return schedule


def create_ema(model: nn.Module, recipe: Recipe) -> ModelEmaV3 | None:
    """A moving average of all weights and buffers, where the recipe asks for one."""
    if recipe.train.ema is None:
        return None
    return ModelEmaV3(model, decay=recipe.train.ema, use_warmup=recipe.train.ema_warmup)
