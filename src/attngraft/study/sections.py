"""What the task says of each variant beside its metrics, from the saved predictions of its seeds."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attngraft.errors import TrainingError
from attngraft.results.sections import Section

if TYPE_CHECKING:
    from attngraft.tasks.task import Task
    from attngraft.training.run_folder import RunRecord

_ENGINES = ("name", "score", "binary")  #: arrays that are there whatever the task


def variant_sections(task: Task, records: Sequence[RunRecord]) -> list[Section]:
    """The task's sections on the variant whose finished runs these are; none where a run kept no arrays of its own.

    Raises:
        TrainingError: predictions cannot be read.
    """
    if not records:
        return []
    with ExitStack() as files:
        predictions = []
        for record in records:
            path = record.predictions or record.folder / "predictions.npz"
            with _told(path):
                file = files.enter_context(np.load(path, allow_pickle=False))
            predictions.append(_Arrays(path, file))
        return task.sections(predictions, facts=records[0].facts) if all(predictions) else []


class _Arrays(Mapping[str, np.ndarray]):
    """The task's own arrays in an open predictions.npz, each read when it is asked for: logits may be large."""

    def __init__(self, path: Path, file: np.lib.npyio.NpzFile) -> None:
        self._path, self._file = path, file
        self._names = [name for name in file.files if name not in _ENGINES]

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        with _told(self._path):
            found: np.ndarray = self._file[name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise TrainingError(
            f"{path}: the run's predictions cannot be read ({error}); delete this run's folder and make it anew"
        ) from None
