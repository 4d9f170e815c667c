"""Layout of a run folder, and reading and writing its files.

recipe.yaml         the resolved recipe
environment.json    versions, commit, device, threads
data.json           facts about the data, the host arguments that they require, their real paths, and batch sizes cut to them
split.csv           validation examples (only if they were drawn at random)
fitted/             objects that the task fitted to the training data, such as a tokenizer (few tasks)
teacher.json        distillation teacher and the hash of its weights (only with distill)
start.json          initial weights and their metrics (absent for random values)
metrics.jsonl       one line per evaluation
tensorboard/        the same as TensorBoard events
checkpoints/        last.pt (everything needed to resume), previous.pt, best.safetensors (weights), best-ema.safetensors
predictions.npz     predictions of the last epoch on the validation split, or of `judged` in finished.json
finished.json       written last: the run is complete; with the size and SHA-256 of each file of the run (see `checksums`)
trackers.json       tracker runs (only with train.track)
evaluation/         results of suites (attngraft eval --suite)
"""

import json
import logging
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attngraft import opening
from attngraft.cache import DECODED_FOLDER
from attngraft.checksums import Checksums, WrongChecksumError, read_with_checksums, write_checksums
from attngraft.errors import ConfigError, FolderError, TrainingError
from attngraft.files import write_atomically
from attngraft.results.records import RecordTable, write_records
from attngraft.strict import FieldError, OpenSection, are_numbers, convert, read
from attngraft.tasks.task import FITTED_FOLDER, SPLIT_FILE, Predictions, load_task
from attngraft.training.paths import with_reachable_paths, with_same_spelling
from attngraft.training.recipe import (
    CHOSEN_BY_MEMORY,
    HARMLESS,
    Recipe,
    ScheduleConfig,
    recipe_from_dict,
    recipe_to_dict,
    recipe_to_yaml,
)
from attngraft.training.sizes import Cut, sizes, with_cut
from attngraft.yaml_config import differing_fields, read_yaml

log = logging.getLogger(__name__)

_SHOWN = 3  #: maximum number of runs listed in a message

Metrics = dict[str, float]
JudgedSplit = Literal["val", "test"]

#: in the folder of a study, which has its runs in runs/<variant>/seed<k>/ or, with folds, runs/<variant>/seed<k>/fold<f>/
STUDY_FILE = "study.yaml"
TRACKERS_FILE = "trackers.json"  #: in the folder of a run or a study

#: without checksums: locks, logs, caches, results that are checked by themselves, and spare or damaged checkpoints
_UNLISTED = (
    *(".lock", "tensorboard/", f"{DECODED_FOLDER}/", TRACKERS_FILE, "evaluation/", "finished.json"),
    "checkpoints/previous.pt",
)
_UNLISTED_ENDS = (".tmp", "damaged.pt")
_MADE_AGAIN = ("metrics.jsonl", "predictions.npz")  #: from the last checkpoint, when a run is resumed


def folder_of_study(run: Path) -> Path | None:
    """Return the folder above `runs/<variant>/seed<k>` or `runs/<variant>/seed<k>/fold<f>`; None for other folders."""
    above = run.resolve().parents
    return next((above[depth] for depth in (2, 3) if len(above) > depth and above[depth - 1].name == "runs"), None)


