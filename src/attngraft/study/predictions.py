"""Saved predictions of runs: scores aligned by example, and the task's own arrays."""

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attngraft.errors import DataError, TrainingError
from attngraft.results.sections import Section
from attngraft.tasks.task import Task
from attngraft.training.run_folder import RunRecord

_COMMON = ("name", "score", "binary")  #: arrays of every task


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The part of a run's validation predictions that a study compares."""

    names: np.ndarray  #: (N,), one per example
    score: np.ndarray  #: (N,), each example's part of the primary metric
    binary: bool  #: scores are 0 or 1


def read_scores(record: RunRecord) -> Scores:
    """Read the scores in predictions.npz.

    Raises:
        TrainingError: the file is missing or damaged.
    """
    path = _path(record)
    with _damage_explained(path), np.load(path, allow_pickle=False) as arrays:
        score = np.asarray(arrays["score"], dtype=float)
        return Scores(names=arrays["name"], score=score, binary=bool(arrays["binary"]))


def align_scores(runs: Sequence[Scores], folders: Sequence[Path]) -> tuple[list[np.ndarray], bool]:
    """Return the scores (N,) of each run in the order of the first run's examples, and whether all are 0 or 1.

    Raises:
        DataError: the runs were not evaluated on the same examples; the message names their `folders`.
    """
    order = np.argsort(runs[0].names, kind="stable")
    aligned = []
    for folder, run in zip(folders, runs, strict=True):
        if np.array_equal(run.names, runs[0].names):
            aligned.append(run.score)
            continue
        own = np.argsort(run.names, kind="stable")
        if not np.array_equal(run.names[own], runs[0].names[order]):
            raise DataError(
                f"{folder} and {folders[0]} were evaluated on different examples: the data changed "
                "between these runs; delete the runs on the old data, and rerun the study"
            )
        score = np.empty_like(run.score)
        score[order] = run.score[own]
        aligned.append(score)
    return aligned, all(run.binary for run in runs)


def variant_sections(task: Task, records: Sequence[RunRecord]) -> list[Section]:
    """Return the task's report sections for a variant with these finished runs; empty if a run saved no task arrays.

    Raises:
        TrainingError: predictions cannot be read.
    """
    if not records:
        return []
    with ExitStack() as files:
        predictions = []
        for record in records:
            path = _path(record)
            with _damage_explained(path):
                predictions.append(_TaskArrays(path, files.enter_context(np.load(path, allow_pickle=False))))
        return task.sections(predictions, facts=records[0].facts) if all(predictions) else []


class _TaskArrays(Mapping[str, np.ndarray]):
    """The task's own arrays in an open predictions.npz, each read on access: logits may be large."""

    def __init__(self, path: Path, file: np.lib.npyio.NpzFile) -> None:
        self._path, self._file = path, file
        self._names = [name for name in file.files if name not in _COMMON]

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        with _damage_explained(self._path):
            array: np.ndarray = self._file[name]
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _path(record: RunRecord) -> Path:
    return record.predictions or record.folder / "predictions.npz"


@contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise TrainingError(
            f"{path}: the run's predictions cannot be read ({error}); delete this run's folder and train it again"
        ) from None
