"""Learning rate and weight decay of each parameter: by axes, by layer, and by whether a graft added it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import Any

from timm.models import group_parameters
from timm.optim import auto_group_layers
from torch import nn

from attngraft.attention import is_graft
from attngraft.training.recipe import OptimizerConfig


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """The parameters of `model` that need a gradient, in groups for an optimizer.

    Not decayed are parameters with one axis (of grafts too), biases, and those that the host exempts
    (`no_weight_decay`); others by `weight_decay`, or `graft_weight_decay` where a graft added them.

    A group's `lr_scale`, which timm's schedules multiply the rate by, is

        layer_decay ** (layers above the parameter's own) * (graft_lr_scale, where a graft added it)

    with the host's own grouping of its layers (timm's `group_matcher`; without one, parameters by the dozen). A graft
    belongs to the layer of the module that carries it, and grafts change no layer of the host: variants of a study train
    the host's parameters at the same rates.
    """
    exempt = set(model.no_weight_decay()) if hasattr(model, "no_weight_decay") else set()  # type: ignore[operator]
    layer_scale = _layer_scales(model, config.layer_decay)
    graft_decay = config.weight_decay if config.graft_weight_decay is None else config.graft_weight_decay
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        bare = parameter.ndim <= 1 or name.endswith(".bias") or any(fnmatch(name, pattern) for pattern in exempt)
        decay = 0.0 if bare else graft_decay if is_graft(name) else config.weight_decay
        scale = layer_scale(name) * (config.graft_lr_scale if is_graft(name) else 1.0)
        groups.setdefault((scale, decay), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "lr_scale": scale}
        for (scale, decay), parameters in groups.items()
    ]


def _layer_scales(model: nn.Module, layer_decay: float | None) -> Callable[[str], float]:
    """By a parameter's name: its factor from layer-wise decay."""
    if layer_decay is None:
        return lambda name: 1.0
    layers = _host_layers(model)
    top = max(layers.values())

    def scale(name: str) -> float:
        layer = layers[name] if name in layers else _layer_at(name, layers, default=top)
        return float(layer_decay ** (top - layer))

    return scale


def _host_layers(model: nn.Module) -> dict[str, int]:
    """The layer of each of the host's parameters, from 0 at the input."""
    alone: Any = _HostAlone(model)
    if hasattr(model, "group_matcher"):
        matcher = model.group_matcher(coarse=False)  # type: ignore[operator]
        found: dict[str, int] = group_parameters(alone, matcher, reverse=True)
        return found
    return dict(auto_group_layers(alone))


def _layer_at(graft: str, layers: dict[str, int], *, default: int) -> int:
    """The layer in which a graft's parameter stands: the uppermost of the module that carries it, or around that."""
    target = f".{graft}".partition(".grafts.")[0].removeprefix(".")
    while target:
        inside = [layer for name, layer in layers.items() if name.startswith(f"{target}.")]
        if inside:
            return max(inside)
        target = target.rpartition(".")[0]
    return default


class _HostAlone:
    """A model as it is without its grafts, as far as timm's grouping of parameters looks at it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.pretrained_cfg = getattr(model, "pretrained_cfg", None) or {}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, value) for name, value in self._model.named_parameters() if not is_graft(name))