class RunFolder:
    """Paths of the files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.environment = path / "environment.json"
        self.data = path / "data.json"
        self.split = path / SPLIT_FILE
        self.fitted = path / FITTED_FOLDER
        self.start = path / "start.json"
        self.teacher = path / "teacher.json"
        self.metrics = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / "checkpoints"
        self.last = self.checkpoints / "last.pt"
        self.previous = self.checkpoints / "previous.pt"
        self.predictions = path / "predictions.npz"
        self.finished = path / "finished.json"
        self.trackers = path / TRACKERS_FILE

    def best(self, kind: str = "") -> Path:
        """Return the path of the best weights by the primary metric.

        `kind` is "ema" for the best moving average, "stage<n>" for the best weights of stage n (from 1), otherwise empty.
        """
        return self.checkpoints / f"best{kind and '-' + kind}.safetensors"

    @property
    def newest(self) -> tuple[Path, ...]:
        """Return the paths of the last checkpoint and, unless the run is finished, of the one before."""
        return (self.last,) if self.finished.exists() else (self.last, self.previous)

    @property
    def study(self) -> Path | None:
        """Return the folder of the study that contains the run; None if there is none."""
        study = folder_of_study(self.path)
        return study if study is not None and (study / STUDY_FILE).is_file() else None

    @property
    def has_saved(self) -> bool:
        """Return whether the run has metrics or a checkpoint."""
        there = self.metrics.is_file() and self.metrics.stat().st_size > 0
        return there or any(path.exists() for path in (self.last, self.previous, self.finished))

    def read_recipe(self) -> Recipe:
        """Return the recipe in the folder, including sizes chosen by `train.auto_batch`."""
        return recipe_from_dict(read_yaml(self.recipe), source=str(self.recipe))

    def write_recipe(self, recipe: Recipe) -> None:
        write_atomically(self.recipe, recipe_to_yaml(recipe))

    def write_data(
        self,
        *,
        model_args: Mapping[str, Any],
        facts: Mapping[str, Any],
        judged_split: JudgedSplit = "val",
        paths: Mapping[str, str] | None = None,
        cut: Cut | None = None,
    ) -> None:
        """Write data.json.

        Args:
            model_args: arguments of the host's factory that the data require.
            facts: facts that the task returned.
            judged_split: split on which the run is compared.
            paths: from `paths.real_paths`.
            cut: from `sizes.cut_between`; added to a cut that is already recorded.
        """
        earlier = self.cut
        cut = earlier | {name: [earlier.get(name, pair)[0], pair[1]] for name, pair in (cut or {}).items()}
        data = {"model_args": dict(model_args), "facts": dict(facts), "judged_split": judged_split}
        more = {name: dict(values) for name, values in (("paths", paths), ("cut", cut)) if values}
        write_json(self.data, data | more)

    @property
    def cut(self) -> Cut:
        """Return the sizes that were cut to the data when the run began."""
        cut: Cut = self._data().get("cut", {})
        return cut

    def _data(self) -> dict[str, Any]:
        return _sections(self) if self.data.is_file() else {}

    @property
    def facts(self) -> dict[str, Any]:
        """Return the facts about the data in data.json; empty until the data were read."""
        facts: dict[str, Any] = self._data().get("facts", {})
        return facts

    @property
    def judged_on_val(self) -> bool:
        """Return whether to judge on validation despite a test split: the run or its study began without one."""
        data = self._data() or {"judged_split": None}
        # earlier releases, without test splits, wrote no entry
        return data.get("judged_split", "val") == "val" and (self.has_saved or not data["facts"])

    def write_teacher(self, facts: Mapping[str, Any]) -> None:
        write_json(self.teacher, dict(facts))

    def write_metrics(self, rows: list[Metrics]) -> None:
        """Write all rows, so that the file matches the checkpoint."""
        write_atomically(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))

    def write_predictions(self, predictions: Predictions) -> None:
        """Write all examples' records; also `score` and `binary` if the primary metric is a mean of scores."""
        table = RecordTable(
            names=np.asarray(list(predictions.names), dtype=np.str_),
            columns=predictions.arrays,
            outputs=predictions.outputs,
            score=predictions.score,
            binary=predictions.binary,
        )
        write_records(self.predictions, table)

    def write_finished(self, facts: Mapping[str, Any]) -> None:
        """Write finished.json with the checksums of the run's files."""
        files = [path for path in self.path.rglob("*") if path.is_file()]
        names = {path: path.relative_to(self.path).as_posix() for path in files}
        listed = [
            path for path in files if not names[path].startswith(_UNLISTED) and not names[path].endswith(_UNLISTED_ENDS)
        ]
        write_checksums(self.finished, listed, facts=facts)

    def read_finished(self) -> tuple[dict[str, Any], Checksums]:
        """Return the facts in finished.json, and the checksums of the run's files; empty if the run is not finished.

        Raises:
            TrainingError: finished.json is damaged.
        """
        if not self.finished.exists():
            return {}, Checksums(folder=self.path)
        try:
            facts, found = read_with_checksums(self.finished)
        except (OSError, WrongChecksumError) as error:
            raise TrainingError(f"{self.finished}: damaged ({error}); {self._remedy(made_again=True)}") from None
        entries = {name: entry for name, entry in found.entries.items() if not name.startswith(_UNLISTED)}
        return facts, replace(found, entries=entries)  # earlier versions listed decoded images, which are deleted

    def check(self, path: Path, checksums: Checksums) -> None:
        """Check a file of a finished run against its checksum, if the run has checksums.

        Raises:
            TrainingError: the file is damaged or unlisted; the message contains the remedy.
        """
        if damage := self._damage(path, checksums):
            remedy = self._remedy(made_again=path.name in _MADE_AGAIN)
            raise TrainingError(f"{path}: damaged since the run finished ({damage}); {remedy}")

    def _damage(self, path: Path, checksums: Checksums) -> str:
        """Return what is wrong with a file of a finished run; empty for intact and for missing, unlisted files."""
        listed = not checksums.entries or path.relative_to(self.path).as_posix() in checksums.entries
        if not listed and path.exists():
            return f"it is not listed in {self.finished.name}"
        return checksums.damage(path)

    def _remedy(self, *, made_again: bool) -> str:
        if made_again:
            return (
                "rerun the command that made it (attngraft compare or train), which makes it again from the checkpoint, "
                "or restore a good copy"
            )
        return f"restore a good copy, or delete {self.path}, and rerun the command to train it again"

    def mend(self) -> None:
        """If files of the finished run are damaged that its checkpoint contains, remove finished.json.

        Resuming the run then makes these files again. Weights are checked only if they are needed for this.

        Raises:
            TrainingError: other files are damaged; the message names the first.
        """
        try:
            _, checksums = self.read_finished()
        except TrainingError:
            checksums, damaged = Checksums(folder=self.path), [self.finished]
        else:
            light = {*checksums.entries, *_MADE_AGAIN}
            paths = [self.path / name for name in sorted(light) if not name.startswith("checkpoints/")]
            damaged = [path for path in paths if self._damage(path, checksums)]
        if not damaged:
            return
        for path in damaged:
            if path.name not in _MADE_AGAIN and path != self.finished:
                self.check(path, checksums)
        if not self.last.exists():
            raise TrainingError(f"{damaged[0]}: damaged, and {self.last} is missing; {self._remedy(made_again=False)}")
        self.check(self.last, checksums)
        log.warning("%s: damaged since the run finished; making it again from the checkpoint", damaged[0])
        self.finished.unlink(missing_ok=True)
        if self.predictions in damaged:
            self.predictions.unlink(missing_ok=True)

    def refuse_other_recipe(self, recipe: Recipe) -> None:
        """Check that the run in this folder has this `recipe`, except for fields that do not change results.

        The recipe of a run that has saved nothing may change, because the change may fix the failure.

        Raises:
            FolderError: the recipes differ; the message names the fields.
        """
        if self.has_saved and (different := self._differing(recipe)):
            raise FolderError(
                f"{self.path}: the run in this folder has a different recipe: {'; '.join(different)}. "
                "Resume it with its own recipe, or choose another folder"
            )

    def drop_split_of_other(self, recipe: Recipe) -> None:
        """Remove the split, fitted objects and tracker runs if an earlier attempt with another recipe left them."""
        if self._differing(recipe):
            self.split.unlink(missing_ok=True)
            self.trackers.unlink(missing_ok=True)
            shutil.rmtree(self.fitted, ignore_errors=True)
            if self.cut:
                write_json(self.data, {name: value for name, value in self._data().items() if name != "cut"})

    def with_chosen(self, recipe: Recipe) -> Recipe:
        """Return `recipe` with the sizes that were cut to the run's data or chosen under `train.auto_batch`."""
        recipe = with_cut(recipe, self.cut)
        if not recipe.train.auto_batch or self._differing(recipe):
            return recipe
        before = self.read_recipe().train
        chosen = replace(recipe.train, accumulate=before.accumulate, eval_batch_size=before.eval_batch_size)
        return replace(recipe, train=chosen)

    def record_choice(self, recipe: Recipe, *, epoch: int, step: int) -> None:
        """Record the sizes chosen after an out-of-memory error in step `step` of `epoch` (both from 1)."""
        environment = read_json(self.environment) if self.environment.is_file() else {}
        names = [name.partition(".")[2] for name in CHOSEN_BY_MEMORY]
        choice = {"epoch": epoch, "step": step} | {name: getattr(recipe.train, name) for name in names}
        write_json(
            self.environment, environment | {"chosen_by_memory": [*environment.get("chosen_by_memory", []), choice]}
        )
        self.write_recipe(recipe)

    def _differing(self, recipe: Recipe) -> list[str]:
        """Return the fields that must not change but differ between the run's recipe and `recipe`."""
        free = HARMLESS + (CHOSEN_BY_MEMORY if recipe.train.auto_batch else ())
        recipe = with_cut(recipe, self.cut)
        existing, given = (_without(recipe_to_dict(r), free) for r in (self.read_recipe(), recipe))
        return differing_fields(with_same_spelling(existing, given, self._data().get("paths", {})), given)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Evaluation of a finished run that a study compares instead of the last epoch's."""

    weights: Literal["last", "best"]
    epoch: int  #: of the weights, from 1
    split: JudgedSplit
    metrics: dict[str, float]  #: names as in metrics.jsonl: `test/top1`

    def compared(self) -> dict[str, float]:
        """Return the metrics without the split in their names."""
        return {name.partition("/")[2]: value for name, value in self.metrics.items()}


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Contents of a run folder."""

    folder: Path
    recipe: Recipe
    environment: dict[str, Any]
    model_args: dict[str, Any]  #: arguments of the host's factory required by the data
    facts: dict[str, Any]  #: facts about the data, returned by the task
    start: dict[str, Any] = field(default_factory=dict)  #: `from`, and `metrics` before training if the head is not new
    teacher: dict[str, Any] = field(default_factory=dict)  #: `name`, `from`, `sha256`, and `metrics` of the teacher
    epochs: list[Metrics] = field(default_factory=list)  #: per evaluation: epoch (from 1), seconds, train/..., val/...
    finished: bool = False
    predictions: Path | None = None
    judged: Judged | None = None  #: None: the final scores are the last epoch's on validation

    judged_split: JudgedSplit = "val"  #: also set if the run is not finished
    paths: dict[str, str] = field(default_factory=dict)  #: real paths of the data, by recipe field
    cut: Cut = field(default_factory=dict)  #: batch sizes before and after they were cut to the data
    checksums: Checksums | None = None  #: of the files of a finished run

    def check(self, path: Path) -> None:
        """Check a file before it is read; see `RunFolder.check`."""
        if self.checksums is not None:
            RunFolder(self.folder).check(path, self.checksums)

    @property
    def epochs_done(self) -> int:
        """Return the epoch of the last evaluation."""
        return int(self.epochs[-1]["epoch"]) if self.epochs else 0

    @property
    def seconds(self) -> float:
        """Return the seconds spent on training and evaluation up to the last evaluation."""
        return sum(row["seconds"] for row in self.epochs)


def validation_metrics(row: Metrics) -> Metrics:
    """Return the validation metrics (`top1`), including the moving average's (`ema/top1`)."""
    return {name.removeprefix("val/"): float(row[name]) for name in row if name.startswith(("val/", "ema/"))}


