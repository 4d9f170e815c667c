"""Paths in a recipe's `task.data`, compared by the files that they denote instead of by their spelling."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attngraft.errors import FolderError
from attngraft.training.recipe import Recipe

#: fields of `task.data` that contain paths
_FIELDS = ("source", "root", "split_file")
_SCHEME = "hf:"


def real_paths(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the absolute paths, without symbolic links, of existing files and folders in `task.data`, by field."""
    data = recipe["task"].get("data")
    values = {name: data.get(name) for name in _FIELDS} if isinstance(data, Mapping) else {}
    found = {}
    for name, value in values.items():
        if isinstance(value, str) and (real := _real_path(value)) is not None:
            found[f"task.data.{name}"] = real
    return found


def with_same_spelling(
    recipe: Mapping[str, Any], other: Mapping[str, Any], recorded: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return `recipe` with the paths of `other` where both denote the same file or folder.

    Args:
        recipe: the recipe of a run, as plain values.
        other: another recipe.
        recorded: `real_paths` of `recipe` when the run began; missing in runs of older releases.
    """
    ours, theirs = {**real_paths(recipe), **recorded}, real_paths(other)
    same = [name.rpartition(".")[2] for name, path in theirs.items() if ours.get(name) == path]
    if not same:
        return recipe
    task = recipe["task"]
    data = {**task["data"], **{name: other["task"]["data"][name] for name in same}}
    return {**recipe, "task": {**task, "data": data}}


def with_reachable_paths(recipe: Recipe, recorded: Mapping[str, str]) -> Recipe:
    """Return `recipe` with its `recorded` real paths where its own are not found, as in another working directory."""
    data = recipe.task.get("data")
    if not isinstance(data, Mapping):
        return recipe
    given = {name.rpartition(".")[2]: path for name, path in recorded.items()}
    lost = {
        name: f"{_SCHEME if str(data[name]).startswith(_SCHEME) else ''}{path}"
        for name, path in given.items()
        if data.get(name) is not None and _real_path(str(data[name])) is None and _real_path(path) is not None
    }
    return replace(recipe, task={**recipe.task, "data": {**data, **lost}}) if lost else recipe


def _real_path(text: str) -> str | None:
    path = os.path.expanduser(text.strip().removeprefix(_SCHEME))
    if os.path.exists(path):
        return os.path.realpath(path)
    folder = os.path.dirname(path)
    is_pattern = "{" in path and os.path.isdir(folder or ".")  # shards: x-{000..009}.tar
    return os.path.realpath(path) if is_pattern else None


def refuse_data_folder(folder: Path, data: Any) -> None:
    """Check that a run or study is not written into its own data, where its folders would become classes.

    Args:
        folder: folder of the run or study.
        data: a source, or a section `task.data`.

    Raises:
        FolderError: `folder` is the source of the data.
    """
    source = data.get("source") if isinstance(data, Mapping) else data
    if isinstance(source, str) and os.path.isdir(source) and os.path.isdir(folder) and os.path.samefile(source, folder):
        raise FolderError(f"{folder}: contains the data, which new files here would change; choose another --out")
