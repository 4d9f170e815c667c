"""From a run to its model and what a manifest says of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from torch import nn

from attngraft.errors import ExportError, UsageError
from attngraft.grafting.spec import parse
from attngraft.results import wording
from attngraft.results.storage import RESULT_FILE, load_result
from attngraft.results.study import VariantResult
from attngraft.saved.manifest import HostEntry, Manifest, Origin
from attngraft.tasks.task import Task
from attngraft.training.build import build_task, model_data_config
from attngraft.training.evaluate import Weights, trained_model
from attngraft.training.run_folder import RunRecord, read_run

PACKAGES = ("attngraft", "torch", "timm")
_SHOWN = 3  #: runs of a study in a message


@dataclass(frozen=True, kw_only=True)
class Source:
    """A trained model on the CPU, in evaluation mode, with what is known of it."""

    model: nn.Module
    manifest: Manifest
    record: RunRecord
    task: Task


def open_run(folder: Path | str, weights: Weights = "last", *, unfinished: bool = False) -> Source:
    """The model of a run.

    Args:
        folder: the run's.
        weights: of the last checkpoint, the best epoch, or their moving averages.
        unfinished: take a run that has not come to its end.

    Raises:
        UsageError: it is a study; names its runs.
        TrainingError: no run, or no such weights in it.
        ConfigError: its task does not say how its models are used.
        ExportError: the run has not seen its data yet, or is not finished.
    """
    if (Path(folder) / RESULT_FILE).is_file():
        raise UsageError(f"{folder}: is a study; give one of its runs, such as {_runs_of(Path(folder))}")
    record = read_run(folder)
    if not record.facts:
        raise ExportError(f"{record.folder}: the run stopped before its data were read; train it first")
    if not record.finished and not unfinished:
        done, of = len(record.epochs), record.recipe.schedule.epochs
        raise ExportError(
            f"{record.folder}: the run is not finished ({done} of {of} epochs); repeat its command to finish it, or take it "
            "as it is with --unfinished"
        )
    recipe = record.recipe
    task = build_task(recipe)
    serving = task.serving(record.facts, model_data_config=model_data_config(recipe))
    model = trained_model(record, weights).eval()
    manifest = Manifest(
        host=_host(model, recipe.host.name, {**recipe.host.args, **record.model_args}),
        graft=None if recipe.graft is None else str(parse(recipe.graft)),
        task=task.name,
        serving=serving,
        origin=_origin(record, weights, task),
        packages={name: _version(name) for name in PACKAGES},
    )
    return Source(model=model, manifest=manifest, record=record, task=task)


def _host(model: nn.Module, name: str, arguments: dict[str, object]) -> HostEntry:
    """A registered name: one that stands for a folder or a hub repository would have to be fetched again."""
    if ":" in name:
        known = getattr(model, "pretrained_cfg", None) or {}
        name, arguments = known.get("architecture", name), {**getattr(model, "_model_args", {}), **arguments}
    arguments.pop("pretrained_cfg_overlay", None)  # what it says of the input stands in the manifest
    return HostEntry(name=name, args=arguments)


def _origin(record: RunRecord, weights: Weights, task: Task) -> Origin:
    """Where the weights come from, with the run's own metrics of that epoch."""
    part = "ema" if "ema" in weights else "val"
    rows = [row for row in record.epochs if f"{part}/{task.primary}" in row]
    if not rows:
        return Origin(run=_name(record.folder), weights=weights, seed=record.recipe.seed)
    row = rows[-1]
    if weights.startswith("best"):
        key = f"{part}/{task.primary}"
        row = (max if task.higher_is_better else min)(rows, key=lambda each: each[key])  # the first of equal ones
    metrics = {name.partition("/")[2]: float(row[name]) for name in row if name.startswith(f"{part}/")}
    return Origin(
        run=_name(record.folder), weights=weights, epoch=int(row["epoch"]), seed=record.recipe.seed, metrics=metrics
    )


def _runs_of(study: Path) -> str:
    """The first runs of a study, best variant first where there is one."""
    result = load_result(study)
    style = wording.metric_format(result)

    def standing(variant: VariantResult) -> float:
        spread = variant.last.get(result.metric)
        return -math.inf if spread is None else spread.mean * (1 if result.higher_is_better else -1)

    best = sorted((each for each in result.variants if each.runs), key=standing, reverse=True)[:_SHOWN]
    rows = [f"{study / each.runs[0].folder} ({each.name}: {_mean(each, style)})" for each in best]
    return ", ".join(rows) or "none has finished"


def _mean(variant: VariantResult, style: wording.MetricFormat) -> str:
    spread = variant.last.get(style.name)
    return f"{style.label} {style.value(spread.mean if spread else None)}{style.unit}"


def _name(folder: Path) -> str:
    """The run's folder without the machine's paths; a study's run with its variant."""
    parts = folder.resolve().parts
    return "/".join(parts[-2:] if len(parts) > 2 and parts[-3] == "runs" else parts[-1:])


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"