def read_run(folder: Path | str) -> RunRecord:
    """Read the run in `folder`, finished or not.

    Raises:
        FolderError: there is no run; if the folder is a study, the message names its runs.
        TrainingError: a file is damaged; the message names it.
    """
    run = RunFolder(Path(folder))
    if not run.recipe.is_file():
        raise FolderError(_not_a_run(run.path))
    refuse_special_files(run.path)
    facts, checksums = run.read_finished()
    finished = run.finished.exists()
    # tasks name those that are missing, and file managers add hidden files
    fitted = [path for path in sorted(run.fitted.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    for path in (run.recipe, run.environment, run.data, run.start, run.teacher, run.metrics, run.split, *fitted):
        run.check(path, checksums)
    data, recipe = _sections(run), run.read_recipe()
    _check_data(run, data, recipe)
    start = _read_facts(run.start, "from", **_WEIGHTS)
    teacher = _read_facts(run.teacher, "name", "from", "sha256", **_WEIGHTS)
    starts = recipe.host.pretrained or recipe.host.weights is not None
    for path, found, used in ((run.start, start, starts), (run.teacher, teacher, recipe.distill is not None)):
        if found and not used and finished:
            raise TrainingError(
                f"{path}: is not of a run with this recipe.yaml; restore good copies of both files, or repeat the run"
            )
        if not used:
            found.clear()  # of an attempt with another recipe that saved nothing
    judged = facts.get("judged")
    try:
        evaluation = None if judged is None else _judged(judged)
    except ConfigError as error:
        raise TrainingError(f"{run.finished}: {error}; restore a good copy, or repeat the run") from None
    judged_split = data.get("judged_split", "val")
    if evaluation is not None and evaluation.split != judged_split:
        raise TrainingError(
            f"{run.finished}: judged.split is {evaluation.split}, but judged_split in {run.data.name} {judged_split}; "
            "restore good copies of both files, or repeat the run"
        )
    return RunRecord(
        folder=run.path,
        recipe=with_reachable_paths(recipe, data.get("paths", {})),
        environment=_read_facts(run.environment, **_ENVIRONMENT),
        model_args=data["model_args"],
        facts=data["facts"],
        start=start,
        teacher=teacher,
        epochs=_read_rows(run.metrics, recipe.schedule, finished=finished) if run.metrics.is_file() else [],
        finished=finished,
        predictions=run.predictions if run.predictions.is_file() else None,
        judged=evaluation,
        judged_split=judged_split,
        paths=data.get("paths", {}),
        cut=data.get("cut", {}),
        checksums=checksums,
    )


def runs_below(folder: Path) -> list[Path]:
    """Return the folders of the runs of a study, or of the folds of a seed."""
    patterns = ("runs/*/*/recipe.yaml", "runs/*/*/fold*/recipe.yaml", "fold*/recipe.yaml")
    return sorted(path.parent for pattern in patterns for path in folder.glob(pattern))


def _not_a_run(folder: Path) -> str:
    if runs := runs_below(folder):
        shown = ", ".join(map(str, runs[:_SHOWN])) + (", ..." if len(runs) > _SHOWN else "")
        what = "a study" if (folder / "runs").is_dir() else "a seed with folds"
        return f"{folder} is {what}; give one of its runs: {shown}"
    if not folder.exists():
        return f"{folder}: no such folder; give the folder of a run"
    if (folder / "attngraft.json").is_file():
        return f"{folder} is an exported model; give the folder of a run"
    return f"{folder}: not a run folder (no recipe.yaml), and not an exported model (no attngraft.json)"


def refuse_special_files(folder: Path) -> None:
    """Refuse a folder with a FIFO, socket or device, which would block a reader, or be taken for a missing file.

    Raises:
        FolderError: there is one.
    """
    try:
        opening.check_folder(folder)
    except opening.UnsuitableFile as error:
        raise FolderError(f"{folder}: {error}; remove it") from None
    except OSError:  # the folder is missing or cannot be listed
        return


def _judged(values: Any) -> Judged:
    """Read the evaluation in finished.json; metrics of classes without examples are NaN, which `read` refuses.

    Raises:
        ConfigError: a field is missing or of another type.
    """
    metrics = values.get("metrics") if isinstance(values, dict) else None
    if not are_numbers(metrics):
        raise ConfigError("judged.metrics: expected numbers by name")
    return replace(read(Judged, {**values, "metrics": {}}, where="judged"), metrics=metrics)


def _sections(run: RunFolder) -> dict[str, Any]:
    """Return the content of data.json, or empty sections if there is none."""
    data: dict[str, Any] = read_json(run.data) if run.data.is_file() else {"model_args": {}, "facts": {}}
    for name in ("model_args", "facts", "paths", "cut"):
        if not isinstance(data.get(name, None if name in ("model_args", "facts") else {}), dict):
            raise TrainingError(f"{run.data}: has no object {name!r}; restore a good copy, or repeat the run")
    return data


@dataclass(frozen=True, kw_only=True)
class _Data(OpenSection):
    """Sections of data.json that do not depend on the task."""

    judged_split: JudgedSplit = "val"
    paths: dict[str, str] = field(default_factory=dict)
    cut: Cut = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(len(pair) != 2 or min(filter(None, pair), default=1) < 1 for pair in self.cut.values()):
            raise FieldError("cut", "must have two sizes of at least 1 for each name")


def _check_data(run: RunFolder, data: Mapping[str, Any], recipe: Recipe) -> None:
    """Check data.json against the types of the recipe's task; facts are empty until the data were read.

    Raises:
        FolderError: a field is missing or has a wrong value.
    """
    try:
        for name, (_, after) in read(_Data, data, where="data").cut.items():
            if name not in CHOSEN_BY_MEMORY and sizes(recipe).get(name) != after:
                raise FieldError(f"cut.{name}", "is not the size in recipe.yaml")
        if data["facts"]:
            facts = read(load_task(recipe.task["name"]).facts_class, data["facts"], where="facts")
            facts.check_model_args(data["model_args"])
            facts.check_section(recipe.task)
    except (ConfigError, FieldError) as error:
        raise FolderError(
            f"{run.data}: {str(error).removeprefix('data.')}; restore a good copy, or delete {run.path} to train the run "
            "again"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        TrainingError: the file cannot be read.
    """
    try:
        return opening.read_mapping(path)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path}: cannot be read: {error}; restore a good copy, or repeat the run") from None


#: types of the fields that are read of environment.json, and of start.json and teacher.json
_ENVIRONMENT = {"batch_norm_examples": int, "resumed": list, "chosen_by_memory": list, "packages": dict}
_WEIGHTS = {"name": str, "from": str, "file": str, "sha256": str, "metrics": dict}


def _read_facts(path: Path, *required: str, **types: type) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty one if there is no file.

    Raises:
        TrainingError: a field is missing, or not of its type.
    """
    if not path.is_file():
        return {}
    facts = read_json(path)
    try:
        for name, kind in types.items():
            if name in facts or name in required:
                convert(facts.get(name), kind, name)
        if not are_numbers(facts.get("metrics", {})):
            raise ConfigError("metrics: expected numbers by name")
    except ConfigError as error:
        raise TrainingError(f"{path}: {error}; restore a good copy, or repeat the run") from None
    return facts


def _read_rows(path: Path, schedule: ScheduleConfig, *, finished: bool) -> list[Metrics]:
    try:
        rows = [opening.parse_json(line) for line in opening.read_text(path).splitlines()]
        if not all(map(_is_row, rows)):
            raise ValueError("a line is not an object of numbers with epoch and seconds")
        places = [(row["epoch"], row.get("step", 0)) for row in rows]
        first, last = (0, 0) if not schedule.trains else (1, schedule.epochs if schedule.steps is None else math.inf)
        if not all(first <= epoch <= last for epoch, _ in places) or any(a >= b for a, b in pairwise(places)):
            raise ValueError("its epochs are not those of the recipe, in order")
        if finished and not rows:
            raise ValueError("it is empty")
        return rows
    except (OSError, ValueError) as error:
        if finished:
            raise TrainingError(f"{path}: cannot be read: {error}; restore a good copy, or repeat the run") from None
        log.warning("%s: cannot be read (%s); it is written again when the run resumes", path, error)
        return []


def _is_row(row: Any) -> bool:
    return are_numbers(row) and isinstance(row.get("epoch"), int) and 0 <= row.get("seconds", -1) < math.inf


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _without(recipe: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    for field_name in fields:
        section, _, name = field_name.partition(".")
        recipe[section].pop(name)
    return recipe
