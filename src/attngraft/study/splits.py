"""One split for all runs of a study: what was drawn is kept in its folder, and handed to every run that begins.

Without that a run that begins after images were added would be trained and judged on others than those before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attngraft.files import share
from attngraft.study.schedule import run_folder

if TYPE_CHECKING:
    from attngraft.study.config import StudyConfig
    from attngraft.tasks.task import Task
    from attngraft.training.run_folder import RunFolder


def kept_split(config: StudyConfig) -> Path | None:
    """The file of what this study drew, there or not; None while no run has saved anything, as its settings may change
    until then."""
    from attngraft.tasks.task import SPLIT_FILE

    return config.out / SPLIT_FILE if any(run.has_saved for run in _folders(config)) else None


def keep_split(config: StudyConfig, task: Task) -> None:
    """Write what `task` drew, if it drew anything, for all runs that have saved nothing yet.

    Raises:
        StorageError: it cannot be written.
    """
    from attngraft.tasks.task import SPLIT_FILE

    path = config.out / SPLIT_FILE
    if not task.save_split(path):
        return
    for run in _folders(config):
        if not run.has_saved:
            share(path, run.split)


def _folders(config: StudyConfig) -> Iterator[RunFolder]:
    from attngraft.training.run_folder import RunFolder

    for seed in config.seeds:
        for variant in config.variants:
            yield RunFolder(run_folder(config.out, variant, seed))
