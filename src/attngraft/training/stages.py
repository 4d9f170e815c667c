"""Stages of a run: the stage of an epoch, and the settings of each.

The stage of an epoch is computed from the metrics of earlier epochs, so a resumed run needs no other state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attngraft.errors import ConfigError
from attngraft.files import user_path
from attngraft.strict import read
from attngraft.tasks.task import Task
from attngraft.training.loading import TrainOrder
from attngraft.training.recipe import Recipe, ScheduleConfig, Stage
from attngraft.training.run_folder import Metrics
from attngraft.yaml_config import merge, to_plain

#: fields of `task.data` that define the validation split
_SPLIT = ("val_split", "val_fraction", "split_seed", "split_file", "split_column")
#: fields of `task.data` that do not change which examples the data contain
_READING = (
    *("label_column", "label_columns", "label_separator", "test_split"),
    *("cache", "order", "shuffle_buffer", "check", "max_corrupt"),
)


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """A stage with the recipe, task and training batches that it uses."""

    stage: Stage
    recipe: Recipe  #: recipe of the run with the stage's changes
    task: Task
    order: TrainOrder


class StagePlan:
    """The stages of a recipe in order.

    Args:
        recipe: recipe of the run.
        task: task of the run, for the metric of a stage's patience; None: patience is ignored.
    """

    def __init__(self, recipe: Recipe, task: Task | None = None) -> None:
        self.recipe, self.stages, self._task = recipe, recipe.all_stages, task

    def at(self, epoch: int, rows: Sequence[Metrics]) -> tuple[int, int] | None:
        """Return index and first epoch of the stage that trains `epoch` (from 0); None after the last stage."""
        begins = self.begins(epoch, rows)
        return None if len(begins) > len(self.stages) else (len(begins) - 1, begins[-1])

    def begins(self, epoch: int, rows: Sequence[Metrics]) -> list[int]:
        """Return the first epoch of each stage begun by `epoch`, and the end of the last stage if it is over."""
        begins = [0]
        for done in range(1, epoch + 1):
            if len(begins) <= len(self.stages) and self._is_over(self.stages[len(begins) - 1], begins[-1], done, rows):
                begins.append(done)
        return begins

    def _is_over(self, stage: Stage, begin: int, done: int, rows: Sequence[Metrics]) -> bool:
        if stage.epochs is not None and done - begin >= stage.epochs:
            return True
        if stage.patience is None or self._task is None:
            return False
        metric = stage.metric or self._task.primary
        sign = 1 if self._task.is_higher_better(metric) else -1
        values = [sign * row[f"val/{metric}"] for row in rows if begin < row["epoch"] <= done]
        values = [-math.inf if math.isnan(value) else value for value in values]
        return len(values) - 1 - values.index(max(values)) >= stage.patience if values else False

    def refuse_unknown_metrics(self, metrics: Sequence[str]) -> None:
        """Check that the metrics for the stages' patience are among those of the first evaluation.

        Raises:
            ConfigError: a stage has an unknown metric.
        """
        for stage in self.stages:
            if stage.metric is not None and stage.metric not in metrics:
                known = ", ".join(metrics)
                raise ConfigError(f"stages.{stage.name}.metric: unknown metric {stage.metric!r}; known: {known}")


def stage_recipe(recipe: Recipe, stage: Stage) -> Recipe:
    """Return the recipe with a stage's changes of task, batch size, learning rate and schedule.

    A separate schedule of the stage runs over the stage's epochs.

    Raises:
        ConfigError: a field of the schedule is unknown or invalid, or the stage splits the run's data differently.
    """
    _refuse_other_split(recipe, stage)
    optimizer, schedule = recipe.optimizer, recipe.schedule
    if stage.own_schedule:
        given = {**to_plain(schedule), "epochs": stage.epochs, **(stage.schedule or {})}
        if given["name"] != "inverse_sqrt":  # whose warm-up alone counts updates without `steps`
            given["warmup_steps"] = None
        schedule = read(ScheduleConfig, given, where=f"stages.{stage.name}.schedule")
        optimizer = replace(optimizer, lr=optimizer.lr if stage.lr is None else stage.lr)
    train = replace(recipe.train, first=None, batch_size=stage.batch_size or recipe.train.batch_size)
    task = merge(dict(recipe.task), stage.task)
    return replace(recipe, task=task, optimizer=optimizer, schedule=schedule, train=train, stages=())


def _refuse_other_split(recipe: Recipe, stage: Stage) -> None:
    """Check that a stage with the run's data keeps the run's validation split."""
    data, own = recipe.task.get("data"), stage.task.get("data")
    if not (isinstance(data, Mapping) and isinstance(own, Mapping)):
        return
    source = data.get("source")
    if len({user_path(str(each)).resolve() for each in (source, own.get("source", source))}) > 1:
        return
    for name in _SPLIT:
        if name in own and own[name] != data.get(name):
            raise ConfigError(
                f"stages.{stage.name}.task.data.{name}: splits the run's data differently, so the stage could train on "
                f"validation examples; remove it, or use --set task.data.{name}=... for the whole run"
            )


def has_same_examples(task: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the data of two `task` sections contain the same examples, so that a saved split fits both."""
    one, two = (
        {name: value for name, value in data.items() if name not in _READING} if isinstance(data, Mapping) else data
        for data in (task.get("data"), other.get("data"))
    )
    return bool(one == two)
