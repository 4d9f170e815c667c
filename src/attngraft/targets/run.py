"""Opening the model of a run, and describing it in a manifest."""

import math
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from torch import nn

from attngraft.errors import FolderError, UsageError
from attngraft.grafting.spec import parse
from attngraft.hosts import host_of
from attngraft.models.schemes import split_scheme
from attngraft.models.trust import from_folder
from attngraft.results import wording
from attngraft.results.storage import RESULT_FILE, read_study
from attngraft.saved.manifest import HostEntry, Manifest, Origin, TaskEntry
from attngraft.strict import FieldError
from attngraft.tasks.capabilities import require
from attngraft.tasks.codec import OTHER, Codec, Serving
from attngraft.tasks.task import Task
from attngraft.training.build import host_defaults, recorded_input, task_of
from attngraft.training.evaluate import Weights, trained_model_and_row
from attngraft.training.run_folder import Metrics, RunFolder, RunRecord, folder_of_study, read_run

PACKAGES = ("attngraft", "torch", "timm")
_SHOWN = 3  #: maximum number of runs listed in a message


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """A trained model on the CPU, in evaluation mode, with its manifest, record and task."""

    model: nn.Module
    manifest: Manifest
    record: RunRecord
    task: Task
    codec: Codec


def open_run(
    folder: Path | str,
    weights: Weights = "last",
    *,
    unfinished: bool = False,
    trust_code: bool = False,
    allow_download: bool = False,
    purpose: str = "export",
) -> OpenedRun:
    """Open the model of a run.

    Args:
        folder: the run's folder.
        weights: which weights to use: last checkpoint, best epoch, or their moving averages.
        unfinished: accept a run that is not finished.
        trust_code: import a `module:` host named in the folder; this runs its code.
        allow_download: download what the folder names (a host of the Hub, a data set) and is not in the caches.
        purpose: the capability that the task must have.

    Raises:
        UsageError: the folder is a study; the message names its runs.
        FolderError: the folder is not a run, has no such weights, has not read its data yet, or is not finished.
        ConfigError: the run's task lacks the capability, or does not describe the model's inputs and outputs.
    """
    if (Path(folder) / RESULT_FILE).is_file():
        raise UsageError(f"{folder} is a study; give one of its runs, such as {_runs_of(Path(folder))}")
    record = read_run(folder)
    if not record.facts:
        raise FolderError(f"{record.folder}: the run stopped before its data were read; train it first")
    if not record.finished and not unfinished:
        done, epochs = record.epochs_done, record.recipe.schedule.epochs
        raise FolderError(
            f"{record.folder}: the run is not finished ({done} of {epochs} epochs); rerun its command to finish it, or "
            "add --unfinished"
        )
    recipe = record.recipe
    task = task_of(record)
    require(task, purpose)
    task.load_files(RunFolder(record.folder).fitted)
    with from_folder(trust_code=trust_code, allow_download=allow_download):
        expects = recorded_input(recipe, record.facts, where=record.folder)
        codec = task.codec(record.facts, model_data_config=expects)
        model, row = trained_model_and_row(record, weights)
        model = model.eval()
    around = not isinstance(codec, Serving) or type(task).build is not Task.build
    try:
        manifest = Manifest(
            host=_host(
                host_of(model)[0], recipe.host.name, {**host_defaults(recipe), **recipe.host.args, **record.model_args}
            ),
            graft=None if recipe.graft is None else str(parse(recipe.graft)),
            task=task.name,
            serving=codec if isinstance(codec, Serving) else OTHER,
            origin=_origin(record, weights, row),
            packages={name: _version(name) for name in PACKAGES},
            format=2 if around else 1,
            around=TaskEntry(section=recipe.task, facts=record.facts) if around else None,
        )
    except FieldError as error:
        raise FolderError(f"{RunFolder(record.folder).data}: {error}; restore the file") from None
    return OpenedRun(model=model, manifest=manifest, record=record, task=task, codec=codec)


def _host(model: nn.Module, name: str, arguments: dict[str, object]) -> HostEntry:
    """Return the host entry, naming timm's folders and hub repositories by registered name.

    Loading then needs no download.
    """
    scheme, rest = split_scheme(name)
    if scheme == "hf":
        name = f"hf:{Path(rest).name}"  # the arguments describe the model, and paths of this machine mean nothing elsewhere
    elif scheme == "timm" and ":" in name:
        known = getattr(model, "pretrained_cfg", None) or {}
        name, arguments = known.get("architecture", name), {**getattr(model, "_model_args", {}), **arguments}
    arguments.pop("pretrained_cfg_overlay", None)  # the manifest contains the input settings
    return HostEntry(name=name, args=arguments)


def _origin(record: RunRecord, weights: Weights, row: Metrics) -> Origin:
    """Return the origin of the weights; `row`: their epoch, with their metrics if they were evaluated."""
    part = "ema/" if "ema" in weights else "val/"
    folder, study = record.folder.resolve(), folder_of_study(record.folder)
    return Origin(
        # no paths of this machine; for a run of a study, variant and seed
        run=folder.name if study is None else "/".join(folder.relative_to(study).parts[1:]),
        weights=weights,
        epoch=int(row["epoch"]) if row else None,
        seed=record.recipe.seed,
        metrics={name.removeprefix(part): float(row[name]) for name in row if name.startswith(part)},
    )


def _runs_of(study: Path) -> str:
    """Return the first run of each of a study's best variants, for a message."""
    result = read_study(study)
    style = wording.metric_format(result)
    sign = 1 if result.higher_is_better else -1
    ranked = []
    for variant in result.variants:
        if variant.runs:
            spread = variant.last.get(style.name)
            mean = f"{style.label} {style.value(spread.mean if spread else None)}{style.unit}"
            ranked.append((-math.inf if spread is None else spread.mean * sign, variant, mean))
    ranked.sort(key=lambda each: each[0], reverse=True)
    fold = "" if result.folds is None else "fold0"
    shown = [
        f"{study / variant.runs[0].folder / fold} ({variant.name}: {mean})" for _, variant, mean in ranked[:_SHOWN]
    ]
    return ", ".join(shown) or "a finished run (there is none yet)"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"
