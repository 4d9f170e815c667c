"""From a recipe to a task with its data and a model, all of it seeded so that variants of a seed share what they can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timm.data import resolve_model_data_config
from torch import nn

from attngraft.errors import AttngraftError, ConfigError, HostError
from attngraft.grafting.apply import graft as apply_graft
from attngraft.models.create import create_host
from attngraft.models.token_mixing import ARGUMENT, mix_tokens_in_training, no_patch_logits
from attngraft.models.weights import WeightsFile, read_weights
from attngraft.tasks.seeding import seeded
from attngraft.tasks.task import Task, load_task
from attngraft.training.freezing import freeze
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import RunFolder


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


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a model starts from."""

    origin: str = ""  #: the weights and what became of them, in words; empty for random values
    whole: bool = False  #: the head is from there, too, so that there is something to lose
    path: Path | None = None  #: of the file of weights


def build_model(recipe: Recipe, model_args: Mapping[str, Any], *, weights: bool = True) -> nn.Module:
    """The grafted host, with what is not trained frozen. Host and grafts are initialized from streams of their own, so
    the host's initial weights (a new head's too) do not depend on the graft. `weights=False` skips pretrained weights and
    a file of weights, for a model that is filled otherwise.

    Raises:
        UsageError: there is no such host or file of weights, or the graft cannot be read.
        HostError: the host does not take its arguments, not the weights, or not the graft; or they cannot be fetched.
        ConfigError: there is nothing to train.
    """
    return build_started_model(recipe, model_args, weights=weights)[0]


def build_started_model(
    recipe: Recipe, model_args: Mapping[str, Any], *, weights: bool = True
) -> tuple[nn.Module, Start]:
    """`build_model`, and what the model starts from.

    Raises:
        UsageError, HostError, ConfigError: as `build_model`.
    """
    model, file, start = _started_host(recipe, model_args, weights=weights)
    with seeded("graft", recipe.seed):
        if recipe.graft is not None:
            apply_graft(model, recipe.graft)
    if recipe.distill is not None and recipe.distill.kind == "token":
        _train_both_heads(model, recipe)
    if model_args.get(ARGUMENT):
        mix_tokens_in_training(model)
    if file is not None:
        file.fill_grafts(model)
    freeze(model, recipe.train.parameters)
    return model, start


def check_start(recipe: Recipe) -> None:
    """Fetch and fit the weights that the recipe starts from, if any, to find out early whether that works.

    Raises:
        UsageError, HostError, ConfigError: as `build_model`.
    """
    if recipe.host.pretrained or recipe.host.weights is not None:
        build_model(recipe, {})


def _started_host(
    recipe: Recipe, model_args: Mapping[str, Any], *, weights: bool
) -> tuple[nn.Module, WeightsFile | None, Start]:
    """The host without grafts, the file that it was filled from, and what it starts from."""
    given = recipe.host.weights if weights else None
    file = read_weights(given, host=recipe.host.name) if given is not None else None
    pretrained = weights and recipe.host.pretrained
    with seeded("host", recipe.seed):
        model = _create_host(recipe, model_args, pretrained=pretrained)
    if file is not None:
        try:
            fitted = file.fill_host(model)
        except HostError as error:
            raise HostError(f"{error}{_host_of_run(file.path)}") from None
        return model, file, Start(origin=str(fitted), whole=not fitted.new, path=file.path)
    if not pretrained:
        return model, None, Start()
    there, here = getattr(model, "pretrained_cfg", {}).get("num_classes"), getattr(model, "num_classes", None)
    head = "" if there == here else f" (a new head: for {here} classes instead of {there})"
    return model, None, Start(origin=f"timm's weights of {recipe.host.name}{head}", whole=there == here)


def _train_both_heads(model: nn.Module, recipe: Recipe) -> None:
    """Let a distilled host give both heads' logits in training; in evaluation it gives their mean as before."""
    switch = getattr(model, "set_distilled_training", None)
    if not callable(switch):
        raise ConfigError(
            f"distill.kind: token trains the second head of a distilled host, and {recipe.host.name} has one head; "
            "take logits, or a host such as deit_tiny_distilled_patch16_224 or levit_128s"
        )
    switch(True)


def _host_of_run(weights: Path) -> str:
    """Where `weights` lie in a run's folder: how that run's host is asked for."""
    try:
        host = RunFolder(weights.parent.parent).read_recipe().host
    except AttngraftError:
        return ""
    arguments = [f" --host-arg {name}={value}" for name, value in host.args.items()]
    return f". The run that they are of has --host {host.name}{''.join(arguments)}"


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
    try:
        return create_host(host.name, pretrained=pretrained, **arguments)
    except HostError as error:
        raise (no_patch_logits(host.name) if f"'{ARGUMENT}'" in str(error) else error) from error.__cause__
