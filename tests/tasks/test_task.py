"""Finding a task by name."""

from __future__ import annotations

import pytest

from attngraft.errors import ConfigError
from attngraft.tasks import Task, load_task


def test_classification_is_found() -> None:
    task = load_task("classification")
    assert issubclass(task, Task)
    assert (task.name, task.primary, task.higher_is_better) == ("classification", "top1", True)


def test_multilabel_is_found() -> None:
    task = load_task("multilabel")
    assert issubclass(task, Task)
    assert (task.name, task.primary, task.higher_is_better) == ("multilabel", "image_ap", True)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown task 'detection'; available: classification"):
        load_task("detection")
