"""timm's optimizer, schedule and moving average, with learning rate and weight decay per parameter."""

import logging
import math
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import Any

import timm.optim
import torch
from timm.models import group_parameters
from timm.optim import auto_group_layers
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from timm.utils import ModelEmaV3
from torch import nn

from attngraft.attention import is_graft
from attngraft.errors import ConfigError
from attngraft.grafting.apply import pin_unused
from attngraft.hosts import ModelParts, host_of, model_parts
from attngraft.suggest import did_you_mean, quoted
from attngraft.training.recipe import OptimizerConfig, Recipe

log = logging.getLogger(__name__)

#: fields of the schedule that only some schedules use
_OF_SCHEDULES = {
    "decay_epochs": ("step",),
    "decay_milestones": ("multistep",),
    "decay_rate": ("step", "multistep", "poly"),
}


def create_optimizer(model: nn.Module, recipe: Recipe, parts: ModelParts | None = None) -> torch.optim.Optimizer:
    """Return the recipe's optimizer for the `parameter_groups` of `model`.

    Rows of a host's parameters that a graft leaves unused are pinned, so that weight decay does not change them.

    Raises:
        ConfigError: timm does not have the optimizer or an argument.
    """
    config = recipe.optimizer
    known, plain = timm.optim.list_optimizers(), config.name.lower().removeprefix("lookahead_")
    if plain not in known:
        near = did_you_mean(config.name, known)
        raise ConfigError(f"optimizer.name: timm has no optimizer {config.name!r}{near}; known: {', '.join(known)}")
    info = timm.optim.get_optimizer_info(plain)
    if info.second_order:
        raise ConfigError(
            f"optimizer.name: {config.name} needs second derivatives, which are not computed; choose another"
        )
    given = {"betas": config.betas, "eps": config.eps, "momentum": config.momentum}
    for name, value in given.items():
        if value is not None and not getattr(info, f"has_{name}"):
            log.warning("optimizer.%s=%s has no effect: %s does not have it", name, value, config.name)
    schedule = recipe.schedule
    for name, schedules in _OF_SCHEDULES.items():
        if getattr(schedule, name) and schedule.name not in schedules and not recipe.stages:  # they may use it
            used = " or ".join(schedules)
            log.warning("schedule.%s has no effect: schedule.name is %s, not %s", name, schedule.name, used)
    arguments = {name: value for name, value in given.items() if value is not None} | dict(config.args)
    betas = arguments.get("betas")
    if info.has_betas and isinstance(betas, list | tuple) and len(betas) != info.num_betas:
        raise ConfigError(f"optimizer.betas: must be {info.num_betas} numbers for {config.name}; got {quoted(betas)}")
    try:
        optimizer = timm.optim.create_optimizer_v2(
            parameter_groups(model, config, parts),
            opt=config.name,
            lr=recipe.lr,
            weight_decay=0.0,  # each group sets its own
            **arguments,
        )
    except Exception as error:  # optimizers of several packages raise errors of any class
        raise ConfigError(f"optimizer {config.name} with {arguments}: {error}; correct its arguments") from None
    pin_unused(optimizer, model)
    return optimizer


def learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """Return the schedule's current learning rate, before the groups' own scales."""
    group = max(optimizer.param_groups, key=lambda each: each.get("lr_scale", 1.0))  # the first may be rounded to 0
    return float(group["lr"]) / float(group.get("lr_scale", 1.0))


def create_schedule(optimizer: torch.optim.Optimizer, recipe: Recipe, *, steps: int) -> Scheduler:
    """Return the recipe's schedule; its `step_update(n)` sets the learning rate of update n.

    `steps` is the number of updates per epoch. The learning rate is a function of n, so the schedule has no state.
    """
    config = recipe.schedule
    epochs: float = config.epochs
    warmup: float = config.warmup
    cooldown = config.cooldown_epochs
    if not config.trains:  # the schedule is never used
        epochs, warmup, cooldown = 1, 0, 0
    if config.steps is not None:
        epochs = config.steps / steps
        warmup = min(5.0, epochs / 10) if config.warmup_epochs is None else config.warmup_epochs
    if config.warmup_steps is not None and config.trains:
        warmup = config.warmup_steps / steps
    if config.name == "inverse_sqrt":
        return InverseSqrtScheduler(optimizer, warmup=max(1, round(warmup * steps)))
    if config.steps is not None and warmup >= epochs - config.cooldown_epochs:
        raise ConfigError(
            f"schedule.steps: {config.steps} updates ({epochs:.3g} epochs) leave none after warm-up and cool-down; "
            "use --set schedule.warmup_steps=N or more steps"
        )
    linear = config.name == "linear"  # the warm-up is not part of timm's polynomial, so that the peak is reached
    options: dict[str, Any] = {
        "sched": {"constant": "step", "linear": "poly"}.get(config.name, config.name),
        "num_epochs": epochs - cooldown - warmup * linear,
        "warmup_prefix": linear,
        "decay_epochs": config.decay_epochs or (epochs if config.name == "constant" else 90),
        "decay_milestones": list(config.decay_milestones),
        "decay_rate": config.decay_rate or (1.0 if config.name in ("constant", "linear", "poly") else 0.1),
        "cooldown_epochs": cooldown,
        "warmup_epochs": warmup,
        "warmup_lr": config.warmup_lr,
        "min_lr": config.min_lr,
    }
    if config.name in ("constant", "linear"):
        options["decay_rate"] = 1.0
    schedule, _ = create_scheduler_v2(optimizer, **options, step_on_epochs=False, updates_per_epoch=steps)
    return schedule


