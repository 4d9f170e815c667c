"""Task and model of a recipe. Variants of one seed share as many initial values as possible."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from attngraft.errors import AttngraftError, ConfigError, FolderError, HostError, UsageError, naming
from attngraft.grafting.apply import graft as apply_graft
from attngraft.grafting.spec import parse, with_former_defaults
from attngraft.models.create import start_host
from attngraft.models.host_input import host_input
from attngraft.models.schemes import Started, creation_errors, sized_for
from attngraft.models.token_mixing import ARGUMENT, mix_tokens_in_training, no_patch_logits
from attngraft.models.weights import WeightsFile, read_weights
from attngraft.suggest import quoted
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.seeding import seeded
from attngraft.tasks.task import Task, load_task
from attngraft.tensors import meta_device
from attngraft.training.freezing import freeze
from attngraft.training.misplaced import refuse_misplaced
from attngraft.training.recipe import Recipe, load_recipe, sections
from attngraft.training.run_folder import RunFolder, RunRecord


def build_task(recipe: Recipe) -> Task:
    """Return the recipe's task, with its section checked.

    Raises:
        ConfigError: the task does not exist, or its section has a wrong key or value.
    """
    name = recipe.task["name"]
    config = {key: value for key, value in recipe.task.items() if key != "name"}
    known = sections(name)
    if "task" in known:
        refuse_misplaced(config, known["task"], known=lambda: known, section="task")
    return load_task(name).from_config(config, seed=recipe.seed)


def task_of(record: RunRecord) -> Task:
    """Return the task of a run.

    Raises:
        ConfigError: see `build_task`; the message names the run's recipe.
    """
    with naming(RunFolder(record.folder).recipe):
        return build_task(record.recipe)


def recipe_for_task(task: str, recipe: str | None) -> str:
    """Return the recipe for `--task`: `recipe` if given, else the default recipe of the task.

    Raises:
        ConfigError: the task or the recipe does not exist.
        UsageError: the recipe is for another task, or no recipe is given and the task has no default recipe.
    """
    own = load_task(task).default_recipe
    if own is not None and load_recipe(own).task["name"] != task:
        own = None  # the default recipe of the parent class is for the parent's task
    if recipe is None and own is None:
        raise UsageError(
            f"--task {task}: this task has no default recipe; use --recipe FILE, with `task: {{name: {task}}}` in the file"
        )
    found = task if recipe is None else load_recipe(recipe).task["name"]
    if found != task:
        instead = f"--recipe {own}" if own is not None else f"a recipe with `task: {{name: {task}}}`"
        raise UsageError(
            f"--task {task}: the recipe {recipe} is for the task {found}; use {instead}, or --task {found} with this recipe"
        )
    return str(recipe or own)


def check_task_host(recipe: Recipe, host: nn.Module | None = None) -> None:
    """Check that the recipe's task supports its host; without `host`, build it on the meta device.

    Raises:
        UsageError: the task does not support the host; the message lists the hosts that it supports.
    """
    task = load_task(recipe.task["name"])
    if not task.hosts:
        return
    if host is None:
        with meta_device():
            host = _start_host(recipe, {}, pretrained=False).model
    if reason := task.refusal(host, recipe.host.name):
        raise UsageError(
            f"task {task.name}: cannot use the host {recipe.host.name}: {reason}; use one of {', '.join(task.hosts)}"
        )


def check_patches(recipe: Recipe, host: nn.Module | None = None) -> None:
    """Check that the host's patches cover its images; without `host`, build it on the meta device.

    timm accepts other sizes, but the model ignores the pixels of the incomplete patches, or fails.

    Raises:
        UsageError: the image size is not a multiple of the patch size.
    """
    if not {"img_size", "patch_size"} & recipe.host.args.keys():
        return
    if host is None:
        with meta_device():
            host = _start_host(recipe, {}, pretrained=False).model
    embed = getattr(host, "patch_embed", None)
    size, patch, stride = (
        getattr(part, name, None)
        for part, name in ((embed, "img_size"), (embed, "patch_size"), (getattr(embed, "proj", None), "stride"))
    )
    if getattr(embed, "dynamic_img_pad", False) or patch != stride or not (isinstance(size, tuple) and patch):
        return
    if any(side % step for side, step in zip(size, patch, strict=True)):
        fitting = [max(round(side / step), 1) * step for side, step in zip(size, patch, strict=True)]
        given, of, use = (
            str(sides[0]) if len({*sides}) == 1 else str([*sides]).replace(" ", "") for sides in (size, patch, fitting)
        )
        raise UsageError(
            f"host {recipe.host.name}: the image size {given} is not a multiple of the patch size {of}; use --host-arg "
            f"img_size={use}, or another patch_size"
        )


def model_data_config(recipe: Recipe) -> dict[str, Any]:
    """Return the host's input configuration (`host_input`), for images timm's data config.

    Does not depend on the data, because the task needs it to load them.
    """
    return host_input(recipe.host.name, _arguments(recipe, {}))


def recorded_input(recipe: Recipe, facts: Mapping[str, Any], *, where: Path | str) -> dict[str, Any]:
    """Return `model_data_config` of a run, after comparing the normalization of images with the facts of its data.

    Raises:
        FolderError: the run in `where` was trained with another one.
    """
    config, known = model_data_config(recipe), facts.get("input") or {}
    if config.get("kind", "images") == "images":
        used = HostInput.from_model(config).facts()
        for name in ("mean", "std", "interpolation"):
            if known.get(name, used[name]) != used[name]:
                raise FolderError(
                    f"{where}: the host of recipe.yaml has the {name} {used[name]}, but facts.input of data.json "
                    f"{quoted(known[name])}; restore good copies of both files"
                )
    return config


@dataclass(frozen=True, kw_only=True)
class Start:
    """Initial weights of a model."""

    origin: str = ""  #: source of the weights and the parts loaded from it; empty for random values
    whole: bool = False  #: whether the head was loaded, too
    path: Path | None = None  #: path of the weights file


def build_model(
    recipe: Recipe,
    model_args: Mapping[str, Any],
    *,
    load_weights: bool = True,
    facts: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return the grafted host with untrained parameters frozen.

    Host and grafts are initialized from separate random streams, so the host's initial weights (including a new head's) do
    not depend on the graft. `load_weights=False` is for models that are then filled from a checkpoint.

    Raises:
        UsageError: unknown host, missing weights file, or invalid graft specification.
        HostError: the host does not accept its arguments, weights or graft; or weights cannot be fetched.
        ConfigError: no parameter would be trained.
    """
    return build_initial_model(recipe, model_args, load_weights=load_weights, facts=facts)[0]


