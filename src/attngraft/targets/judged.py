"""Targets of `attngraft eval`: runs, exported folders, hosts with weights, files that name their host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from timm.models import is_model, list_models
from torch import nn

from attngraft._version import __version__
from attngraft.errors import ExportError, UsageError
from attngraft.files import writing
from attngraft.models.checkpoint_file import SUFFIXES, read_checkpoint
from attngraft.models.create import create_host, create_model
from attngraft.models.schemes import SCHEMES, split_scheme
from attngraft.models.transformers_folder import label_names, transformers_folder
from attngraft.models.trust import SCHEME, from_folder, refuse_untrusted, trusting
from attngraft.models.weights import read_weights
from attngraft.saved.folder import load
from attngraft.saved.manifest import MANIFEST, read_manifest
from attngraft.suggest import did_you_mean
from attngraft.tasks.task import FITTED_FOLDER, Evaluation, load_task
from attngraft.tensors import meta_device
from attngraft.training.build import build_initial_model, model_data_config
from attngraft.training.evaluate import Weights, run_target
from attngraft.training.recipe import HostConfig, Recipe
from attngraft.training.run_folder import RunFolder, read_run, write_json
from attngraft.training.target import Target
from attngraft.training.teacher import weights_hash
from attngraft.yaml_config import apply_overrides

EVALUATION = "evaluation.json"  #: result of an evaluation without suites, next to predictions.npz
DEFAULT_TASK = "classification"  #: default task of hosts
_RECIPE = "recipe.yaml"


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """Options that apply to hosts."""

    pretrained: bool = False  #: load the published weights
    weights: Path | None = None  #: load this file instead
    arguments: Mapping[str, Any] = field(default_factory=dict)  #: arguments of the host's factory

    @property
    def given(self) -> bool:
        return self.pretrained or self.weights is not None or bool(self.arguments)


def kind_of(where: str, options: HostOptions | None = None) -> Literal["run", "exported", "weights", "host"]:
    """Return the kind of target `where`: a run, an exported folder, a file of weights, or a host.

    Raises:
        UsageError: `where` does not exist, or is a folder given together with host options.
    """
    path = Path(where)
    if path.is_dir() and transformers_folder(path) is None:
        if options is not None and options.given:
            raise UsageError(
                f"{where}: --pretrained, --host-weights and --host-arg apply to hosts, not folders; remove them"
            )
        return "exported" if (path / MANIFEST).is_file() else "run"
    if path.is_file():
        return "weights"
    known = ":" in where or is_model(where.partition(".")[0])
    if not path.is_dir() and (path.suffix in SUFFIXES or not known):
        raise UsageError(
            f"{where}: no such folder, file or host{did_you_mean(where, list_models())}; give a run, an exported folder, a "
            f"file of weights, or a host ({', '.join(f'{each}:' for each in SCHEMES)})"
        )
    return "host"


def open_target(
    where: str,
    *,
    weights: Weights = "last",
    host: HostOptions | None = None,
    task: str | None = None,
    out: Path | None = None,
    trust_code: bool = False,
    allow_download: bool = False,
) -> Target:
    """Open a model to evaluate.

    Args:
        where: folder of a run or of an exported model, a host, or a file of weights that names its host.
        weights: which weights of a run to use.
        host: options of hosts.
        task: task of a host (default: classification); for other targets, None or the task that they store.
        out: folder of the results; default for a run: `evaluation` in its folder.
        trust_code: import a `module:` host named in a folder or file; this runs its code.
        allow_download: download what a folder or file names and is not in the caches.

    Raises:
        UsageError: no such model, no weights for it or its head, or an option that does not apply.
        TrainingError, ExportError, HostError: the model cannot be opened.
    """
    options = host or HostOptions()
    kind = kind_of(where, options)
    if out is not None:
        refuse_folder(out)
    if kind == "run":
        target = run_target(read_run(where), weights)
        _refuse_other_task(where, task, target.recipe.task["name"])
        return target if out is None else replace(target, results=out, subfolder="")
    if weights != "last":
        raise UsageError(f"{where}: --weights {weights} chooses among the weights of a run; remove it")
    results = out or Path()
    if kind == "exported":
        with from_folder(trust_code=trust_code, allow_download=allow_download):
            return _exported(Path(where), task, results, trust_code=trust_code)
    name, options = named_by_weights(Path(where), options) if kind == "weights" else (where, options)
    with trusting(where), from_folder(where, trust_code=trust_code, allow_download=allow_download):
        return _host(where, name, options, task or DEFAULT_TASK, results)


def with_settings(target: Target, settings: Sequence[str]) -> Target:
    """Return the target with other fields of its task, `task.FIELD=VALUE` each.

    Raises:
        UsageError: another field of a recipe is set.
        ConfigError: a text is not an assignment.
    """
    other = next((text for text in settings if not text.startswith("task.") or text.startswith("task.name=")), None)
    if other is not None:
        raise UsageError(f"--set {other}: an evaluation only has fields of the task, such as task.source=en; remove it")
    task = apply_overrides({"task": target.recipe.task}, settings)["task"]
    return replace(target, recipe=replace(target.recipe, task=task))


def named_by_weights(path: Path, given: HostOptions) -> tuple[str, HostOptions]:
    """Return the host named in a file of weights written by `attngraft convert`, and its options.

    Raises:
        UsageError: the file names no host, or `given` has weights too.
    """
    if given.pretrained or given.weights is not None:
        raise UsageError(
            f"{path} is a file of weights; remove --pretrained and --host-weights, or give its host instead"
        )
    found = read_checkpoint(path)
    if found.architecture is None:
        raise UsageError(
            f"{path} does not name its model; give the model instead, with --host-weights {path}, or add the name with "
            f"attngraft convert {path} OUT.safetensors --host MODEL"
        )
    return found.architecture, HostOptions(weights=path, arguments={**found.arguments, **given.arguments})


def host_config(name: str, options: HostOptions) -> tuple[HostConfig, bool]:
    """Return the configuration of a host, and whether its number of outputs is known.

    With a file of weights, the number of outputs is that of the head in the file.

    Raises:
        UsageError: both kinds of weights are given, or there is no such host or file.
        HostError: the file cannot be read, or belongs to another host.
    """
    if options.pretrained and options.weights is not None:
        raise UsageError("--pretrained and --host-weights both choose the weights; remove one of them")
    file = None if options.weights is None else str(options.weights)
    host = HostConfig(name=name, args=options.arguments, pretrained=options.pretrained, weights=file)
    if file is None:
        return host, True
    weights = read_weights(file, host=name)
    if weights.grafts:
        raise UsageError(f"{file}: has weights of grafts; give its run, or a folder of attngraft export")
    if "num_classes" in host.args:
        return host, True
    with meta_device():
        outputs = weights.outputs(create_host(host.name, **host.args))
    if outputs is None:
        return host, False
    return replace(host, args={**host.args, "num_classes": outputs}), True


def create_target(
    where: str, options: HostOptions, *, trust_code: bool = False, allow_download: bool = False
) -> tuple[HostConfig, nn.Module]:
    """Create a host by name, or the host of a file of weights; return its configuration and the model.

    Raises:
        UsageError: see `named_by_weights` and `host_config`; or a `module:` host named in the file is not permitted.
        HostError: the host cannot be created.
    """
    name, options = named_by_weights(Path(where), options) if Path(where).is_file() else (where, options)
    with trusting(where), from_folder(where, trust_code=trust_code, allow_download=allow_download):
        config, _ = host_config(name, options)
        if name.startswith(SCHEME):
            refuse_untrusted(name)  # create_model trusts its caller
        return config, create_model(name, pretrained=config.pretrained, weights=config.weights, **config.args)


def save_evaluation(evaluation: Evaluation, target: Target, folder: Path, *, data: str | None) -> None:
    """Write predictions.npz and evaluation.json to `folder`.

    Raises:
        StorageError: a file cannot be written.
    """
    task = load_task(target.recipe.task["name"])
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    RunFolder(folder).write_predictions(evaluation.predictions)
    write_json(
        folder / EVALUATION,
        {
            "model": target.name,
            "kind": target.kind,
            "weights": target.weights,
            "checkpoint": target.digest(),
            "task": task.name,
            "data": data or target.recipe.task.get("data", {}).get("source"),
            "split": evaluation.split,
            "examples": len(evaluation.predictions.names),
            "metrics": dict(evaluation.metrics),
            "version": __version__,
        },
    )


def refuse_folder(out: Path) -> None:
    """Refuse the folder of something else as the folder for results."""
    for name, what in ((_RECIPE, "a run"), (MANIFEST, "an exported model"), ("study.yaml", "a study")):
        if (out / name).is_file():
            raise UsageError(f"--out {out} is the folder of {what}; give another folder")


def _refuse_other_task(where: str, task: str | None, own: str) -> None:
    if task not in (None, own):
        raise UsageError(f"{where}: its task is {own}; remove --task {task}")


def _exported(folder: Path, task: str | None, results: Path, *, trust_code: bool) -> Target:
    manifest = read_manifest(folder)
    _refuse_other_task(str(folder), task, manifest.task)
    serving, around = manifest.serving, manifest.around
    if serving.kind == "other" and around is not None:  # the task has its own codec
        section = {name: value for name, value in around.section.items() if name not in ("name", "data")}
        facts = dict(around.facts)
    else:
        section, facts = load_task(manifest.task).from_serving(serving)
    tokenizer = serving.input.get("tokenizer")
    if tokenizer is not None and not (folder / tokenizer).is_file():
        raise ExportError(f"{folder / tokenizer}: does not exist, so the export is incomplete; export the model again")
    shown = dict(serving.input) | ({"input_size": manifest.input_size} if serving.kind == "images" else {})
    model = load(folder, trust_code=trust_code).float()  # exact for weights that were rounded to bfloat16
    return Target(
        name=str(folder),
        kind="exported model",
        weights=manifest.origin.weights or "exported",
        recipe=Recipe(
            host=HostConfig(name=manifest.host.name, args=manifest.host.args), task={"name": manifest.task, **section}
        ),
        build=lambda: model,
        digest=lambda: weights_hash(model),
        results=results,
        facts=facts,
        model_args=manifest.host.args,
        input=None if serving.kind == "other" else {"kind": serving.kind, **shown},
        fitted=folder / FITTED_FOLDER,
    )


def _host(where: str, name: str, options: HostOptions, task: str, results: Path) -> Target:
    """Return the target of a host; the head in its weights determines its number of outputs."""
    scheme, rest = split_scheme(name)
    own = scheme == "module"  # may load its weights itself
    folder = transformers_folder(rest) if scheme == "hf" else None
    if not (options.pretrained or options.weights is not None or own):
        raise UsageError(f"{where}: a host starts from random values; add --pretrained, or --host-weights FILE")
    load_task(task)
    host, headed = host_config(name, options)
    if not headed:
        raise UsageError(
            f"{host.weights}: has no weights for the head of {host.name}; give a file that includes the head"
        )
    recipe = Recipe(host=host, task={"name": task})
    shown = model_data_config(recipe)
    if missing := load_task(task).missing_from_host(shown):
        raise UsageError(f"{where}: its weights lack {missing}; give its run, or a folder of attngraft export")
    model, start = build_initial_model(recipe, {})
    if not (start.whole or own):
        raise UsageError(
            f"{where}: its head is new, with random values: {start.origin}; give weights that have this head"
        )
    classes = getattr(model, "num_classes", None)
    return Target(
        name=where,
        kind="host",
        weights=host.weights or ("pretrained" if options.pretrained else "its own"),
        recipe=recipe,
        build=lambda: model,
        digest=lambda: weights_hash(model),
        results=results,
        model_args={} if classes is None else {"num_classes": classes},
        labels=() if folder is None else label_names(folder),
        input=shown,
    )
