"""Finding a task by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngraft.errors import ConfigError
from attngraft.tasks import Task, load_task
from attngraft.tasks.classification import Classification
from attngraft.tasks.task import Distillation


def test_classification_is_found() -> None:
    task = load_task("classification")
    assert issubclass(task, Task)
    assert (task.name, task.primary, task.higher_is_better) == ("classification", "top1", True)


def test_multilabel_is_found() -> None:
    task = load_task("multilabel")
    assert issubclass(task, Task)
    assert (task.name, task.primary, task.higher_is_better) == ("multilabel", "image_ap", True)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown task 'subtitles'; available: captioning, classification"):
        load_task("subtitles")


def test_methods_under_their_old_names_are_called_and_warn(tmp_path: Path) -> None:
    """Overrides that were written for earlier versions, with and without `super()`; and callers of old names."""
    calls: list[str] = []
    with pytest.warns(DeprecationWarning, match=r"Old\.(recall|keep): Task\.\w+ is now Task\.\w+_split") as warned:

        class Old(Classification):
            def recall(self, path: Path) -> None:
                calls.append("recall")
                super().recall(path)  # type: ignore[misc]

            def keep(self, path: Path) -> bool:
                calls.append("keep")
                return True

    assert len(warned) == 2
    task = Old.from_config({"data": {"source": "digits"}}, seed=0)
    (tmp_path / "split.csv").touch()
    with pytest.warns(DeprecationWarning, match=r"Task\.recall is now Task\.load_split"):
        task.load_split(tmp_path / "split.csv")
    assert task._saved_split == tmp_path / "split.csv"
    assert task.save_split(tmp_path / "split.csv")
    assert calls == ["recall", "keep"]
    plain = Classification.from_config({"data": {"source": "digits"}}, seed=0)
    with pytest.warns(DeprecationWarning, match=r"Task\.follow is now Task\.use_fitted_transform"):
        plain.follow({"input": {"eval_crop_pct": 0.5}})  # type: ignore[attr-defined]
    assert plain._eval_crop_pct == 0.5


def test_classes_at_their_old_paths() -> None:
    with pytest.warns(DeprecationWarning, match=r"attngraft\.tasks\.teaching has moved"):
        from attngraft.tasks.teaching import Teaching  # type: ignore[import-not-found]
    assert Teaching is Distillation
