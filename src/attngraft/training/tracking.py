"""Experiment trackers (Weights & Biases, MLflow, ...) of a run or a study, through the trackers of accelerate.

A tracker is imported only if it is named in `train.track`. Its errors end tracking, never the run. trackers.json keeps what
identifies the tracker's run, so that a resumed run continues it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import LoggerType

from attngraft.errors import ConfigError, TrainingError
from attngraft.suggest import did_you_mean
from attngraft.training.recipe import recipe_to_dict
from attngraft.training.run_folder import Metrics, RunFolder, read_json, write_json
from attngraft.training.setup import RunContext

log = logging.getLogger(__name__)

PROJECT = "attngraft"
#: trackers whose project, as passed by accelerate, would override the user's variable
_PROJECT_VARIABLES = {"wandb": "WANDB_PROJECT", "comet_ml": "COMET_PROJECT_NAME"}

#: trackers that can continue a run; others get a new run with all rows
_CONTINUED = ("wandb", "mlflow", "trackio", "comet_ml")


def check_trackers(names: Iterable[str]) -> None:
    """Check that the trackers exist and are installed, without importing them.

    Raises:
        ConfigError: an unknown tracker, or one whose package is not installed.
    """
    for name in names:
        known = sorted(set(LOGGER_TYPE_TO_CLASS) - {"tensorboard"})
        if name == "tensorboard":
            raise ConfigError("train.track: every run writes TensorBoard events without a tracker; remove tensorboard")
        if name in _CONTINUED and name not in known:
            raise ConfigError(f"train.track: {name} requires a newer accelerate; run pip install -U accelerate")
        if name not in known:
            near = did_you_mean(name, known)
            raise ConfigError(f"train.track: unknown tracker {name!r}{near}; use {', '.join(known)}")
        if name in LoggerType.list() and name not in map(str, get_available_trackers()):
            package = name.replace("_", "-")
            raise ConfigError(f"train.track: {name} is not installed; run pip install {package}")


class Tracking:
    """Tracker runs, one per tracker, which are started, or continued, and ended by a `with` block.

    An error of a tracker is logged once, and the tracker is not used any more.
    """

    def __init__(self, names: Sequence[str], *, file: Path, label: str, config: Mapping[str, Any]) -> None:
        """
        Args:
            names: trackers of accelerate; empty: nothing is tracked.
            file: trackers.json of the run.
            label: name of the run in the trackers.
            config: settings to store, with their sections as dotted names.
        """
        self._names, self._file, self._label = tuple(dict.fromkeys(names)), file, label
        self._config = dict(_flat(config))
        self._trackers: dict[str, Any] = {}
        self._known: dict[str, dict[str, Any]] = {}  # tracker -> `id` of its run, last `step`, digest of the result

    def __enter__(self) -> Tracking:
        if self._names and self._file.is_file():
            try:
                self._known = read_json(self._file)
            except TrainingError as error:
                log.warning("%s; starting new tracker runs", error)
        for name in self._names:
            self._guarded(name, self._start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._trackers):
            self._guarded(name, lambda name: self._trackers[name].finish())

    def log_rows(self, rows: Sequence[Metrics]) -> None:
        """Log the rows of metrics.jsonl that the trackers do not have yet."""

        def add(name: str) -> None:
            known = self._known[name]
            for row in rows:
                step = int(row.get("step", row["epoch"]))
                if step > known["step"]:
                    self._trackers[name].log(dict(row), step=step)
                    known["step"] = step
                    write_json(self._file, self._known)

        for name in list(self._trackers):
            self._guarded(name, add)

    def log_result(self, values: dict[str, float]) -> None:
        """Log final values, without a step, unless the trackers have them already."""

        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

        def add(name: str) -> None:
            if self._known[name].get("result") != digest:
                self._trackers[name].log(dict(values))
                self._known[name]["result"] = digest
                write_json(self._file, self._known)

        for name in list(self._trackers):
            self._guarded(name, add)

    def _start(self, name: str) -> None:
        known = self._known.get(name) if name in _CONTINUED else None
        identity = uuid.uuid4().hex if known is None else known["id"]
        kind = LOGGER_TYPE_TO_CLASS[name]
        project = os.environ.get(_PROJECT_VARIABLES.get(name, ""), PROJECT)
        folder = (os.curdir,) if kind.requires_logging_directory else ()
        tracker = kind(project, *folder, **self._arguments(name, identity, continues=known is not None))
        self._trackers[name] = tracker
        tracker.start()
        if name == "comet_ml":
            tracker.tracker.set_name(self._label)
        if known is not None:
            return
        if name == "mlflow":
            identity = tracker.tracker.info.run_id
        self._known[name] = {"id": identity, "step": -1}
        write_json(self._file, self._known)
        tracker.store_init_configuration({**self._config, "name": self._label})

    def _arguments(self, name: str, identity: str, *, continues: bool) -> dict[str, Any]:
        """Return the arguments that name the tracker's run; other trackers of accelerate have none in common."""
        if name == "wandb":
            return {"id": identity, "name": self._label, "resume": "allow"}
        if name == "trackio":  # which identifies a run by its name
            return {"name": f"{self._label}-{identity[:6]}", "resume": "allow"}
        if name == "mlflow":
            return {"run_id": identity} if continues else {"run_name": self._label}
        return {"experiment_key": identity} if name == "comet_ml" else {}

    def _guarded(self, name: str, action: Callable[[str], None]) -> None:
        try:
            action(name)
        except Exception as error:  # a tracker may raise anything, from its network, its disk or its settings
            text = f"{type(error).__name__}: {error}"
            log.warning("%s: tracking with %s failed and is off until the next start: %s", self._label, name, text)
            if (tracker := self._trackers.pop(name, None)) is not None:
                with suppress(Exception):
                    tracker.finish()


def track_run(run: RunContext) -> Tracking:
    """Return the tracker runs of a run: none in processes other than the main one."""
    folder = run.folder
    names = run.recipe.train.track if run.accelerator.is_main_process else ()
    config = {**recipe_to_dict(run.recipe), "folder": str(folder.path.resolve())}
    return Tracking(names, file=folder.trackers, label=_label(folder), config=config)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values; a value that is not a scalar becomes JSON."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            scalar = isinstance(value, str | int | float | bool | None)
            yield f"{prefix}{name}", value if scalar else json.dumps(value, default=str)


def _label(folder: RunFolder) -> str:
    """Return the name of a run: of its folder or, in a study, `study/variant/seed0` (`study/variant/seed0/fold1`)."""
    path, study = folder.path.resolve(), folder.study
    return path.name if study is None else "/".join((study.name, *path.relative_to(study).parts[1:]))
