"""A run is a folder; this is its layout, and how it is read.

recipe.yaml         the resolved recipe
environment.json    versions, commit, device, threads
data.json           what the task found in the data, and what the host was built with for it
split.csv           which images are for validation (only where that was drawn)
teacher.json        whom it learned from, and the hash of those weights (not there where it learned from labels alone)
start.json          the weights that it started from, and what they scored (not there where it started from random values)
metrics.jsonl       one line per finished epoch
tensorboard/        the same and the learning rate, as events
checkpoints/        last.pt (everything needed to go on), previous.pt, best.safetensors (weights), best-ema.safetensors
predictions.npz     validation predictions of the last epoch
finished.json       written last: the run is complete
evaluation/         what suites found (attngraft eval --suite)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import TrainingError
from attngraft.files import atomic_file, write_atomically
from attngraft.tasks.task import SPLIT_FILE, Predictions
from attngraft.training.recipe import (
    CHOSEN_BY_MEMORY,
    HARMLESS,
    Recipe,
    recipe_from_dict,
    recipe_to_dict,
    recipe_to_yaml,
)
from attngraft.yaml_config import differing_fields, read_yaml

Metrics = dict[str, float]


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run."""

    path: Path

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def data(self) -> Path:
        return self.path / "data.json"

    @property
    def split(self) -> Path:
        return self.path / SPLIT_FILE

    @property
    def start(self) -> Path:
        return self.path / "start.json"

    @property
    def teacher(self) -> Path:
        return self.path / "teacher.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def last(self) -> Path:
        return self.checkpoints / "last.pt"

    @property
    def previous(self) -> Path:
        return self.checkpoints / "previous.pt"

    def best(self, kind: str = "") -> Path:
        """The best weights by the primary metric; `kind` "ema" for those of the moving average."""
        return self.checkpoints / f"best{kind and '-' + kind}.safetensors"

    @property
    def predictions(self) -> Path:
        return self.path / "predictions.npz"

    @property
    def finished(self) -> Path:
        return self.path / "finished.json"

    @property
    def has_saved(self) -> bool:
        """Whether there is anything of this run that would be lost with the folder."""
        there = self.metrics.is_file() and self.metrics.stat().st_size > 0
        return there or any(path.exists() for path in (self.last, self.previous, self.finished))

    def create(self) -> None:
        """Make the folders.

        Raises:
            TrainingError: they cannot be made; says why.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrainingError(f"{self.path}: the run folder cannot be made: {error.strerror}") from None

    def read_recipe(self) -> Recipe:
        """The recipe that the run was started with."""
        return recipe_from_dict(read_yaml(self.recipe), source=str(self.recipe))

    def write_recipe(self, recipe: Recipe) -> None:
        write_atomically(self.recipe, recipe_to_yaml(recipe))

    def write_data(self, *, model_args: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        write_json(self.data, {"model_args": dict(model_args), "facts": dict(facts)})

    def write_teacher(self, facts: Mapping[str, Any]) -> None:
        write_json(self.teacher, dict(facts))

    def write_metrics(self, rows: list[Metrics]) -> None:
        """All rows anew: what the file holds is exactly what the checkpoint knows."""
        write_atomically(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))

    def write_predictions(self, predictions: Predictions) -> None:
        """`name` and `score` per example, `binary`, and the task's own arrays."""
        arrays = {
            "name": np.asarray(list(predictions.names), dtype=np.str_),
            "score": np.asarray(predictions.score),
            "binary": np.asarray(predictions.binary),
            **predictions.arrays,
        }
        with atomic_file(self.predictions) as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    def refuse_other_recipe(self, recipe: Recipe) -> None:
        """Check that a run in this folder was started with `recipe`, but for fields that change no outcome.

        A run that has saved nothing yet may change: what it failed for may be what is put right now.

        Raises:
            TrainingError: names the fields that differ.
        """
        if self.has_saved and (different := self._differing(recipe)):
            raise TrainingError(
                f"{self.path}: the run in this folder has another recipe: {'; '.join(different)}. "
                "Continue it with its own recipe, or choose another folder"
            )

    def drop_split_of_other(self, recipe: Recipe) -> None:
        """Remove a drawn split that belongs to another recipe: to an earlier try that saved nothing."""
        if self._differing(recipe):
            self.split.unlink(missing_ok=True)

    def with_chosen(self, recipe: Recipe) -> Recipe:
        """`recipe`, with what the run in this folder chose for want of memory, if it may choose."""
        if not recipe.train.auto_batch or self._differing(recipe):
            return recipe
        before = self.read_recipe().train
        chosen = replace(recipe.train, accumulate=before.accumulate, eval_batch_size=before.eval_batch_size)
        return replace(recipe, train=chosen)

    def note_choice(self, recipe: Recipe, *, epoch: int, step: int) -> None:
        """Write down what was chosen for want of memory in step `step` of `epoch` (both from 1): the run goes on so."""
        environment = read_json(self.environment) if self.environment.is_file() else {}
        names = [name.partition(".")[2] for name in CHOSEN_BY_MEMORY]
        choice = {"epoch": epoch, "step": step} | {name: getattr(recipe.train, name) for name in names}
        write_json(
            self.environment, environment | {"chosen_by_memory": [*environment.get("chosen_by_memory", []), choice]}
        )
        self.write_recipe(recipe)

    def _differing(self, recipe: Recipe) -> list[str]:
        """Fields in which the run in this folder differs from `recipe` and that it may not change."""
        free = HARMLESS + (CHOSEN_BY_MEMORY if recipe.train.auto_batch else ())
        here, given = (_without(recipe_to_dict(r), free) for r in (self.read_recipe(), recipe))
        return differing_fields(here, given)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What a run folder says."""

    folder: Path
    recipe: Recipe
    environment: dict[str, Any]
    model_args: dict[str, Any]  #: what the data demanded of the host's factory
    facts: dict[str, Any]  #: what the task found in the data
    start: dict[str, Any] = field(default_factory=dict)  #: `from`, and `metrics` before training where there was a head
    teacher: dict[str, Any] = field(default_factory=dict)  #: `name`, `from`, `sha256`, and `metrics` of the teacher
    epochs: list[Metrics] = field(default_factory=list)  #: per epoch: epoch (1-based), seconds, train/..., val/...
    finished: bool = False
    predictions: Path | None = None

    @property
    def seconds(self) -> float:
        """Seconds that the finished epochs took, their evaluation included."""
        return sum(row["seconds"] for row in self.epochs)


def read_run(folder: Path | str) -> RunRecord:
    """Read the run in `folder`, finished or not.

    Raises:
        TrainingError: there is no run, or one of its files is damaged; names the file.
    """
    run = RunFolder(Path(folder))
    if not run.recipe.is_file():
        raise TrainingError(f"{run.path}: there is no run here (no recipe.yaml)")
    data = read_json(run.data) if run.data.is_file() else {"model_args": {}, "facts": {}}
    return RunRecord(
        folder=run.path,
        recipe=run.read_recipe(),
        environment=read_json(run.environment) if run.environment.is_file() else {},
        model_args=data["model_args"],
        facts=data["facts"],
        start=read_json(run.start) if run.start.is_file() else {},
        teacher=read_json(run.teacher) if run.teacher.is_file() else {},
        epochs=_read_rows(run.metrics) if run.metrics.is_file() else [],
        finished=run.finished.is_file(),
        predictions=run.predictions if run.predictions.is_file() else None,
    )


def read_json(path: Path) -> Any:
    """What the file holds.

    Raises:
        TrainingError: it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path}: cannot be read: {error}") from None


def _read_rows(path: Path) -> list[Metrics]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path}: cannot be read: {error}; it is made again when the run is resumed") from None


def write_json(path: Path, value: Any) -> None:
    """`value` as indented JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _without(recipe: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    for field_name in fields:
        section, _, name = field_name.partition(".")
        recipe[section].pop(name)
    return recipe
