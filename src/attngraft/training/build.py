"""From a recipe to a task with its data and a model, all of it seeded so that variants of a seed share what they can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from timm.data import resolve_model_data_config
from torch import nn

import attngraft
from attngraft.errors import ConfigError
from attngraft.tasks.seeding import seeded
from attngraft.tasks.task import Task, load_task
from attngraft.training.recipe import Recipe


def build_task(recipe: Recipe) -> Task:
    """The recipe's task, its section checked.

    Raises:
        ConfigError: no such task, or a wrong key or value in its section.
    """
    config = {key: value for key, value in recipe.task.items() if key != "name"}
    return load_task(recipe.task["name"]).from_config(config, seed=recipe.seed)


def model_data_config(recipe: Recipe) -> dict[str, Any]:
    """What the host expects of its input (timm: input_size, mean, std, interpolation, crop_pct).

    The task needs this to load the data, and the data decides the head of the real model: so a host without weights is
    built on the meta device first. `img_size` and `in_chans` among the host's arguments, of which timm's own
    configuration knows nothing, decide the input size.
    """
    with torch.device("meta"):
        probe = _create_host(recipe, {}, pretrained=False)
    config: dict[str, Any] = resolve_model_data_config(probe)
    channels, height, width = config["input_size"]
    size = recipe.host.args.get("img_size", (height, width))
    height, width = (size, size) if isinstance(size, int) else size
    return config | {"input_size": (recipe.host.args.get("in_chans", channels), height, width)}


def build_model(recipe: Recipe, model_args: Mapping[str, Any], *, weights: bool = True) -> nn.Module:
    """The grafted host. Host and grafts are initialized from streams of their own, so the host's initial weights do
    not depend on the graft. `weights=False` skips pretrained weights, for a model that is filled otherwise.

    Raises:
        UsageError: there is no such host, or the graft cannot be read.
        HostError: the host does not take its arguments, or not the graft.
    """
    with seeded("host", recipe.seed):
        model = _create_host(recipe, model_args, pretrained=recipe.host.pretrained and weights)
    with seeded("graft", recipe.seed):
        if recipe.graft is not None:
            attngraft.graft(model, recipe.graft)
    return model


def _create_host(recipe: Recipe, model_args: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
    host = recipe.host
    for name in model_args.keys() & host.args.keys():
        if model_args[name] != host.args[name]:
            raise ConfigError(
                f"host.args.{name} is {host.args[name]!r}, but the data needs {model_args[name]!r}: "
                f"leave {name} out, it follows from the data"
            )
    arguments = {**model_args, **host.args}
    if recipe.train.drop_path is not None:
        arguments["drop_path_rate"] = recipe.train.drop_path
    return attngraft.create_model(host.name, pretrained=pretrained, **arguments)
