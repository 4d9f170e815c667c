"""Where a teacher comes from: timm, a file of weights, a run of one's own, or an exported model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from attngraft.errors import ConfigError, HostError, UsageError
from attngraft.grafting.spec import parse
from attngraft.models.weights import read_weights
from attngraft.saved.folder import load
from attngraft.saved.manifest import MANIFEST, read_manifest
from attngraft.tasks.seeding import seeded
from attngraft.training.build import Start, build_model, build_started_model, model_data_config
from attngraft.training.checkpoint import load_weights
from attngraft.training.recipe import HostConfig, Recipe, TeacherConfig
from attngraft.training.run_folder import RunFolder, read_run

FIELD = "distill.teacher"  #: what errors call it


@dataclass(frozen=True, kw_only=True)
class FoundTeacher:
    """A teacher as it was found, on the CPU."""

    model: nn.Module
    name: str
    origin: str  #: of its weights, in words
    expects: Mapping[str, Any]  #: of its input, as `model_data_config` says it
    built_for: Mapping[str, Any]  #: what it was built with for its data (num_classes)
    classes: tuple[str, ...] | None = None  #: names, where they are known


def find_teacher(teacher: TeacherConfig, model_args: Mapping[str, Any] | None) -> FoundTeacher:
    """The model that the section names; `model_args` is what the data demand of one, None where they are not at hand.

    Raises:
        ConfigError: none is named, or what is named is none.
        UsageError, HostError, ExportError, TrainingError: it cannot be read.
    """
    if teacher.name is None and teacher.weights is None:
        raise ConfigError(
            f"{FIELD}: which teacher? --set {FIELD}.name=NAME for timm's weights of that name, "
            f"--set {FIELD}.weights=FOLDER for a run of yours or a model exported from one, or both for a file of weights"
        )
    try:
        with seeded("teacher", 0):
            if teacher.name is not None:
                return _named(teacher, teacher.name, model_args)
            return _own(Path(str(teacher.weights)).expanduser())
    except ConfigError:
        raise
    except (HostError, UsageError) as error:  # which would read as if the student's were meant
        raise type(error)(f"{FIELD}: {error}") from error


def _named(teacher: TeacherConfig, name: str, model_args: Mapping[str, Any] | None) -> FoundTeacher:
    """A model of timm's with its own weights, or with those of a file."""
    from_file = teacher.weights is not None
    place = Path(str(teacher.weights)).expanduser()
    if from_file and ((place / MANIFEST).is_file() or RunFolder(place).recipe.is_file()):
        raise ConfigError(f"{FIELD}.name: follows from what lies in {place}; leave name and args out")
    host = HostConfig(name=name, args=teacher.args, pretrained=not from_file, weights=teacher.weights)
    recipe = Recipe(host=host)
    wanted = dict(model_args or {}) if from_file else {}  # timm's own head is for the classes that it is for
    model, start = build_started_model(recipe, {key: wanted[key] for key in wanted if key not in teacher.args})
    if not start.whole and (model_args is not None or not from_file):
        raise ConfigError(
            f"{FIELD}: {_headless(model, start, host=name)}; take weights that were trained on the student's classes"
        )
    built_for = {"num_classes": getattr(model, "num_classes", None)}
    return FoundTeacher(
        model=model, name=name, origin=start.origin, expects=model_data_config(recipe), built_for=built_for
    )


def _headless(model: nn.Module, start: Start, *, host: str) -> str:
    """Why a file's head did not take its place."""
    layer = (getattr(model, "pretrained_cfg", None) or {}).get("classifier") or ""
    names = [f"{name}.weight" for name in ((layer,) if isinstance(layer, str) else layer)]
    if start.path is None:
        return start.origin
    values = read_weights(start.path, host=host).host
    there = next((len(values[name]) for name in names if name in values), None)
    if there is None:
        return f"{start.path} holds no head"
    return f"{start.path} is for {there} classes, and the data have {getattr(model, 'num_classes', '?')}"


def _own(place: Path) -> FoundTeacher:
    """The model of a run's folder, of a file of weights in one, or of an exported folder."""
    if (place / MANIFEST).is_file():
        return _exported(place)
    run = RunFolder(place if place.is_dir() else place.parent.parent)
    if not run.recipe.is_file():
        raise ConfigError(
            f"{FIELD}.weights: {place} is neither a run's folder nor that of an exported model"
            + (f"; for a file of weights also say of which model: {FIELD}.name" if place.is_file() else "")
        )
    record = read_run(run.path)
    if place.is_dir() and not record.finished:
        raise ConfigError(
            f"{FIELD}.weights: the run in {place} is not finished, and its best weights may change; finish it, or give a "
            "file of weights (a copy of its checkpoints/best.safetensors, with name and args of its host)"
        )
    weights = run.best() if place.is_dir() else place
    model = build_model(record.recipe, record.model_args, weights=False)
    facts = load_weights(weights, model)
    classes = record.facts.get("classes")
    return FoundTeacher(
        model=model,
        name=_grafted_name(record.recipe.host.name, record.recipe.graft),
        origin=f"weights of {weights}" + (f" (epoch {facts['epoch']})" if "epoch" in facts else ""),
        expects=model_data_config(record.recipe),
        built_for=record.model_args,
        classes=tuple(classes) if isinstance(classes, list | tuple) else None,
    )


def _exported(folder: Path) -> FoundTeacher:
    manifest = read_manifest(folder)
    serving = manifest.serving
    return FoundTeacher(
        model=load(folder).float(),  # exact where it was rounded to bfloat16
        name=_grafted_name(manifest.host.name, manifest.graft),
        origin=f"the exported model in {folder}",
        expects={**serving.input, "input_size": manifest.input_size},
        built_for=manifest.host.args,
        classes=serving.classes,
    )


def _grafted_name(host: str, graft: str | list[Any] | None) -> str:
    return host if graft is None else f"{host} with {parse(graft)}"