def build_initial_model(
    recipe: Recipe,
    model_args: Mapping[str, Any],
    *,
    load_weights: bool = True,
    facts: Mapping[str, Any] | None = None,
) -> tuple[nn.Module, Start]:
    """Return the model of `build_model` with a description of its initial weights.

    Raises:
        UsageError, HostError, ConfigError: see `build_model`.
    """
    model, file, start = _started_host(recipe, model_args, load_weights=load_weights)
    with seeded("graft", recipe.seed):
        if recipe.graft is not None:
            what, arguments = f"{parse(recipe.graft)} on {recipe.host.name}", _arguments(recipe, model_args)
            with creation_errors(what, arguments, maker="attngraft"):  # a host may only now fail by its arguments
                apply_graft(model, recipe.graft if load_weights else with_former_defaults(recipe.graft))
    if recipe.distill is not None and recipe.distill.kind == "token":
        _train_both_heads(model, recipe)
    if model_args.get(ARGUMENT):
        mix_tokens_in_training(model)
    if file is not None:
        file.fill_grafts(model)
    kind, parts = load_task(recipe.task["name"]), None
    if facts is not None and (kind.build, kind.parts) != (Task.build, Task.parts):
        task = build_task(recipe)
        with seeded("around", recipe.seed):
            model = task.build(model, facts)
        parts = task.parts(model)
    freeze(model, recipe.train.parameters, parts)
    return model, start


def check_as_is(recipe: Recipe, start: Start) -> None:
    """Check that a model evaluated without training has no random weights outside its grafts.

    Raises:
        ConfigError: the host, its head or modules added by the task have random values.
    """
    if recipe.schedule.trains:
        return
    host, zero = recipe.host, "schedule.epochs is 0, which evaluates the model without training"
    own = host.name.startswith("module:") and not start.origin  # may load its weights itself
    if not (start.origin or own):
        raise ConfigError(
            f"{zero}, and {host.name} has random weights; use --pretrained or --weights FILE, or train for 1 epoch or more"
        )
    if not (start.whole or own) or load_task(recipe.task["name"]).build is not Task.build:
        new = start.origin if not start.whole else f"modules added by the task {recipe.task['name']} are new"
        raise ConfigError(
            f"{zero}, and {host.name} would have a new head with random values ({new}); use weights that were trained on "
            "the classes of the data, or train for 1 epoch or more"
        )


