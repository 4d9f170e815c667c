"""The study that `attngraft data check` proposes: the default recipe of the task, and the command."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attngraft.tasks.captioning.config import CaptionDataConfig
    from attngraft.tasks.detection.config import ObjectDataConfig
    from attngraft.tasks.images.config import DataConfig
    from attngraft.tasks.points.config import PointDataConfig
    from attngraft.tasks.segmentation.config import MaskDataConfig
    from attngraft.tasks.text.config import TextDataConfig
    from attngraft.tasks.translation.config import TranslationConfig
    from attngraft.training.recipe import Recipe


def default_recipe(task: str, settings: dict[str, Any]) -> Recipe:
    """Return the default recipe of a task, with the settings as its `task.data`."""
    from attngraft.tasks.task import load_task
    from attngraft.training.recipe import Recipe, load_recipe

    name = load_task(task).default_recipe
    recipe = Recipe() if name is None else load_recipe(name)
    return replace(recipe, task={**recipe.task, "name": task, "data": settings})


def compare_command(
    config: CaptionDataConfig
    | DataConfig
    | TextDataConfig
    | TranslationConfig
    | MaskDataConfig
    | ObjectDataConfig
    | PointDataConfig,
    task: str,
    *,
    also: Sequence[str] = (),
) -> str:
    """Return the command that compares grafts on these data, with the settings `also`."""
    from attngraft.tasks.task import load_task

    data: Any = getattr(config, "data", config)
    sections = [(data, "task.data.")] if data is config else [(config, "task."), (data, "task.data.")]
    words = ["attngraft", "compare", "--data", data.source]
    recipe = load_task(task).default_recipe
    words += [] if recipe == "default" else ["--task", task] if recipe is None else ["--recipe", recipe]
    for section, prefix in sections:
        for field in fields(section):
            value: Any = getattr(section, field.name)
            value = int(value) if isinstance(value, float) and value.is_integer() else value
            plain = value is None or isinstance(value, str | int | float | tuple)
            if (section, field.name) != (data, "source") and plain and value != field.default:
                words += ["--set", f"{prefix}{field.name}={value if isinstance(value, str) else json.dumps(value)}"]
    words += [word for text in also for word in ("--set", text)]
    # the hosts of these tasks are ours, and the recipe's is one
    host = default_recipe(task, {}).host.name if task in ("captioning", "points", "point_parts") else "..."
    return f"{shlex.join(words)} --host {host} --graft ..."
