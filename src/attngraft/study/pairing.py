"""The scores of several runs, example beside example."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attngraft.errors import DataError, TrainingError

if TYPE_CHECKING:
    from attngraft.training.run_folder import RunRecord


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The validation predictions of one run, as far as a study compares them."""

    names: np.ndarray  #: (N,), one per example
    score: np.ndarray  #: (N,), each example's part of the primary metric
    binary: bool  #: scores are 0 or 1


def aligned_scores(records: Sequence[RunRecord]) -> tuple[list[np.ndarray], bool]:
    """The scores (N,) of each run in the order of the first run's examples; whether all of them are 0 or 1.

    Raises:
        DataError: the runs did not evaluate the same examples.
        TrainingError: predictions cannot be read.
    """
    return aligned([read_scores(record) for record in records], [str(record.folder) for record in records])


def aligned(runs: Sequence[Scores], folders: Sequence[str]) -> tuple[list[np.ndarray], bool]:
    """The same of scores that were read already; `folders` are what messages call the runs.

    Raises:
        DataError: the runs did not evaluate the same examples.
    """
    order = np.argsort(runs[0].names, kind="stable")
    found = []
    for folder, run in zip(folders, runs, strict=True):
        if np.array_equal(run.names, runs[0].names):
            found.append(run.score)
            continue
        own = np.argsort(run.names, kind="stable")
        if not np.array_equal(run.names[own], runs[0].names[order]):
            raise DataError(
                f"{folder} and {folders[0]} were evaluated on different examples: the data changed "
                "between these runs; delete those that were made with the old data, and repeat the study"
            )
        score = np.empty_like(run.score)
        score[order] = run.score[own]
        found.append(score)
    return found, all(run.binary for run in runs)


def read_scores(record: RunRecord) -> Scores:
    """What predictions.npz holds.

    Raises:
        TrainingError: it is missing or damaged.
    """
    path = record.predictions or record.folder / "predictions.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return Scores(
                names=arrays["name"], score=np.asarray(arrays["score"], dtype=float), binary=bool(arrays["binary"])
            )
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise TrainingError(
            f"{path}: the run's predictions cannot be read ({error}); delete this run's folder and make it anew"
        ) from None