class InverseSqrtScheduler(Scheduler):
    """Linear warm-up, then decay with the inverse square root of the update (Vaswani et al. 2017, section 5.3).

    Update t, from 1, has the learning rate peak * min(t / warmup, sqrt(warmup / t)).

    Args:
        optimizer: optimizer whose learning rate is the peak.
        warmup: number of updates up to the peak.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, warmup: int) -> None:
        super().__init__(optimizer, param_group_field="lr", t_in_epochs=False)
        self._warmup = warmup

    def _get_lr(self, t: int) -> list[float]:
        factor = min((t + 1) / self._warmup, math.sqrt(self._warmup / (t + 1)))
        return [peak * factor for peak in self.base_values]


def create_ema(model: nn.Module, recipe: Recipe) -> ModelEmaV3 | None:
    """Return a moving average of all weights and buffers; None if the recipe does not use one."""
    if recipe.train.ema is None:
        return None
    return ModelEmaV3(model, decay=recipe.train.ema, use_warmup=recipe.train.ema_warmup)


def parameter_groups(
    model: nn.Module, config: OptimizerConfig, parts: ModelParts | None = None
) -> list[dict[str, Any]]:
    """Return the trainable parameters of `model` in groups for an optimizer.

    `parts` is from `Task.parts`. Parameters with one axis (grafts included), biases, and parameters that the host exempts
    (`no_weight_decay`) are not decayed. All others use `weight_decay`, or `graft_weight_decay` if a graft added them.

    A group's `lr_scale`, by which timm's schedules multiply the learning rate, is

        layer_decay ** (layers above the parameter's own) * (graft_lr_scale, if a graft added it)

    with the host's own grouping of its layers (timm's `group_matcher`; without one, parameters in groups of twelve). A
    graft belongs to the layer of its target module and does not change the host's layers, so all variants of a study train
    the host's parameters at the same rates. New parts (`ModelParts.new`) use `new_lr_scale` alone.
    """
    host, prefix = host_of(model)
    parts = parts or model_parts(model)
    exempt = set(host.no_weight_decay()) if hasattr(host, "no_weight_decay") else set()  # type: ignore[operator]
    layer_scale = _layer_scales(host, config.layer_decay)
    graft_decay = config.weight_decay if config.graft_weight_decay is None else config.graft_weight_decay
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for path, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        new, name = parts.of(path) == "new", path.removeprefix(prefix)
        bare = parameter.ndim <= 1 or name.endswith(".bias") or any(fnmatch(name, pattern) for pattern in exempt)
        decay = 0.0 if bare else graft_decay if is_graft(name) else config.weight_decay
        scale = config.new_lr_scale if new else layer_scale(name) * (config.graft_lr_scale if is_graft(name) else 1.0)
        groups.setdefault((scale, decay), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "lr_scale": scale}
        for (scale, decay), parameters in groups.items()
    ]


def _layer_scales(model: nn.Module, layer_decay: float | None) -> Callable[[str], float]:
    """Return the factor of layer-wise decay as a function of a parameter's name."""
    if layer_decay is None:
        return lambda name: 1.0
    host: Any = _HostParameters(model)
    if hasattr(model, "group_matcher"):
        layers: dict[str, int] = group_parameters(host, model.group_matcher(coarse=False), reverse=True)  # type: ignore[operator]
    else:
        layers = dict(auto_group_layers(host))
    top = max(layers.values())

    def scale(name: str) -> float:
        layer = layers[name] if name in layers else _graft_layer(name, layers, default=top)
        return float(layer_decay ** (top - layer))

    return scale


def _graft_layer(name: str, layers: dict[str, int], *, default: int) -> int:
    """Return the layer of a graft's parameter: the last layer in its target, or in an enclosing module."""
    target = f".{name}".partition(".grafts.")[0].removeprefix(".")
    while target:
        inside = [layer for other, layer in layers.items() if other.startswith(f"{target}.")]
        if inside:
            return max(inside)
        target = target.rpartition(".")[0]
    return default


class _HostParameters:
    """View of a model for timm's parameter grouping, without the grafts' parameters."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.pretrained_cfg = getattr(model, "pretrained_cfg", None) or {}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, value) for name, value in self._model.named_parameters() if not is_graft(name))