def check_start(recipe: Recipe) -> None:
    """Fetch and load the recipe's initial weights, if any, in order to fail early.

    Raises:
        UsageError, HostError, ConfigError: see `build_model`.
    """
    if recipe.host.pretrained or recipe.host.weights is not None:
        build_model(recipe, {})


def _started_host(
    recipe: Recipe, model_args: Mapping[str, Any], *, load_weights: bool
) -> tuple[nn.Module, WeightsFile | None, Start]:
    """Return the host without grafts, the file of its weights, and a description of its initial weights."""
    given = recipe.host.weights if load_weights else None
    file = read_weights(given, host=recipe.host.name) if given is not None else None
    pretrained = load_weights and recipe.host.pretrained
    with seeded("host", recipe.seed), nullcontext() if file is None else sized_for(file.path):
        started = _start_host(recipe, model_args, pretrained=pretrained)
    model = started.model
    if file is not None:
        try:
            fitted = file.fill_host(model)
        except HostError as error:
            raise HostError(f"{error}{_host_of_run(file.path)}") from None
        return model, file, Start(origin=str(fitted), whole=not fitted.new, path=file.path)
    if started.file is not None and started.fitted is not None:
        fitted = started.fitted
        return model, started.file, Start(origin=str(fitted), whole=not fitted.new, path=fitted.path)
    if not pretrained:
        return model, None, Start()
    if recipe.host.name.startswith("module:"):
        return model, None, Start(origin=f"the weights that {recipe.host.name} loads", whole=True)
    loaded, built = getattr(model, "pretrained_cfg", {}).get("num_classes"), getattr(model, "num_classes", None)
    head = "" if loaded == built else f" (a new head: for {built} classes instead of {loaded})"
    return model, None, Start(origin=f"timm's weights of {recipe.host.name}{head}", whole=loaded == built)


def _train_both_heads(model: nn.Module, recipe: Recipe) -> None:
    """Make a distilled host return both heads' logits in training, and still their mean in evaluation."""
    switch = getattr(model, "set_distilled_training", None)
    if not callable(switch):
        raise ConfigError(
            f"distill.kind: token trains the second head of a distilled host, and {recipe.host.name} has one head; "
            "use logits, or a host such as deit_tiny_distilled_patch16_224 or levit_128s"
        )
    switch(True)


def _host_of_run(weights: Path) -> str:
    """Return the host options of the run whose folder contains `weights`, for a message."""
    try:
        host = RunFolder(weights.parent.parent).read_recipe().host
    except AttngraftError:
        return ""
    arguments = [f" --host-arg {name}={value}" for name, value in host.args.items()]
    return f". The weights are from a run with --host {host.name}{''.join(arguments)}"


def host_defaults(recipe: Recipe) -> dict[str, Any]:
    """Return the factory arguments that the task sets: for an `hf:` host, the Auto class of transformers."""
    name = load_task(recipe.task["name"]).auto_class
    return {"auto_class": name} if name is not None and recipe.host.name.startswith("hf:") else {}


def _arguments(recipe: Recipe, model_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the host's factory: from the recipe, the task and the data."""
    host = recipe.host
    for name in model_args.keys() & host.args.keys():
        if model_args[name] != host.args[name]:
            raise ConfigError(
                f"host.args.{name} is {host.args[name]!r}, but the data require {model_args[name]!r}; "
                f"leave {name} out, because the data determine it"
            )
    arguments = {**host_defaults(recipe), **model_args, **host.args}
    if recipe.train.drop_path is not None:
        arguments["drop_path_rate"] = recipe.train.drop_path
    return arguments


def _start_host(recipe: Recipe, model_args: Mapping[str, Any], *, pretrained: bool) -> Started:
    host = recipe.host
    try:
        return start_host(host.name, _arguments(recipe, model_args), pretrained=pretrained)
    except HostError as error:
        raise (no_patch_logits(host.name) if f"'{ARGUMENT}'" in str(error) else error) from error.__cause__
