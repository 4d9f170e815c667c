"""Verification of finished runs, studies and exported models against their checksums."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from attngraft.checksums import FILE as CHECKSUMS_FILE
from attngraft.checksums import Checksums
from attngraft.counting import counted
from attngraft.errors import AttngraftError, FolderError
from attngraft.evaluation.suites.cache import suite_checksums
from attngraft.results.storage import RESULT_FILE, read_study, study_checksums
from attngraft.saved.manifest import MANIFEST, checksums_of
from attngraft.study.predictions import read_statistics
from attngraft.training.build import task_of
from attngraft.training.evaluate import EVALUATIONS
from attngraft.training.run_folder import STUDY_FILE, RunFolder, read_run, runs_below

T = TypeVar("T")
_AGAIN = (
    "rerun attngraft compare or train: metrics.jsonl and predictions.npz are made again from the checkpoint; after other "
    "damage, delete the folder first"
)


@dataclass(kw_only=True)
class Verification:
    """Result of `verify`."""

    files: int = 0  #: number of files with checksums
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  #: what could not be checked


def verify(folder: Path) -> Verification:
    """Check all files with checksums of a run, a study with its runs, or an exported model.

    The metrics of runs are also compared with those that their predictions give; evaluations of runs are included.

    Raises:
        FolderError: the folder is none of these.
    """
    found, runs = Verification(), runs_below(folder)
    if (folder / MANIFEST).is_file():
        _check(found, folder, checksums_of, "export the model again")
    elif RunFolder(folder).recipe.is_file():
        runs = [folder]
    elif runs or (folder / STUDY_FILE).is_file():
        _check(found, folder, study_checksums, "write it again with attngraft compare --report-only --out FOLDER")
        if (folder / RESULT_FILE).is_file():
            _attempt(found, partial(read_study, folder))
    else:
        raise FolderError(f"{folder}: not a run, a study or an exported model; give the folder of one")
    for path in counted(runs, "runs verified"):
        if not RunFolder(path).finished.exists():
            found.notes.append(f"{path}: not finished, so it has no checksums yet")
        elif _check(found, path, lambda folder: RunFolder(folder).read_finished()[1], _AGAIN):
            _attempt(found, partial(_compare_metrics, path))
        for checksums in sorted((path / EVALUATIONS).rglob(CHECKSUMS_FILE)):
            _check(found, checksums.parent, suite_checksums, "rerun attngraft eval with the suite")
    return found


def _check(found: Verification, folder: Path, read: Callable[[Path], Checksums], remedy: str) -> bool:
    """Check the files of a folder; return whether they are intact."""
    before = len(found.problems)
    checksums = _attempt(found, partial(read, folder))
    if checksums is not None:
        found.files += len(checksums.entries)
        if not checksums.entries:
            found.notes.append(f"{folder}: has no checksums; it is from an earlier version or was not completed")
        for path, damage in checksums.damaged().items():
            found.problems.append(f"{path}: damaged ({damage}); restore a good copy, or {remedy}")
    return len(found.problems) == before


def _attempt(found: Verification, work: Callable[[], T]) -> T | None:
    """Return the result of `work`; after an error, add its message and return None."""
    try:
        return work()
    except AttngraftError as error:
        found.problems.append(str(error))
        return None


def _compare_metrics(folder: Path) -> None:
    record = read_run(folder)
    read_statistics(record, task_of(record))
